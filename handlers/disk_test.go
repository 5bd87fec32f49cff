package handlers

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"piecework/handlers/upkeep"
	"piecework/internal/backend"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

// A full disk is the worker process's fault: the unit uses up no retry, and none
// begins here until there is room.
func TestFullDiskIsNotTheUnitsFault(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	var full atomic.Bool
	w := h.start(func(o *Options) { o.full = full.Load })
	unit := h.submit(func(s *work.Spec) { s.MaxRetries = ptr(0) })
	run := h.begun()
	full.Store(true)
	run.end <- backend.Result{Error: work.Fail(work.ClassCrash, "the agent ended without a result")}
	u := h.becomes(unit, work.Queued)
	if u.Failures != 0 || u.Crashes != 0 || u.Losses != 1 || u.Error == nil || u.Error.Class != work.ClassInfra ||
		!contains(u.Error.Message, "disk") {
		t.Errorf("%+v, %v", u, u.Error)
	}
	if wait := w.wait("default", "mock"); wait != upkeep.Never {
		t.Errorf("a unit may begin in %v", wait)
	}
	testkit.Eventually(t, "others know", func() bool {
		all, err := h.store.Processes.List(t.Context())
		return err == nil && !all[0].Backends[0].Available && contains(all[0].Backends[0].Detail, "disk")
	})
	full.Store(false)
	h.begun().end <- succeed("done")
	h.becomes(unit, work.Succeeded)
}

func TestLacked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failure *work.Failure
		want    error
	}{
		{nil, nil},
		{work.Fail(work.ClassInfra, "the backend could not run: mkdir /x: no space left on device"), errDiskFull},
		{work.Fail(work.ClassCrash, "claude ended (exit status 1) without a result\nstderr: Error: ENOSPC: no space left"), errDiskFull},
		{work.Fail(work.ClassInfra, "the agent's process could not be started: fork/exec /bin/claude: too many open files"), errNoFiles},
		{work.Fail(work.ClassCrash, "claude ended (exit status 1) without a result\nstderr: Error: EMFILE: too many open files"), nil},
		{work.Fail(work.ClassCrash, "it died"), nil},
		{work.Fail(work.ClassRefusal, "I will not write about ENOSPC"), nil},
	} {
		if got := lacked(backend.Result{Error: c.failure, Success: c.failure == nil}, func() bool { return false }); !errors.Is(got,
			c.want) {
			t.Errorf("%v: %v", c.failure, got)
		}
	}
}

// An agent that could not be started for want of file descriptors is tried again
// without using up a retry.
func TestTooManyFilesIsNotTheUnitsFault(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	unit := h.submit(func(s *work.Spec) { s.MaxRetries = ptr(0) })
	h.begun().end <- backend.Result{Error: work.Fail(work.ClassInfra, "the agent's process could not be started: pipe2: too many open files")}
	u := h.becomes(unit, work.Queued)
	if u.Failures != 0 || u.Losses != 1 || u.NotBefore == nil || u.Error == nil || !contains(u.Error.Message, "ulimit -n") {
		t.Errorf("%+v, %v", u, u.Error)
	}
}

// What cannot be made in the data directory is not the caller's mistake.
func TestDirectoryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
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

// bytesBelow adds up the files in a directory.
func bytesBelow(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// What finished runs have left on a small disk makes room for others; what a unit
// that is not over has there stays.
func TestRoomIsMadeOfFinishedRuns(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	data := t.TempDir()
	const disk = 1 << 20
	full := func() bool { return bytesBelow(filepath.Join(data, "units")) > disk }
	w := h.start(func(o *Options) { o.Data, o.full, o.short, o.diskEvery = data, full, full, 20*time.Millisecond })
	fill := func(r *puppetRun) {
		if err := os.WriteFile(filepath.Join(r.req.Dir, "big"), make([]byte, disk*2/3), 0o600); err != nil {
			t.Error(err)
		}
	}
	greedy, other := h.submit(nil), h.submit(nil)
	first, second := h.begun(), h.begun()
	fill(first)
	first.end <- succeed("done")
	done, goesOn := greedy, other
	if first.req.UnitID != greedy {
		done, goesOn = other, greedy
	}
	h.becomes(done, work.Succeeded)
	fill(second) // now the disk is full
	testkit.Eventually(t, "room is made", func() bool { return !full() })
	if _, err := os.Stat(filepath.Join(second.req.Dir, "big")); err != nil {
		t.Errorf("the directory of a unit that runs: %v", err)
	}
	testkit.Eventually(t, "the directory of the unit that is over is removed", func() bool { // after what is in it
		_, err := os.Stat(filepath.Join(w.disk.Units(), done.String()))
		return os.IsNotExist(err)
	})
	next := h.submit(nil)
	h.begun().end <- succeed("done")
	h.becomes(next, work.Succeeded)
	second.end <- succeed("done")
	h.becomes(goesOn, work.Succeeded)
}

// A worker process that takes nothing for lack of room says so in Postgres, and
// no more when there is room again.
func TestFullDiskIsTold(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	var full atomic.Bool
	full.Store(true)
	w := h.start(func(o *Options) { o.full, o.short, o.diskEvery = full.Load, full.Load, 20*time.Millisecond })
	blocked := func(want bool) func() bool {
		return func() bool {
			all, err := h.store.Processes.List(t.Context())
			return err == nil && len(all) == 1 && (all[0].Blocked != "") == want
		}
	}
	testkit.Eventually(t, "the full disk is reported", blocked(true))
	if !contains(w.Blocked(), "the disk of") {
		t.Errorf("it says %q", w.Blocked())
	}
	unit := h.submit(nil)
	full.Store(false)
	testkit.Eventually(t, "the room is reported", blocked(false))
	h.begun().end <- succeed("done")
	h.becomes(unit, work.Succeeded)
	if w.Blocked() != "" {
		t.Errorf("it says %q", w.Blocked())
	}
}
