package handlers

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

func newLane() *lane {
	l := &lane{backend: newPuppet("mock")}
	l.probed("", "1.0")
	return l
}

func limited(reset time.Duration) *work.Failure {
	f := work.Fail(work.ClassRateLimit, "429")
	if reset > 0 {
		f.ResetAt = time.Now().Add(reset)
	}
	return f
}

// A provider that lets so many requests a second through is met by a wave of
// units. After the first second no second has more than it lets through.
func TestLaneKeepsUnderALimit(t *testing.T) {
	t.Parallel()
	for _, allowed := range []int{5, 10, 50} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, start := newLane(), time.Now()
				asked, left := map[int]int{}, 200 // requests by second; units
				for left > 0 {
					if wait := l.wait(); wait > 0 {
						time.Sleep(wait)
						continue
					}
					began := time.Now()
					l.took()
					second := int(time.Since(start) / time.Second)
					if asked[second]++; asked[second] > allowed {
						if second > 0 {
							t.Fatalf("%d requests in second %d, %d left", asked[second], second, left)
						}
						l.ended(began, false, limited(3*time.Second))
					} else {
						left--
						l.ended(began, true, nil)
					}
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(start); took > time.Duration(200/allowed)*3*time.Second+10*time.Second {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

// A limit that holds for hours does not shut a lane for hours: it may hold for
// one model only.
func TestLaneTriesNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane()
		l.took()
		l.ended(time.Now(), false, limited(10*time.Hour))
		if wait := l.wait(); wait != maxShut {
			t.Errorf("shut for %s", wait)
		}
		time.Sleep(l.wait())
		l.wait()
		l.took()
		if wait := l.wait(); wait < time.Second {
			t.Errorf("%s between two units", wait)
		}
		l.ended(time.Now(), true, nil)
		for range 3000 {
			time.Sleep(l.wait())
			l.took()
		}
		if l.pace != 0 {
			t.Errorf("still paced at %v a second", l.pace)
		}
	})
}

// Limits of unknown length shut the lane for longer each time; late answers to
// the same wave do not count again.
func TestLaneStrikes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane()
		for _, want := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
			first, second := time.Now(), time.Now()
			l.took()
			l.took()
			l.ended(first, false, limited(0))
			if wait := l.wait(); wait != want*time.Second {
				t.Errorf("shut for %s, want %ds", wait, want)
			}
			time.Sleep(l.wait())
			if l.wait() != 0 {
				t.Error("not open in time")
			}
			l.ended(second, false, limited(0))
			if l.wait() != 0 {
				t.Error("shut by an old answer")
			}
			time.Sleep(time.Second)
		}
	})
}

func TestLanePauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, refused := newLane(), work.Fail(work.ClassAuth, "401")
		began := time.Now()
		time.Sleep(time.Second)
		if paused, _ := l.ended(began, false, refused); !paused {
			t.Error("not paused")
		}
		if paused, _ := l.ended(began, false, refused); paused {
			t.Error("alerts twice")
		}
		if l.wait() != never || l.offer().Paused.Class != work.ClassAuth || !l.doubtful() {
			t.Errorf("waits %s, offers %+v", l.wait(), l.offer())
		}
		l.probed("", "1.0")
		if l.wait() != 0 {
			t.Error("no trial after a probe")
		}
		l.took()
		if l.wait() != never {
			t.Error("two trials")
		}
		l.ended(time.Now(), false, refused)
		l.probed("", "1.0")
		l.took()
		tried := time.Now()
		if _, opened := l.ended(tried, true, nil); !opened || l.wait() != 0 || l.offer().Paused != nil {
			t.Error("not open after an answer")
		}
		if !l.answeredSince(began) || l.answeredSince(tried) {
			t.Error("does not know when it was answered")
		}
	})
}

// One look that comes to nothing is not believed of a backend that was there.
func TestLaneDoubts(t *testing.T) {
	t.Parallel()
	l := newLane()
	if l.probed("timeout", ""); l.wait() != 0 || !l.doubtful() {
		t.Error("given up at once")
	}
	if changed := l.probed("timeout", ""); !changed || l.wait() != never || l.offer().Available {
		t.Error("not given up")
	}
	if changed := l.probed("", "1.0"); !changed || l.wait() != 0 || l.doubtful() {
		t.Error("not taken back")
	}
	l.ended(time.Now(), false, work.Fail(work.ClassInfra, "no such file"))
	if l.probed("gone", ""); l.wait() != never {
		t.Error("a run failed and the look too")
	}
	if first := (&lane{backend: newPuppet("mock")}); !first.probed("not installed", "") || first.wait() != never {
		t.Error("never there, and believed to be")
	}
}

// refusing is a backend without valid credentials.
func refusing() backend.Result {
	return backend.Result{Error: work.Fail(work.ClassAuth, "401: invalid key")}
}

// Refused credentials pause the backend: its units wait, those of another go
// on, and once one is answered all are.
func TestRefusedCredentialsPauseTheBackend(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other := newPuppet("other")
	w := h.start(func(o *Options) { o.Backends, o.Probe = append(o.Backends, other), time.Hour })
	first := h.submit(nil)
	h.begun().end <- refusing()
	u := h.waits(first)
	second := h.submit(nil)
	id := h.submit(func(s *work.Spec) { s.Backend = "other" })
	(<-other.started).end <- succeed("fine")
	h.becomes(id, work.Succeeded)
	if u.Failures != 0 || u.Error.Class != work.ClassAuth || len(h.puppet.started) != 0 {
		t.Errorf("unit %+v, error %v, %d runs begun", u, u.Error, len(h.puppet.started))
	}
	w.probe(t.Context(), everyLane)
	w.wake()
	run := h.begun()
	if len(h.puppet.started) != 0 {
		t.Error("more than one tries")
	}
	run.end <- succeed("mended")
	h.begun().end <- succeed("mended")
	h.becomes(first, work.Succeeded)
	h.becomes(second, work.Succeeded)
}

// waits waits until a unit's first run has ended and it is queued again.
func (h *house) waits(id uuid.UUID) work.Unit {
	h.t.Helper()
	var u work.Unit
	testkit.Eventually(h.t, "the unit waits", func() bool {
		u = h.unit(id)
		return u.State == work.Queued && u.Waits == 1
	})
	return u
}

// A unit that is refused although another was answered since fails: it is not
// the backend's matter.
func TestOwnFault(t *testing.T) {
	t.Parallel()
	l, before := newLane(), time.Now()
	w := &Worker{lanes: []*lane{l}}
	unit := func(class work.Class, due time.Time) *store.Claimed {
		return &store.Claimed{Unit: work.Unit{Spec: work.Spec{Backend: "mock", NotBefore: &due}, Error: work.Fail(class, "")}}
	}
	if w.ownFault(unit(work.ClassAuth, before)) {
		t.Error("nobody was answered")
	}
	l.ended(before.Add(time.Second), true, nil)
	if !w.ownFault(unit(work.ClassAuth, before)) || w.ownFault(unit(work.ClassInfra, before)) || w.ownFault(unit(work.ClassAuth, before.Add(time.Minute))) {
		t.Error("does not tell whose fault it is")
	}
}
