package ops

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"piecework/internal/process"
	"piecework/jobs/queue"
	"piecework/store"
)

type healthAnswer struct {
	Body struct {
		Status string `json:"status" enum:"ok"`
	} `nameHint:"Health"`
}

func (o *Operations) Healthz(context.Context, *struct{}) (*healthAnswer, error) {
	var h healthAnswer
	h.Body.Status = "ok"
	return &h, nil
}

// Check is one thing the server stands on.
type Check struct {
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

type readyAnswer struct {
	Status int
	Body   struct {
		Status string           `json:"status" enum:"ready,not ready"`
		Checks map[string]Check `json:"checks"`
	} `nameHint:"Readiness"`
}

// Readyz answers 503 only for what stops units from being accepted. Without
// Redis or a worker process they are accepted all the same, and wait.
func (o *Operations) Readyz(ctx context.Context, _ *struct{}) (*readyAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var r readyAnswer
	r.Body.Checks = map[string]Check{"postgres": o.checkPostgres(ctx), "redis": o.checkRedis(ctx)}
	if r.Body.Checks["postgres"].OK {
		o.checkWorkers(ctx, r.Body.Checks)
	}
	if o.Containment != "" {
		r.Body.Checks["containment"] = Check{OK: o.Containment != process.MarksOnly, Detail: o.Containment.String()}
	}
	r.Status, r.Body.Status = http.StatusOK, "ready"
	if !r.Body.Checks["postgres"].OK {
		r.Status, r.Body.Status = http.StatusServiceUnavailable, "not ready"
	}
	return &r, nil
}

func (o *Operations) checkPostgres(ctx context.Context) Check {
	if err := o.store.Writable(ctx); err != nil {
		return Check{Detail: "takes no writes, or does not answer in time; units are refused until it does"}
	}
	behind, err := o.store.Behind(ctx)
	if err != nil {
		return Check{Detail: "its schema version cannot be read"}
	}
	if behind > 0 {
		return Check{Detail: fmt.Sprintf("%d migrations behind: run `piecework migrate`", behind)}
	}
	return Check{OK: true, Detail: "reachable, schema up to date"}
}

func (o *Operations) checkRedis(ctx context.Context) Check {
	if err := o.bell.Probe(ctx); err != nil {
		return Check{Detail: "takes no writes (" + o.bell.Layout() + "); units are accepted, and worker processes claim them from Postgres"}
	}
	return Check{OK: true, Detail: "takes writes (" + o.bell.Layout() + ")"}
}

func (o *Operations) checkWorkers(ctx context.Context, checks map[string]Check) {
	processes, err := o.store.Processes.List(ctx)
	var pauses []store.Pause
	if err == nil {
		pauses, err = o.store.Pauses.List(ctx)
	}
	if err != nil {
		checks["workers"] = Check{Detail: "cannot be listed"}
		return
	}
	live, slots := 0, 0
	for _, p := range processes {
		switch {
		case p.Live && p.Blocked != "":
			checks["worker process "+p.ID.String()] = Check{Detail: fmt.Sprintf("on %s takes no units: %s", p.Hostname, p.Blocked)}
		case p.Live:
			live, slots = live+1, slots+p.Slots
		}
	}
	checks["workers"] = Check{OK: live > 0, Detail: fmt.Sprintf("%d worker processes with %d slots", live, slots)}
	var has []string
	for _, b := range ViewBackends(processes, pauses) {
		switch b.Status {
		case "available":
			has = append(has, b.Name)
		case "paused", "unavailable":
			checks["backend "+b.Name] = Check{Detail: b.Trouble()}
		}
	}
	checks["backends"] = Check{OK: len(has) > 0, Detail: strings.Join(has, ", ")}
}

// Trouble is why the backend does not run: an operator's word, or the first of
// a worker process.
func (v *BackendView) Trouble() string {
	if v.Paused != nil {
		return v.Paused.Words()
	}
	for _, p := range v.Processes {
		if p.Paused != nil {
			return fmt.Sprintf("paused: %s: %s", p.Paused.Class, p.Paused.Message)
		}
	}
	return v.Processes[0].Detail
}

// Health serves the health and the metrics of a worker process without an API.
//
// Blocked says why the worker process takes no units at all; empty: it takes them.
func Health(registry *prometheus.Registry, ledger *store.Store, bell *queue.Client, containment process.Containment,
	blocked func() string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"ok"}`) // the prober has gone away
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		if err := ledger.Writable(ctx); err != nil {
			http.Error(w, "postgres takes no writes, or does not answer in time; no unit is taken until it does", http.StatusServiceUnavailable)
			return
		}
		if why := blocked(); why != "" {
			http.Error(w, "takes no units: "+why, http.StatusServiceUnavailable)
			return
		}
		redis := "takes writes"
		if !bell.Up() {
			redis = "takes no writes, so units are claimed from postgres"
		}
		_, _ = fmt.Fprintf(w, "ready\nredis: %s (%s)\ncontainment: %v\n", redis, bell.Layout(), containment) // as above
	})
	return mux
}
