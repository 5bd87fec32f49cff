package handlers

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// A full disk is the worker process's fault: the unit uses up no retry, and none
// begins here until there is room.
func TestFullDiskIsNotTheUnitsFault(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var full atomic.Bool
	w := h.start(func(o *Options) { o.full = full.Load })
	unit := h.submit(func(s *work.Spec) { s.MaxRetries = ptr(0) })
	run := h.begun()
	full.Store(true)
	run.end <- backend.Result{Error: work.Fail(work.ClassCrash, "the agent ended without a result")}
	u := h.becomes(unit, work.Queued)
	if u.Failures != 0 || u.Crashes != 0 || u.Losses != 1 || u.Error == nil || u.Error.Class != work.ClassInfra || !contains(u.Error.Message, "disk") {
		t.Errorf("%+v, %v", u, u.Error)
	}
	if wait := w.laneWait("default", "mock"); wait != never {
		t.Errorf("a unit may begin in %v", wait)
	}
	if o := w.offers()[0]; o.Available || !contains(o.Detail, "disk") {
		t.Errorf("%+v", o)
	}
	full.Store(false)
	h.begun().end <- succeed("done")
	h.becomes(unit, work.Succeeded)
}

func TestOutOfDisk(t *testing.T) {
	t.Parallel()
	w := New(Options{Data: t.TempDir()})
	for _, c := range []struct {
		failure *work.Failure
		want    bool
	}{
		{nil, false},
		{work.Fail(work.ClassInfra, "the backend could not run: mkdir /x: no space left on device"), true},
		{work.Fail(work.ClassCrash, "claude ended (exit status 1) without a result\nstderr: Error: ENOSPC: no space left"), true},
		{work.Fail(work.ClassCrash, "it died"), false},
		{work.Fail(work.ClassRefusal, "I will not write about ENOSPC"), false},
	} {
		if got := w.outOfDisk(backend.Result{Error: c.failure, Success: c.failure == nil}); got != c.want {
			t.Errorf("%v: %t", c.failure, got)
		}
	}
}

// What cannot be made in the data directory is not the caller's mistake.
func TestDirectoryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	data := t.TempDir()
	h.start(func(o *Options) { o.Data = data })
	units := filepath.Join(data, "units")
	if err := os.RemoveAll(units); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(units, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unit := h.submit(func(s *work.Spec) { s.MaxRetries = ptr(0) })
	if u := h.becomes(unit, work.Failed); u.Error == nil || u.Error.Class != work.ClassInfra {
		t.Errorf("%v", u.Error)
	}
}
