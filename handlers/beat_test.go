package handlers

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/work"
	"piecework/store"
)

// A worker process of this machine that dies while another works is noticed by
// that one's next beat: its units need not wait for the lease to run out.
func TestDeadNeighbourIsNoticedAtABeat(t *testing.T) {
	t.Parallel()
	if process.Self() == "" {
		t.Skip("this system does not tell whether a process is the one that was")
	}
	h := newHouse(t)
	h.start(nil)
	dead := work.Process{ID: uuid.Must(uuid.NewV7()), Identity: process.Self() + "0", Queues: []string{"default"}} // another start time
	id := h.submit(func(s *work.Spec) { s.Queue = "unheard" })
	if err := h.store.Register(t.Context(), dead, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	c, err := h.store.Claim(t.Context(), store.Claim{UnitID: id, RunID: uuid.Must(uuid.NewV7()), Process: dead.ID, Backends: []string{"mock"}})
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	if u := h.becomes(id, work.Queued); u.Losses != 1 {
		t.Errorf("%d losses", u.Losses)
	}
}
