package store

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func cacheKey(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return sum[:]
}

func keptAs(name string) func(*Finish) {
	return func(f *Finish) { f.Cache, f.CacheKey, f.Model = work.CacheMiss, cacheKey(name), "m" }
}

func (l *fixture) cached(name string, ttl time.Duration) *Cached {
	l.t.Helper()
	c, err := l.Runs.Cached(l.t.Context(), work.DefaultTenant, cacheKey(name), ttl)
	l.must(err)
	return c
}

func TestResultIsKeptAndTakenOver(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	asks := func(n *NewUnit) { n.CacheTTL = 60 }
	first := l.run(asks)
	if first.CacheTTL != 60 || l.cached("a", time.Minute) != nil {
		t.Errorf("claimed %+v", first)
	}
	l.end(ending(first, work.Succeeded, keptAs("a")), Recorded)
	l.end(ending(first, work.Succeeded, keptAs("b")), Recorded) // a repeat changes nothing
	if u := l.unit(first.ID); u.Cache != work.CacheMiss || u.CachedFrom != nil || u.CacheTTL != 60 {
		t.Errorf("unit %+v", u)
	}
	c := l.cached("a", time.Minute)
	if c == nil || c.RunID != first.RunID || c.Result != "the answer" || c.Model != "m" || !c.CompletedAt.Equal(*l.theRun(first.RunID).CompletedAt) {
		t.Errorf("cached %+v", c)
	}
	if l.cached("b", time.Minute) != nil {
		t.Error("the repeat was kept")
	}
	if c, err := l.Runs.Cached(t.Context(), "another", cacheKey("a"), time.Minute); c != nil || err != nil {
		t.Errorf("another tenant sees %v, %v", c, err)
	}

	second := l.run(asks)
	l.end(ending(second, work.Succeeded, func(f *Finish) { f.Cache, f.CachedFrom, f.TotalCostUSD = work.CacheHit, &c.RunID, new(0.0) }),
		Recorded)
	units, _, err := l.Units.List(t.Context(), UnitFilter{Tenant: work.DefaultTenant})
	l.must(err)
	for _, u := range []work.Unit{l.unit(second.ID), units[0]} {
		if u.ID != second.ID || u.Cache != work.CacheHit || *u.CachedFrom != first.RunID || u.Known() != 0 {
			t.Errorf("unit %+v", u)
		}
	}
	if c := l.cached("a", time.Minute); c.RunID != first.RunID {
		t.Error("a result that was taken over is young again")
	}

	third := l.run(asks)
	l.end(ending(third, work.Succeeded, keptAs("a")), Recorded)
	if c := l.cached("a", time.Minute); c.RunID != third.RunID {
		t.Error("the newest run is not the one that is kept")
	}
	l.exec(`UPDATE result_cache SET created_at = created_at - interval '1 hour'`)
	if l.cached("a", 59*time.Minute) != nil || l.cached("a", 61*time.Minute) == nil {
		t.Error("its age is not heeded")
	}
	l.exec(`DELETE FROM work_units WHERE id = $1`, third.ID)
	if l.cached("a", 24*time.Hour) != nil {
		t.Error("the result of a unit that is gone is found")
	}
}

func TestWhatIsNotKept(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	asks := func(n *NewUnit) { n.CacheTTL = 60 }
	l.end(ending(l.run(asks), work.Failed, keptAs("failed")), Recorded)
	l.end(ending(l.run(asks), work.Queued, keptAs("queued"), func(f *Finish) { f.Delay = time.Hour }), Recorded)
	lost := l.run(asks)
	l.lose(lost)
	l.end(ending(lost, work.Succeeded, keptAs("fenced")), Fenced)
	if n := get[int](l, `SELECT count(*) FROM result_cache`); n != 0 {
		t.Errorf("%d results are kept", n)
	}
	if _, _, err := l.Units.Accept(t.Context(), newUnit(asks, func(n *NewUnit) { n.WorkingDirectory = "docs:sub" })); err == nil {
		t.Error("a unit with a directory and a cache was accepted")
	}
}

