// Package api is the front door: HTTP in, work accepted, state and
// transcripts out. It runs no unit. This file has the order of the middleware and the
// routes of the JSON API; pages, webhooks and event streams have packages of their own.
//
//	answer.go          what an error is answered with, and what of it is logged
//	guard.go           which requests come in at all
//	body.go            what a JSON body must be before anyone looks at its fields
//	query.go           what a query must be
//	idempotency.go     keys that name a unit
//	unit.go            work units: submit, read, list, cancel, retry
//	bulk.go            retry and cancel all units that a filter chooses
//	wait.go            hold an answer until a unit is final
//	run.go             runs: read, list
//	transcript.go      transcripts as JSON, JSON lines and text
//	schedule.go        units that are made again and again
//	batch.go           submit, read and list batches
//	lines.go           a batch as lines, any number of them
//	batch_move.go      approve, pause, resume, cancel and retry batches
//	results.go         what came of a batch
//	prune.go           delete units and batches
//	file.go            files: upload, list, read, download, delete
//	compatible.go      what OpenAI's and Anthropic's own SDKs are served: ids, errors
//	openai_file.go     /v1/files, with the output and error files of batches
//	openai_batch.go    /v1/batches
//	anthropic_batch.go /v1/messages/batches
//	openapi.go         what the description says beyond what the Go types do
//	openapi_batch.go   the types of batches, and the names of all types
package api

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"piecework/api/body"
	"piecework/api/hooks"
	"piecework/api/live"
	"piecework/api/ops"
	"piecework/api/problem"
	"piecework/api/web"
	"piecework/internal/process"
	"piecework/internal/webhook"
	"piecework/jobs"
	"piecework/jobs/queue"
)

// Options is what the front door needs to know.
type Options struct {
	*jobs.Submitter
	Queue    *queue.Client
	Version  string
	MaxBody  int64 // bytes of a JSON body
	Sealer   webhook.Sealer
	Hosts    []string // names that this server answers to, beside localhost and IP addresses
	Log      *slog.Logger
	Registry *prometheus.Registry
	// Containment is how the worker process of this house holds agents
	// together; empty without one.
	Containment process.Containment
}

// API serves the front door.
type API struct {
	Options
	echo       *echo.Echo
	huma       huma.API
	control    *jobs.Control
	triggers   *hooks.Triggers
	endpoints  *hooks.Endpoints
	deliveries *hooks.Deliveries
	bodies     *body.Reader
	live       *live.Hub
	pages      *web.Pages
	ops        *ops.Operations

	requests *prometheus.HistogramVec

	// answerLimit is how long a caller waits for the first byte of an answer.
	answerLimit time.Duration
	// lookAgain is how often a held answer looks without having been told.
	lookAgain time.Duration
}

// New makes the front door. Call Watch once to make waiting fast.
func New(o Options) *API {
	a := &API{Options: o, echo: echo.New(), bodies: body.New(o.MaxBody, time.Minute),
		answerLimit: body.AnswerLimit, lookAgain: time.Second}
	a.ops = ops.New(o.Store, o.Queue, o.Log, o.Containment)
	a.live = live.New(o.Store, o.Queue, o.Log, o.Registry)
	o.OnSubmit(a.live.Notify)
	a.control = &jobs.Control{Submitter: o.Submitter, UnitChanged: a.live.Notify}
	a.triggers = hooks.NewTriggers(hooks.TriggerOptions{Store: o.Store, Submitter: o.Submitter, Sealer: o.Sealer, Bodies: a.bodies,
		Log: o.Log}, o.Registry)
	a.endpoints, a.deliveries = &hooks.Endpoints{Store: o.Store, Guard: o.Webhooks}, &hooks.Deliveries{Store: o.Store}
	a.pages = web.New(web.Options{Store: o.Store, Queue: o.Queue, Ops: a.ops, Control: a.control, BodyTime: a.bodies.Time})
	a.control.BatchChanged = a.pages.BatchChanged
	metrics := promauto.With(o.Registry)
	a.requests = metrics.NewHistogramVec(prometheus.HistogramOpts{
		Name: "piecework_http_request_duration_seconds", Help: "From request to answer, waiting included.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
	}, []string{"method", "route", "status"})
	a.echo.HideBanner, a.echo.HidePort = true, true
	a.echo.HTTPErrorHandler = a.answerError
	a.echo.Use(
		a.live.SendEvents,
		nameRequest,
		body.BoundAnswer(func() time.Duration { return a.answerLimit }),
		a.observe,
		middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true, LogErrorFunc: a.logPanic}),
		securityHeaders,
		a.guard,
	)
	a.huma = humaecho.New(a.echo, a.config())
	a.routes()
	return a
}

