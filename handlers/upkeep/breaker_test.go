package upkeep

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// named is a backend that has a name.
type named string

func (n named) Name() string                  { return string(n) }
func (named) Available(context.Context) error { return nil }
func (named) Execute(context.Context, backend.Request, *transcript.Writer) (backend.Result, error) {
	return backend.Result{}, nil
}

func newBreaker() *Breaker {
	b := NewBreaker(named("mock"))
	b.Probed("", "1.0")
	return b
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
func TestBreakerKeepsUnderALimit(t *testing.T) {
	t.Parallel()
	for _, allowed := range []int{5, 10, 50} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, start := newBreaker(), time.Now()
				asked, left := map[int]int{}, 200 // requests by second; units
				for left > 0 {
					at, admitted := b.Admit("m")
					time.Sleep(time.Until(at))
					if !admitted {
						continue
					}
					began := time.Now()
					b.Began("m")
					second := int(time.Since(start) / time.Second)
					if asked[second]++; asked[second] > allowed {
						if second > 0 {
							t.Fatalf("%d requests in second %d, %d left", asked[second], second, left)
						}
						b.Ended("m", began, false, limited(3*time.Second))
					} else {
						left--
						b.Ended("m", began, true, nil)
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

// begins has a unit of a model begin when the breaker admits it, and returns when
// that was.
func (b *Breaker) begins(model string) time.Time {
	for {
		at, admitted := b.Admit(model)
		time.Sleep(time.Until(at))
		if admitted {
			b.Began(model)
			return at
		}
	}
}

// shutFor is for how long no unit of a model begins.
func (b *Breaker) shutFor(model string) time.Duration {
	if limit := b.Offer().LimitOf(model); limit != nil && limit.Until != nil {
		return time.Until(*limit.Until)
	}
	return 0
}

// A limit that holds for hours does not shut a model for hours: it may have been
// raised.
func TestBreakerTriesNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker()
		b.Ended("m", b.begins("m"), false, limited(10*time.Hour))
		if wait := b.shutFor("m"); wait != maxShut {
			t.Errorf("shut for %s", wait)
		}
		first := b.begins("m")
		if wait := b.begins("m").Sub(first); wait < time.Second {
			t.Errorf("%s between two units", wait)
		}
		b.Ended("m", time.Now(), true, nil)
		for range 3000 {
			b.begins("m")
		}
		if pace := b.models["m"].pace; pace != 0 {
			t.Errorf("still paced at %v a second", pace)
		}
		if b.Ended("m", time.Now(), true, nil); len(b.models) != 0 || b.Limited() {
			t.Errorf("still knows of %d limits", len(b.models))
		}
	})
}

// Limits of unknown length shut the model for longer each time; late answers to
// the same wave do not count again.
func TestBreakerStrikes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker()
		for _, want := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
			first, second := time.Now(), time.Now()
			b.Ended("m", first, false, limited(0))
			if wait := b.shutFor("m"); wait != want*time.Second {
				t.Errorf("shut for %s, want %ds", wait, want)
			}
			time.Sleep(b.shutFor("m"))
			if _, admitted := b.Admit("m"); !admitted {
				t.Error("not open in time")
			}
			b.Ended("m", second, false, limited(0))
			if b.shutFor("m") != 0 {
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
		b := newBreaker()
		if c := b.Ended("slow", time.Now(), false, limited(time.Minute)); !c.Limited {
			t.Error("does not report the limit")
		}
		if c := b.Ended("slow", time.Now(), false, limited(time.Minute)); c.Limited {
			t.Error("reports twice")
		}
		for _, model := range []string{"", "fast", "slow "} {
			if _, admitted := b.Admit(model); !admitted || b.Wait() != 0 {
				t.Errorf("model %q waits for another's limit", model)
			}
		}
		if _, admitted := b.Admit("slow"); admitted || b.shutFor("slow") != time.Minute {
			t.Error("the model that met the limit begins")
		}
		if o := b.Offer(); o.Paused != nil || len(o.Limits) != 1 || o.Limits[0].Message != "429" {
			t.Errorf("offers %+v", o)
		}
		whole := limited(time.Minute)
		whole.WholeAccount = true
		b.Ended("fast", time.Now(), false, whole)
		if b.Wait() != time.Minute || b.Offer().Paused == nil || b.Offer().LimitOf("fast") != nil {
			t.Errorf("waits %s, offers %+v", b.Wait(), b.Offer())
		}
	})
}

