package handlers

import (
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// What is free again may be taken several at once again: also after units came
// straight from Postgres, while Redis was away.
func TestSpareComesBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	all := w.Slots
	id := h.submit(nil)
	run := h.begun()
	if n := w.spare("mock"); n != all-1 {
		t.Errorf("%d of %d may be taken while one runs", n, all)
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
	testkit.Eventually(t, "all may be taken", func() bool { return w.spare("mock") == all })
	h.redis.Stop()
	testkit.Eventually(t, "redis is known to be away", func() bool { return !h.queue.Up() })
	for range 3 {
		id := h.submit(nil)
		h.begun().end <- succeed("")
		h.becomes(id, work.Succeeded)
	}
	testkit.Eventually(t, "all may be taken again", func() bool { return w.spare("mock") == all })
}