// What a unit looked for is forgotten when it is to run again.
func TestRetryForgetsTheLook(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run(func(n *NewUnit) { n.CacheTTL = 60 })
	l.end(ending(c, work.Queued, keptAs("a")), Recorded)
	if u := l.unit(c.ID); u.Cache != "" {
		t.Errorf("cache %q before its end", u.Cache)
	}
	c = l.take(c.ID, l.process)
	l.end(ending(c, work.Failed, keptAs("a")), Recorded)
	if u := l.unit(c.ID); u.Cache != work.CacheMiss {
		t.Errorf("cache %q at its end", u.Cache)
	}
	u, err := l.Units.Retry(t.Context(), work.DefaultTenant, c.ID, Changes{})
	if err != nil || u.Cache != "" || u.CacheTTL != 60 {
		t.Errorf("%+v, %v", u, err)
	}
}

// One statement may bring several results of one key, and two processes the
// same keys in another order.
func TestManyResultsOfOneKeyAtOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	done := make(chan error)
	for p := range 2 {
		rows := make([]Finish, 30)
		for i := range rows {
			name := fmt.Sprint(i % 10)
			if p == 1 {
				name = fmt.Sprint(9 - i%10)
			}
			rows[i] = ending(l.run(), work.Succeeded, keptAs(name))
		}
		go func() {
			_, err := l.Runs.finishAll(t.Context(), rows)
			done <- err
		}()
	}
	l.must(<-done)
	l.must(<-done)
	if n := get[int](l, `SELECT count(*) FROM result_cache`); n != 10 {
		t.Errorf("%d results are kept", n)
	}
}

// The files of a result that is taken over are the first run's. When they are
// removed in the same moment, the finish must not bring them back.
func TestFilesOfATakenOverResult(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	asks := func(n *NewUnit) { n.CacheTTL = 60 }
	first, id := l.run(asks), uuid.Must(uuid.NewV7())
	l.must(l.Files.ExpectBlobs(t.Context(), []uuid.UUID{id}))
	l.end(ending(first, work.Succeeded, keptAs("a"), func(f *Finish) {
		f.OutputFiles = []work.OutputFile{{ID: &id, Name: "a", Size: 3, MediaType: "text/plain", SHA256: aSum}}
	}), Recorded)
	c := l.cached("a", time.Minute)
	if len(c.OutputFiles) != 1 || *c.OutputFiles[0].ID != id {
		t.Fatalf("files %+v", c.OutputFiles)
	}
	l.must(l.Files.Delete(t.Context(), work.DefaultTenant, id))
	if l.cached("a", time.Minute) != nil {
		t.Error("a result is found whose file is gone")
	}
	second := l.run(asks)
	l.end(ending(second, work.Succeeded, func(f *Finish) {
		f.Cache, f.CachedFrom, f.OutputFiles = work.CacheHit, &c.RunID, c.OutputFiles
	}), Recorded)
	if n := l.strays(); n != 1 || get[int](l, `SELECT count(*) FROM files`) != 0 {
		t.Errorf("%d strays: the deleted file is there again", n)
	}
}

func TestOldResultsAreForgotten(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	old, young := l.run(), l.run()
	l.end(ending(old, work.Succeeded, keptAs("old")), Recorded)
	l.end(ending(young, work.Succeeded, keptAs("young")), Recorded)
	l.exec(`UPDATE result_cache SET created_at = created_at - $2 * interval '1 second' WHERE run_id = $1`, old.RunID, float64(work.MaxCacheTTL))
	_, err := l.Retention.PruneCache(t.Context(), 10)
	l.must(err)
	if l.cached("old", 1e6*time.Hour) != nil || l.cached("young", time.Minute) == nil {
		t.Error("not just the old result is gone")
	}
	l.theRun(old.RunID)
}
