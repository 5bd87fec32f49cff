package handlers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"piecework/store"
)

// metrics count what a worker process does; names end in their unit.
type metrics struct {
	runs    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	cost    *prometheus.CounterVec
	paused  *prometheus.CounterVec
	limited *prometheus.CounterVec
	cache   *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	f := promauto.With(r)
	return metrics{
		runs: f.NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_runs_total", Help: "Runs that ended, by how.",
		}, []string{"backend", "status", "class"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "piecework_run_duration_seconds", Help: "From claim to recorded end of a run.",
			Buckets: prometheus.ExponentialBuckets(0.01, 3, 12),
		}, []string{"backend"}),
		paused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_backend_pauses_total", Help: "Times a backend was paused because it refuses every unit.",
		}, []string{"backend", "class"}),
		limited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_backend_rate_limits_total", Help: "Times a model of a backend, or its account, was shut because a rate limit was met.",
		}, []string{"backend"}),
		cache: f.NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_cache_lookups_total", Help: "Runs that looked for an earlier result, by what came of it.",
		}, []string{"backend", "result"}),
		cost: f.NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_cost_usd_total", Help: "What runs have cost, as far as backends tell.",
		}, []string{"backend"}),
	}
}

func (m metrics) finished(backend string, f store.Finish, v store.Verdict, took time.Duration) {
	status, class := string(f.Status), ""
	if v == store.Fenced {
		status = "fenced"
	}
	if f.Error != nil {
		class = string(f.Error.Class)
	}
	m.runs.WithLabelValues(backend, status, class).Inc()
	m.seconds.WithLabelValues(backend).Observe(took.Seconds())
	if f.Cache != "" {
		m.cache.WithLabelValues(backend, string(f.Cache)).Inc()
	}
	if f.TotalCostUSD != nil {
		m.cost.WithLabelValues(backend).Add(*f.TotalCostUSD)
	}
}
