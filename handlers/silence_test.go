package handlers

import (
	"testing"
	"time"

	"piecework/handlers/upkeep"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// behind is another worker process, which reaches Postgres through a
// proxy.
func (h *fixture) behind(database string, change func(*Options)) (*worker, *testkit.Proxy) {
	h.t.Helper()
	proxy, url := testkit.PostgresProxy(h.t, database)
	s, err := store.Open(h.t.Context(), url, 20)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.Close() })
	w := h.start(func(o *Options) {
		o.Store = s
		if change != nil {
			change(o)
		}
	})
	h.t.Cleanup(proxy.Release) // before it is stopped
	return w, proxy
}

// A worker process that has lost Postgres and keeps Redis takes no units, and
// what it took another gets at once: nobody waits for its lease or for the next
// look at the messages.
func TestCutOffWorkerProcessTakesNothing(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, migrate)
	h := newFixtureOn(t, database)
	cut, proxy := h.behind(database, func(o *Options) { o.Lease = time.Hour })
	proxy.Hold()
	testkit.Eventually(t, "it notices", cut.heartbeat.CutOff)
	if wait := cut.wait("default", "mock"); wait != upkeep.Never {
		t.Errorf("it takes units after %v", wait)
	}
	h.start(func(o *Options) { o.Slots = 8 })
	for range 8 {
		id := h.submit(nil)
		h.begun().end <- succeed("")
		h.becomes(id, work.Succeeded)
	}
	proxy.Release()
	testkit.Eventually(t, "it takes units again", func() bool { return cut.wait("default", "mock") != upkeep.Never })
}

// Connections that carry nothing any more cost a worker process no run, and it
// goes on by itself.
func TestWorkerProcessWithHalfOpenConnections(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, migrate)
	h := newFixtureOn(t, database)
	_, proxy := h.behind(database, func(o *Options) { o.Lease, o.Beat = 2*testkit.Patience, time.Second })
	id := h.submit(nil)
	run := h.begun()
	proxy.Hole()
	next := h.submit(nil)
	second := h.begun()
	run.end <- succeed("")
	second.end <- succeed("")
	h.becomes(id, work.Succeeded)
	h.becomes(next, work.Succeeded)
	if u := h.unit(id); u.RunCount != 1 || u.Losses != 0 {
		t.Errorf("%d runs, %d losses", u.RunCount, u.Losses)
	}
}

// SIGTERM ends a worker process whose Postgres is silent; what it finished is on
// disk.
func TestShutdownBesideASilentPostgres(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, migrate)
	h := newFixtureOn(t, database)
	w, proxy := h.behind(database, func(o *Options) { o.Lease = 2 * testkit.Patience })
	h.submit(nil)
	run := h.begun()
	proxy.Hold()
	w.stop()
	<-run.ctx.Done()
	run.end <- succeed("")
	select {
	case <-w.done:
	case <-time.After(testkit.Patience):
		t.Fatal("it does not end")
	}
}

// Nor does a silent Redis keep it.
func TestShutdownBesideASilentRedis(t *testing.T) {
	t.Parallel()
	server := testkit.StartRedis(t)
	proxy, url := testkit.RedisProxy(t, server.URL)
	h := newFixtureAt(t, testkit.DB(t, migrate), url)
	w := h.start(nil)
	h.submit(nil)
	run := h.begun()
	proxy.Hold()
	t.Cleanup(proxy.Release)
	testkit.Eventually(t, "redis is known to be away", func() bool { return !h.queue.Up() })
	w.stop()
	<-run.ctx.Done()
	run.end <- succeed("")
	select {
	case <-w.done:
	case <-time.After(testkit.Patience / 2): // Asynq would ask on for longer
		t.Fatal("it does not end")
	}
}
