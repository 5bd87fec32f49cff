package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"piecework/api/ops"
	"piecework/internal/process"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

type readiness struct {
	Status string               `json:"status"`
	Checks map[string]ops.Check `json:"checks"`
}

func (f *front) ready(status int) readiness {
	f.t.Helper()
	var r readiness
	f.get("/readyz").is(status).into(&r)
	return r
}

func TestHealthz(t *testing.T) {
	t.Parallel()
	if body := newFront(t).get("/healthz").is(200).fields(); len(body) != 1 || body["status"] != "ok" {
		t.Errorf("%v", body)
	}
}

func TestReadyWithEverything(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
	f.crew(work.Offer{Name: "mock", Available: true}, work.Offer{Name: "claude", Detail: "no login"})
	if _, known := f.ready(200).Checks["containment"]; known {
		t.Error("a house without a worker process knows how agents are held together")
	}
	f.ops.Containment = process.Subreaper
	r := f.ready(200)
	if c := r.Checks["containment"]; !c.OK || !strings.HasPrefix(c.Detail, "subreaper: ") {
		t.Errorf("%+v", c)
	}
	if r.Status != "ready" || !r.Checks["postgres"].OK || !r.Checks["redis"].OK || !r.Checks["workers"].OK || !r.Checks["backends"].OK {
		t.Errorf("%+v", r)
	}
	if c := r.Checks["backend claude"]; c.OK || c.Detail != "no login" {
		t.Errorf("%+v", c)
	}
}

// Without Redis or a worker process units are accepted all the same.
func TestReadyWithoutRedisAndWorkers(t *testing.T) {
	t.Parallel()
	r := newFront(t).ready(200)
	if r.Status != "ready" || !r.Checks["postgres"].OK || r.Checks["redis"].OK || r.Checks["workers"].OK || r.Checks["redis"].Detail == "" {
		t.Errorf("%+v", r)
	}
}

func TestNotReadyWithoutPostgres(t *testing.T) {
	t.Parallel()
	server := testkit.OwnPostgres(t, migrate)
	f := openFront(t, server.URL, nowhere, nil)
	server.Kill()
	if r := f.ready(503); r.Status != "not ready" || r.Checks["postgres"].OK {
		t.Errorf("%+v", r)
	}
	f.get("/healthz").is(200)
	f.get("/metrics").is(200)
	worker := httptest.NewServer(ops.Health(f.Registry, f.Store, f.Queue, process.Subreaper, func() string { return "" }))
	defer worker.Close()
	for path, status := range map[string]int{"/healthz": 200, "/metrics": 200, "/readyz": 503, "/work-units": 404} {
		resp, err := http.Get(worker.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("worker process %s: %d", path, resp.StatusCode)
		}
	}
}

func TestNotReadyWithoutSchema(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, nil), nowhere, nil)
	if r := f.ready(503); r.Checks["postgres"].OK {
		t.Errorf("%+v", r)
	}
}

// A worker process that takes nothing says why: in the API's readiness, on the
// page, and by its own.
func TestReadinessTellsOfAFullDisk(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.crew(work.Offer{Name: "mock"})
	const why = "the disk of /data is full: free some space"
	if err := f.Store.Processes.Block(t.Context(), id, why); err != nil {
		t.Fatal(err)
	}
	r := f.ready(200)
	if c := r.Checks["worker process "+id.String()]; c.OK || !strings.Contains(c.Detail, why) || r.Checks["workers"].OK {
		t.Errorf("%+v", r)
	}
	if page := string(f.get("/worker-processes").is(200).body); !strings.Contains(page, why) || !strings.Contains(page, "takes no units") {
		t.Errorf("the page does not say so: %s", page)
	}
	worker := httptest.NewServer(ops.Health(f.Registry, f.Store, f.Queue, process.Subreaper, func() string { return why }))
	defer worker.Close()
	resp, err := http.Get(worker.URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("its own readiness: %d", resp.StatusCode)
	}
}
