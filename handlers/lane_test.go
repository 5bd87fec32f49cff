package handlers

import (
	"context"
	"fmt"
	"sync/atomic"
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
					at, admitted := l.admit("m")
					time.Sleep(time.Until(at))
					if !admitted {
						continue
					}
					began := time.Now()
					l.began("m")
					second := int(time.Since(start) / time.Second)
					if asked[second]++; asked[second] > allowed {
						if second > 0 {
							t.Fatalf("%d requests in second %d, %d left", asked[second], second, left)
						}
						l.ended("m", began, false, limited(3*time.Second))
					} else {
						left--
						l.ended("m", began, true, nil)
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

// begins has a unit of a model begin when the lane admits it, and returns when
// that was.
func (l *lane) begins(model string) time.Time {
	for {
		at, admitted := l.admit(model)
		time.Sleep(time.Until(at))
		if admitted {
			l.began(model)
			return at
		}
	}
}

// shutFor tells for how long no unit of a model begins.
func (l *lane) shutFor(model string) time.Duration {
	if limit := l.offer().LimitOf(model); limit != nil && limit.Until != nil {
		return time.Until(*limit.Until)
	}
	return 0
}

// A limit that holds for hours does not shut a model for hours: it may have been
// raised.
func TestLaneTriesNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane()
		l.ended("m", l.begins("m"), false, limited(10*time.Hour))
		if wait := l.shutFor("m"); wait != maxShut {
			t.Errorf("shut for %s", wait)
		}
		first := l.begins("m")
		if wait := l.begins("m").Sub(first); wait < time.Second {
			t.Errorf("%s between two units", wait)
		}
		l.ended("m", time.Now(), true, nil)
		for range 3000 {
			l.begins("m")
		}
		if pace := l.models["m"].pace; pace != 0 {
			t.Errorf("still paced at %v a second", pace)
		}
		if l.ended("m", time.Now(), true, nil); len(l.models) != 0 || l.limited() {
			t.Errorf("still knows of %d limits", len(l.models))
		}
	})
}

// Limits of unknown length shut the model for longer each time; late answers to
// the same wave do not count again.
func TestLaneStrikes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane()
		for _, want := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
			first, second := time.Now(), time.Now()
			l.ended("m", first, false, limited(0))
			if wait := l.shutFor("m"); wait != want*time.Second {
				t.Errorf("shut for %s, want %ds", wait, want)
			}
			time.Sleep(l.shutFor("m"))
			if _, admitted := l.admit("m"); !admitted {
				t.Error("not open in time")
			}
			l.ended("m", second, false, limited(0))
			if l.shutFor("m") != 0 {
				t.Error("shut by an old answer")
			}
			time.Sleep(time.Second)
		}
	})
}

// A limit shuts the model that met it and no other; one of the account shuts
// all.
func TestLimitOfOneModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane()
		if c := l.ended("slow", time.Now(), false, limited(time.Minute)); !c.limited {
			t.Error("does not tell of the limit")
		}
		if c := l.ended("slow", time.Now(), false, limited(time.Minute)); c.limited {
			t.Error("tells twice")
		}
		for _, model := range []string{"", "fast", "slow "} {
			if _, admitted := l.admit(model); !admitted || l.wait() != 0 {
				t.Errorf("model %q waits for another's limit", model)
			}
		}
		if _, admitted := l.admit("slow"); admitted || l.shutFor("slow") != time.Minute {
			t.Error("the model that met the limit begins")
		}
		if o := l.offer(); o.Paused != nil || len(o.Limits) != 1 || o.Limits[0].Message != "429" {
			t.Errorf("offers %+v", o)
		}
		whole := limited(time.Minute)
		whole.WholeAccount = true
		l.ended("fast", time.Now(), false, whole)
		if l.wait() != time.Minute || l.offer().Paused == nil || l.offer().LimitOf("fast") != nil {
			t.Errorf("waits %s, offers %+v", l.wait(), l.offer())
		}
	})
}