// ServeHTTP answers one request. HEAD is GET for all but net/http, which keeps
// the body back.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		r = live.HeadOnly(r)
		r.Method = http.MethodGet
	}
	a.echo.ServeHTTP(w, r)
}

// Watch brings changed units to the event streams until ctx ends.
func (a *API) Watch(ctx context.Context) {
	defer a.Wait() // no unit is accepted any more
	a.live.Run(ctx, a.lookAgain)
}

// EndStreams ends the event streams, which would otherwise go on for as long as
// their readers like.
func (a *API) EndStreams() { a.live.Close() }

func (a *API) routes() {
	register(a, op("submit-work-unit", "POST", "/work-units", "Submit a unit", 202, 408, 413, 415), a.submit)
	register(a, op("list-work-units", "GET", "/work-units", "List units, newest first", 200), a.listUnits)
	register(a, op("get-work-unit", "GET", "/work-units/{id}", "Read a unit with its runs", 200, 404), a.getUnit)
	register(a, op("cancel-work-unit", "POST", "/work-units/{id}/cancel", "Cancel a unit", 202, 404, 409), a.cancelUnit)
	register(a, op("retry-work-unit", "POST", "/work-units/{id}/retry", "Run a final unit again", 202, 404, 408, 409, 413, 415), a.retryUnit)
	register(a, op("explain-work-unit", "GET", "/work-units/{id}/explain", "Why does a unit wait?", 200, 404), a.ops.ExplainUnit)
	register(a, op("follow-work-unit", "GET", "/work-units/{id}/events", "Follow a unit while it runs", 200, 404), a.live.StreamUnit)
	register(a, op("follow-work-units", "GET", "/events", "Follow what becomes of all units", 200), a.live.StreamUnits)
	register(a, op("retry-work-units", "POST", "/work-units/retry", "Run many final units again", 200, 408, 413, 415), a.retryUnits)
	register(a, op("cancel-work-units", "POST", "/work-units/cancel", "Cancel many units", 200), a.cancelUnits)
	register(a, op("delete-work-unit", "DELETE", "/work-units/{id}", "Delete a unit that is over, with its runs, transcripts and output files", 204, 404, 409), a.deleteUnit)
	register(a, op("prune", "POST", "/prune", "Delete units and batches that ended before a time", 200), a.prune)
	batch := op("submit-batch", "POST", "/batches", "Submit a batch", 202, 408, 413, 415, 507)
	batch.Middlewares = huma.Middlewares{a.takeLines}
	register(a, batch, a.submitBatch)
	register(a, op("list-batches", "GET", "/batches", "List batches, newest first", 200), a.listBatches)
	register(a, op("get-batch", "GET", "/batches/{id}", "Read a batch: how far it is", 200, 404), a.getBatch)
	results := op("get-batch-results", "GET", "/batches/{id}/results", "Read the results of a batch, also while it runs", 200, 404)
	results.Middlewares = huma.Middlewares{keepRequest}
	register(a, results, a.getResults)
	manifest := op("get-batch-manifest", "GET", "/batches/{id}/manifest", "Read what a batch consists of, with hashes", 200, 404)
	manifest.Middlewares = huma.Middlewares{keepRequest}
	register(a, manifest, a.getManifest)
	register(a, op("approve-batch", "POST", "/batches/{id}/approve", "Let the rest of a batch run after its test", 200, 404, 408, 409, 413, 415), a.approveBatch)
	register(a, op("pause-batch", "POST", "/batches/{id}/pause", "Let no further unit of a batch begin", 200, 404, 408, 409, 413, 415), a.pauseBatch)
	register(a, op("resume-batch", "POST", "/batches/{id}/resume", "Let a batch go on", 200, 404, 408, 409, 413, 415), a.resumeBatch)
	register(a, op("cancel-batch", "POST", "/batches/{id}/cancel", "Cancel a batch, or reject it after its test", 200, 404, 408, 413, 415), a.cancelBatch)
	register(a, op("retry-batch", "POST", "/batches/{id}/retry", "Run the units of a batch again that did not succeed", 200, 404, 408, 409, 413, 415), a.retryBatch)
	register(a, op("delete-batch", "DELETE", "/batches/{id}", "Delete a batch that is over, with its units", 204, 404, 409), a.deleteBatch)
	register(a, op("list-backends", "GET", "/backends", "List backends: what they can do, and whether they can run", 200), a.ops.ListBackends)
	register(a, op("list-schedules", "GET", "/schedules", "List schedules", 200), a.listSchedules)
	register(a, op("get-schedule", "GET", "/schedules/{name}", "Read a schedule", 200, 404), a.getSchedule)
	register(a, op("put-schedule", "PUT", "/schedules/{name}", "Make a schedule, or replace it", 200, 408, 413, 415), a.putSchedule)
	register(a, op("delete-schedule", "DELETE", "/schedules/{name}", "Delete a schedule; its units stay", 204, 404), a.deleteSchedule)
	register(a, op("run-schedule", "POST", "/schedules/{name}/run", "Make a schedule's unit now", 202, 404), a.runSchedule)
	register(a, op("list-triggers", "GET", "/triggers", "List triggers", 200), a.triggers.List)
	register(a, op("get-trigger", "GET", "/triggers/{name}", "Read a trigger", 200, 404), a.triggers.Get)
	register(a, op("put-trigger", "PUT", "/triggers/{name}", "Make a trigger, or replace it", 200, 408, 413, 415), a.triggers.Put)
	register(a, op("delete-trigger", "DELETE", "/triggers/{name}", "Delete a trigger; its units stay", 204, 404), a.triggers.Delete)
	register(a, op("list-trigger-deliveries", "GET", "/triggers/{name}/deliveries", "List what came for a trigger, newest first", 200), a.triggers.ListDeliveries)
	register(a, op("list-webhook-endpoints", "GET", "/webhook-endpoints", "List webhook endpoints", 200), a.endpoints.List)
	register(a, op("add-webhook-endpoint", "POST", "/webhook-endpoints", "Add a webhook endpoint; the answer shows its secret", 201, 408, 413, 415), a.endpoints.Add)
	register(a, op("get-webhook-endpoint", "GET", "/webhook-endpoints/{id}", "Read a webhook endpoint", 200, 404), a.endpoints.Get)
	register(a, op("put-webhook-endpoint", "PUT", "/webhook-endpoints/{id}", "Change, disable or enable a webhook endpoint", 200, 404, 408, 413, 415), a.endpoints.Put)
	register(a, op("delete-webhook-endpoint", "DELETE", "/webhook-endpoints/{id}", "Delete a webhook endpoint; its deliveries can still be read", 204, 404), a.endpoints.Delete)
	register(a, op("get-webhook-secret", "GET", "/webhook-endpoints/{id}/secret", "Read what signs the messages of an endpoint", 200, 404), a.endpoints.GetSecret)
	register(a, op("rotate-webhook-secret", "POST", "/webhook-endpoints/{id}/rotate", "Give an endpoint another secret", 200, 404, 408, 413, 415), a.endpoints.RotateSecret)
	register(a, op("test-webhook-endpoint", "POST", "/webhook-endpoints/{id}/test", "Send an endpoint a message that tells of nothing", 202, 404, 409), a.endpoints.Test)
	register(a, op("get-callback-secret", "GET", "/callback-secret", "Read what signs the messages to callback_urls", 200), a.endpoints.GetCallbackSecret)
	register(a, op("rotate-callback-secret", "POST", "/callback-secret/rotate", "Give callbacks another secret", 200, 408, 413, 415), a.endpoints.RotateCallbackSecret)
	register(a, op("list-deliveries", "GET", "/deliveries", "List deliveries, newest first", 200), a.deliveries.List)
	register(a, op("get-delivery", "GET", "/deliveries/{id}", "Read a delivery with its body", 200, 404), a.deliveries.Get)
	register(a, op("redeliver", "POST", "/deliveries/{id}/redeliver", "Deliver again, with the same id and body", 202, 404, 409), a.deliveries.Redeliver)
	register(a, op("redeliver-all", "POST", "/deliveries/redeliver", "Deliver many again", 200), a.deliveries.RedeliverAll)
	register(a, op("pause-backend", "POST", "/backends/{name}/pause", "Let no unit of a backend begin", 200, 404, 408, 413, 415), a.ops.PauseBackend)
	register(a, op("resume-backend", "POST", "/backends/{name}/resume", "Let a backend go on, also one that refused its credentials", 200, 404), a.ops.ResumeBackend)
	register(a, op("list-queues", "GET", "/queues", "List queues: what waits and runs in them", 200), a.ops.ListQueues)
	register(a, op("pause-queue", "POST", "/queues/{name}/pause", "Let no unit of a queue begin", 200, 408, 413, 415), a.ops.PauseQueue)
	register(a, op("resume-queue", "POST", "/queues/{name}/resume", "Let a queue go on", 200), a.ops.ResumeQueue)
	register(a, op("list-runs", "GET", "/runs", "List runs, newest first", 200), a.listRuns)
	register(a, op("get-run", "GET", "/runs/{id}", "Read a run", 200, 404), a.getRun)
	steps := op("get-transcript", "GET", "/runs/{id}/transcript", "Read a run's transcript", 200, 404, 410)
	steps.Middlewares = huma.Middlewares{keepRequest}
	register(a, steps, a.getTranscript)
	upload := op("upload-file", "POST", "/files", "Upload a file", 201, 400, 408, 413, 415, 507)
	upload.Middlewares = huma.Middlewares{keepRequest}
	register(a, upload, a.upload)
	register(a, op("list-files", "GET", "/files", "List files, newest first", 200), a.listFiles)
	register(a, op("get-file", "GET", "/files/{id}", "Read what is known of a file", 200, 404), a.getFile)
	register(a, op("get-file-content", "GET", "/files/{id}/content", "Download a file", 200, 404), a.getContent)
	register(a, op("delete-file", "DELETE", "/files/{id}", "Delete a file that no unit needs", 204, 404, 409), a.deleteFile)
	register(a, op("get-stats", "GET", "/stats", "What happened lately, and how things stand", 200), a.ops.GetStats)
	register(a, op("get-health", "GET", "/healthz", "Is the process alive?", 200), a.ops.Healthz)
	register(a, op("get-readiness", "GET", "/readyz", "Can it take work, and what is missing?", 200), a.ops.Readyz)
	a.describe()

	a.echo.POST("/triggers/:name", a.triggers.Receive) // raw: what is signed is the body's bytes
	a.compatible()

	a.echo.GET("/openapi.json", a.openapi)
	a.echo.GET("/metrics", echo.WrapHandler(promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{})))
	a.pages.Mount(a.echo, a.live.StreamPage)
}