// Units that are sent away come again one after another, not all at once, and
// none later than another unit tries.
func TestSentAwayUnitsComeOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, start := newBreaker(), time.Now()
		b.Ended("m", start, false, limited(10*time.Second))
		seconds := map[int]int{}
		for range 1000 {
			at, admitted := b.Admit("m")
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
		b := newBreaker()
		for i := range 10_000 {
			b.Ended(fmt.Sprint("model ", i), time.Now(), false, limited(time.Minute))
		}
		if len(b.models) != maxModels+1 || len(b.Offer().Limits) != maxModels+1 {
			t.Errorf("%d limiters, %d shown", len(b.models), len(b.Offer().Limits))
		}
		if _, admitted := b.Admit("model 9999"); admitted {
			t.Error("a model beyond the bound has no limit")
		}
		time.Sleep(2 * time.Minute)
		b.Ended("new", time.Now(), false, limited(time.Minute))
		if b.models["new"] == nil || len(b.models) > maxModels+1 {
			t.Errorf("an open limiter makes no room: %d", len(b.models))
		}
	})
}

func TestBreakerPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, refused := newBreaker(), work.Fail(work.ClassAuth, "401")
		began := time.Now()
		time.Sleep(time.Second)
		if !b.Ended("", began, false, refused).Paused {
			t.Error("not paused")
		}
		if b.Ended("", began, false, refused).Paused {
			t.Error("alerts twice")
		}
		if b.Wait() != Never || b.Offer().Paused.Class != work.ClassAuth || !b.needsProbe() {
			t.Errorf("waits %s, offers %+v", b.Wait(), b.Offer())
		}
		b.Probed("", "1.0")
		if b.Wait() != 0 {
			t.Error("not half-open after a probe")
		}
		b.Took()
		if b.Wait() != Never {
			t.Error("two units try")
		}
		b.Ended("", time.Now(), false, refused)
		b.Probed("", "1.0")
		b.Took()
		tried := time.Now()
		if !b.Ended("", tried, true, nil).Resumed || b.Wait() != 0 || b.Offer().Paused != nil {
			t.Error("not open after an answer")
		}
		if !b.AnsweredSince(began) || b.AnsweredSince(tried) {
			t.Error("does not know when it was answered")
		}
	})
}

// One probe that finds nothing is not believed of a backend that was there.
func TestBreakerRechecks(t *testing.T) {
	t.Parallel()
	b := newBreaker()
	if b.Probed("timeout", ""); b.Wait() != 0 || !b.needsProbe() {
		t.Error("given up at once")
	}
	if changed := b.Probed("timeout", ""); !changed || b.Wait() != Never || b.Offer().Available {
		t.Error("not given up")
	}
	if changed := b.Probed("", "1.0"); !changed || b.Wait() != 0 || b.needsProbe() {
		t.Error("not taken back")
	}
	b.Ended("", time.Now(), false, work.Fail(work.ClassInfra, "no such file"))
	if b.Probed("gone", ""); b.Wait() != Never {
		t.Error("a run failed and the look too")
	}
	if first := NewBreaker(named("mock")); !first.Probed("not installed", "") || first.Wait() != Never {
		t.Error("never there, and believed to be")
	}
}

// A refusal of a run that began before the resume does not count; one of a later
// run does. The same resume counts once.
func TestBreakerResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, refused := newBreaker(), work.Fail(work.ClassAuth, "401")
		before, said := time.Now(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		b.Ended("", before, false, refused)
		time.Sleep(time.Second)
		if !b.resume(said) || b.Wait() != 0 {
			t.Error("not opened")
		}
		if b.Ended("", before, false, refused).Paused || b.Wait() != 0 {
			t.Error("shut by an old refusal")
		}
		if !b.Ended("", time.Now(), false, refused).Paused || b.Wait() != Never {
			t.Error("not shut by a new refusal")
		}
		if b.resume(said) || b.resume(said.Add(-time.Hour)) || b.Wait() != Never {
			t.Error("resumed by what was known")
		}
	})
}
