package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

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

// A request ends by itself in time, whatever it waits for: the limits of each of its
// statements may add up to more.
func TestPatienceEndsARequest(t *testing.T) {
	t.Parallel()
	a := &API{answerLimit: time.Millisecond}
	for name, body := range map[string]io.Reader{"no body": nil, "body": strings.NewReader("{}")} {
		c := echo.New().NewContext(httptest.NewRequest(http.MethodPost, "/", body), httptest.NewRecorder())
		err := a.boundAnswer(func(c echo.Context) error {
			_, _ = io.Copy(io.Discard, c.Request().Body)
			ctx := c.Request().Context()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			return context.Cause(ctx)
		})(c)
		if !errors.Is(err, errNoAnswer) {
			t.Fatalf("%s: error %v", name, err)
		}
	}
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