func (a *API) config() huma.Config {
	useProblems()
	c := huma.DefaultConfig("Piecework", a.Version)
	c.Info.Description = "Work units in, results and transcripts out. Errors are application/problem+json (RFC 9457)."
	c.CreateHooks = nil                                   // no $schema in answers
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", "" // served by our own routes
	c.Formats = map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()}
	c.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	return c
}

func op(id, method, path, summary string, status int, errors ...int) huma.Operation {
	if method != http.MethodGet {
		errors = append(errors, 403)
	}
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, DefaultStatus: status,
		MaxBodyBytes:    -1, // body.go has read the body already
		BodyReadTimeout: -1, // lifts guard's deadline: an answer may be held for longer
		Errors:          append(errors, 400, 422, 503), Tags: []string{tagOf(path)},
	}
}

func tagOf(path string) string {
	switch {
	case strings.HasPrefix(path, "/work-units"), path == "/events", path == "/prune":
		return "Units"
	case strings.HasPrefix(path, "/batches"):
		return "Batches"
	case strings.HasPrefix(path, "/runs"):
		return "Runs"
	case strings.HasPrefix(path, "/backends"):
		return "Backends"
	case strings.HasPrefix(path, "/schedules"):
		return "Schedules"
	case strings.HasPrefix(path, "/triggers"):
		return "Triggers"
	case strings.HasPrefix(path, "/webhook-endpoints"), strings.HasPrefix(path, "/callback-secret"), strings.HasPrefix(path, "/deliveries"):
		return "Webhooks"
	case strings.HasPrefix(path, "/files"):
		return "Files"
	case strings.HasPrefix(path, "/queues"):
		return "Queues"
	case strings.HasPrefix(path, "/stats"):
		return "Stats"
	}
	return "Health"
}

// register adds a native route whose errors all go through problem.
func register[I, O any](a *API, op huma.Operation, f func(context.Context, *I) (*O, error)) {
	op.Middlewares = append(op.Middlewares, a.checkQuery, a.checkKey, a.checkBody)
	op.SkipValidateBody = true // checkBody has compared it with its schema
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return out, nil
	})
}

// observe counts and logs every request.
func (a *API) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		begun := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		status := c.Response().Status
		a.requests.WithLabelValues(methodLabel(c.Request().Method), c.Path(), strconv.Itoa(status)).Observe(time.Since(begun).Seconds())
		a.Log.Debug("request", "method", c.Request().Method, "path", c.Request().URL.Path, "status", status,
			"ms", time.Since(begun).Milliseconds(), "request_id", problem.RequestID(c))
		return nil
	}
}

// methodLabel keeps callers from making up metrics.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

func (a *API) logPanic(c echo.Context, err error, stack []byte) error {
	a.Log.Error("panic in a handler", "path", c.Path(), "err", err, "stack", string(stack), "request_id", problem.RequestID(c))
	return err
}
