package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/internal/strictjson"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

// Names may have dots and slashes.
func TestPointersOfManyFaults(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	body := mock(`,"a.b":1,"max_retries":-1,"c.d.e":2,"zz":3,"model":4,"x/y":5`)
	p := f.post("/work-units", body).refused(422, "#/a.b", `a.b: there is no field "a.b"`)
	var got []string
	for _, e := range p.Errors {
		got = append(got, e.Pointer)
	}
	want := []string{"#/a.b", "#/c.d.e", "#/max_retries", "#/model", "#/x~1y", "#/zz"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestProblemsAreWellFormed(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		work.ErrNotFound, fmt.Errorf("%w: over", work.ErrConflict), work.Invalidf("#/x", "no"), fmt.Errorf("boom"),
		&work.Unavailable{What: "postgres", Err: fmt.Errorf("gone")}, problem.New(413, "large"),
	} {
		p := problem.Of(fmt.Errorf("wrapped: %w", err))
		text, encodeErr := json.Marshal(p)
		if encodeErr != nil || p.Title != http.StatusText(p.Status) || p.Type != "about:blank" || p.Detail == "" ||
			strings.Contains(string(text), "wrapped") || strings.Contains(string(text), "null") {
			t.Errorf("%v: %s", err, text)
		}
	}
}

func TestHumaSpeaksProblem(t *testing.T) {
	t.Parallel()
	useProblems()
	p, ok := huma.Error403Forbidden("no entry").(*problem.Problem)
	if !ok || p.Status != 403 || p.Detail != "no entry" || p.ContentType("application/json") != "application/problem+json" {
		t.Errorf("%#v", p)
	}
}

// A caller who hangs up is no failure of ours.
func TestCallerGoesAwayWhileWaiting(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", f.url+"/work-units/"+id.String()+"?wait=60s", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	f.untilWatched(id)
	cancel()
	<-done
	gone := `piecework_http_request_duration_seconds_count{method="GET",route="/work-units/:id",status="499"} 1`
	testkit.Eventually(t, "the request is counted as given up", func() bool {
		return strings.Contains(string(f.get("/metrics").body), gone)
	})
	if log := f.log.String(); strings.Contains(log, "ERROR") {
		t.Errorf("logged as ours: %s", log)
	}
}

func TestPostgresAway(t *testing.T) {
	t.Parallel()
	server := testkit.OwnPostgres(t, migrate)
	f := openFront(t, server.URL, nowhere, nil)
	before := f.submit(mock(""))
	server.Kill()
	key := []string{"Idempotency-Key", "away"}
	for name, a := range map[string]*answer{
		"submit": f.post("/work-units", mock(""), key...), "list": f.get("/work-units"), "read": f.get("/work-units/" + before.String()),
		"cancel": f.post("/work-units/"+before.String()+"/cancel", ""), "retry": f.post("/work-units/"+before.String()+"/retry", ""),
		"runs": f.get("/runs"), "page": f.get("/"), "transcript": f.get("/runs/" + uuid.NewString() + "/transcript"),
	} {
		p := a.refused(503, "", "Idempotency-Key")
		if a.header.Get("Retry-After") == "" || strings.Contains(p.Detail, "socket") {
			t.Errorf("%s: Retry-After %q, detail %q", name, a.header.Get("Retry-After"), p.Detail)
		}
	}
	server.Start()
	testkit.Eventually(t, "the list is back", func() bool { return f.get("/work-units").status == 200 })
	if ids := f.listed("/work-units"); len(ids) != 1 || ids[0] != before.String() {
		t.Errorf("half-written: %v", ids)
	}
	f.submit(mock(""), key...) // the key is still free
}

// A server that dies among many requests leaves every acknowledged unit, and
// no key that names nothing.
func TestPostgresDiesAmongRequests(t *testing.T) {
	t.Parallel()
	server := testkit.OwnPostgres(t, migrate)
	f := openFront(t, server.URL, nowhere, nil)
	var mu sync.Mutex
	acked := map[string]string{} // key → id
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("%d-%d", i, n)
				a, err := f.try("POST", "/work-units", mock(""), "Idempotency-Key", key)
				if err != nil || a.status != 202 {
					return
				}
				mu.Lock()
				acked[key] = a.fields()["id"].(string)
				mu.Unlock()
			}
		})
	}
	testkit.Eventually(t, "some are accepted", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(acked) > 20
	})
	server.Kill()
	callers.Wait()
	server.Start()
	testkit.Eventually(t, "the list is back", func() bool { return f.get("/work-units").status == 200 })
	for key, id := range acked {
		a := f.post("/work-units", mock(""), "Idempotency-Key", key).is(202)
		if a.fields()["id"] != id || a.header.Get("Idempotent-Replayed") != "true" {
			t.Fatalf("key %s: acknowledged as %s, now %s", key, id, a.body)
		}
	}
}

// A small body with many faults costs what a small body costs.
func TestManyFaultsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	p := f.post("/batches", `{"units":[`+strings.Repeat("1,", 7999)+`1]}`).refused(422, "#/units/0", "the first 100 of 8000 errors are shown")
	if len(p.Errors) != strictjson.MaxShown {
		t.Errorf("%d errors in the answer", len(p.Errors))
	}
}
