package api

import (
	"net/http"
	"testing"
	"time"

	"piecework/internal/testkit"
)

// A ledger that does not answer keeps no caller waiting, and readiness says so.
// When it answers again, so does the API.
func TestSilentPostgres(t *testing.T) {
	t.Parallel()
	proxy, url := testkit.PostgresProxy(t, testkit.DB(t, migrate))
	f := openFront(t, url, "redis://127.0.0.1:1/0", nil)
	f.ready(200)
	proxy.Hold()
	f.answerLimit = 100 * time.Millisecond // not before: what must succeed may take longer
	f.post("/work-units", mock("")).refused(503, "", "cannot be reached")
	f.get("/work-units").refused(503, "", "cannot be reached")
	if r := f.ready(503); r.Checks["postgres"].OK {
		t.Errorf("%+v", r)
	}
	proxy.Release()
	f.answerLimit = testkit.Patience
	testkit.Eventually(t, "ready again", func() bool { return f.get("/readyz").status == http.StatusOK })
	f.post("/work-units", mock("")).is(202)
}

// Who asks to be held is held for longer than anybody else waits.
func TestHeldAnswersAreHeld(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	f.answerLimit = 2 * time.Second
	f.get("/work-units/" + id.String() + "?wait=3s").is(200)
}

// The pages of Asynqmon ask Redis, which may say nothing.
func TestAsynqmonBesideASilentRedis(t *testing.T) {
	t.Parallel()
	f := newFront(t) // its Redis is away
	_ = f.Queue.Probe(t.Context())
	f.get("/asynqmon/api/queues").refused(503, "", "redis cannot be reached")
}