// Units that are sent away come again one after another, not all at once, and
// none later than another unit tries.
func TestSentAwayUnitsComeOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, start := newLane(), time.Now()
		l.ended("m", start, false, limited(10*time.Second))
		seconds := map[int]int{}
		for range 1000 {
			at, admitted := l.admit("m")
			if admitted || at.Sub(start) < 10*time.Second || at.Sub(start) > maxShut {
				t.Fatalf("comes again after %s", at.Sub(start))
			}
			seconds[int(at.Sub(start)/time.Second)]++
		}
		if seconds[10] > 2 || seconds[100] > 2 {
			t.Errorf("come at once: %v", seconds)
		}
	})
}

// Callers choose the names of models.
func TestLimitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane()
		for i := range 10_000 {
			l.ended(fmt.Sprint("model ", i), time.Now(), false, limited(time.Minute))
		}
		if len(l.models) != maxModels+1 || len(l.offer().Limits) != maxModels+1 {
			t.Errorf("%d limiters, %d told", len(l.models), len(l.offer().Limits))
		}
		if _, admitted := l.admit("model 9999"); admitted {
			t.Error("a model beyond the bound has no limit")
		}
		time.Sleep(2 * time.Minute)
		l.ended("new", time.Now(), false, limited(time.Minute))
		if l.models["new"] == nil || len(l.models) > maxModels+1 {
			t.Errorf("an open limiter makes no room: %d", len(l.models))
		}
	})
}

func TestLanePauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, refused := newLane(), work.Fail(work.ClassAuth, "401")
		began := time.Now()
		time.Sleep(time.Second)
		if !l.ended("", began, false, refused).paused {
			t.Error("not paused")
		}
		if l.ended("", began, false, refused).paused {
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
		l.ended("", time.Now(), false, refused)
		l.probed("", "1.0")
		l.took()
		tried := time.Now()
		if !l.ended("", tried, true, nil).opened || l.wait() != 0 || l.offer().Paused != nil {
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
	l.ended("", time.Now(), false, work.Fail(work.ClassInfra, "no such file"))
	if l.probed("gone", ""); l.wait() != never {
		t.Error("a run failed and the look too")
	}
	if first := (&lane{backend: newPuppet("mock")}); !first.probed("not installed", "") || first.wait() != never {
		t.Error("never there, and believed to be")
	}
}

// slowPuppet says that it is there when the test lets it.
type slowPuppet struct {
	*puppet
	tell   chan struct{}
	gaveUp atomic.Bool // it was waited for until its time was over
}

func (s *slowPuppet) Available(ctx context.Context) error {
	select {
	case <-s.tell:
		return nil
	case <-ctx.Done():
		s.gaveUp.Store(true)
		return ctx.Err()
	}
}

// The start of a worker process does not wait for an agent that takes long to
// say whether it is there: the other backends' units run meanwhile, its own wait.
func TestStartsWithoutASlowBackend(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	slow := &slowPuppet{puppet: newPuppet("slow"), tell: make(chan struct{})}
	h.start(func(o *Options) { o.Backends = append(o.Backends, slow) })
	if slow.gaveUp.Load() {
		t.Fatal("the start waited for it as long as a look may take")
	}
	waits := h.submit(func(s *work.Spec) { s.Backend = "slow" })
	id := h.submit(nil)
	h.begun().end <- succeed("fine")
	h.becomes(id, work.Succeeded)
	if u := h.unit(waits); u.State != work.Queued || len(slow.started) != 0 {
		t.Errorf("unit of a backend that nobody has looked at: %s, %d runs begun", u.State, len(slow.started))
	}
	close(slow.tell)
	(<-slow.started).end <- succeed("fine")
	h.becomes(waits, work.Succeeded)
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
	l.ended("", before.Add(time.Second), true, nil)
	if !w.ownFault(unit(work.ClassAuth, before)) || w.ownFault(unit(work.ClassInfra, before)) || w.ownFault(unit(work.ClassAuth, before.Add(time.Minute))) {
		t.Error("does not tell whose fault it is")
	}
}
