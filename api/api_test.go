package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/api/problem"
	"piecework/internal/blob"
	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

func TestMain(m *testing.M) { testkit.Main(m, stopChromium) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, url)
	return err
}

// nowhere is a Redis that is away, at once: nothing may depend on it.
const nowhere = "redis://127.0.0.1:1/0"

// front is a front door over a real ledger, and the way to it.
type front struct {
	*API
	t        *testing.T
	database string
	url      string
	log      *logBook
}

// newFront opens a door with an own database, without Redis.
func newFront(t *testing.T) *front {
	t.Helper()
	return openFront(t, testkit.DB(t, migrate), nowhere, nil)
}

func openFront(t *testing.T, database, redis string, change func(*Options)) *front {
	t.Helper()
	book := &logBook{}
	log, registry := slog.New(slog.NewTextHandler(book, nil)), prometheus.NewRegistry()
	ledger, err := store.Open(t.Context(), database, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.Close() })
	bell, err := queue.Connect(redis, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bell.Close() })
	files, err := blob.Open(t.Context(), blob.Local(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Submitter: jobs.NewSubmitter(&jobs.Rules{Store: ledger, Files: files, FilePolicy: work.DefaultFilePolicy()}, bell, log,
		registry), Queue: bell, Version: "test", MaxBody: 1 << 20,
		Log: log, Registry: registry}
	if change != nil {
		change(&o)
	}
	f := &front{API: New(o), t: t, database: database, log: book}
	t.Cleanup(f.Wait)
	f.serve()
	return f
}

func (f *front) serve() {
	server := httptest.NewServer(f)
	f.t.Cleanup(server.Close)
	f.url = server.URL
}

// logBook is what was logged so far.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
}

// do sends a request; headers come as name, value, name, value.
func (f *front) do(method, path, body string, headers ...string) *answer {
	f.t.Helper()
	a, err := f.try(method, path, body, headers...)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

func (f *front) try(method, path, body string, headers ...string) (*answer, error) {
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if req.Header.Get("Host") != "" {
		req.Host = req.Header.Get("Host")
	}
	resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return &answer{f.t, resp.StatusCode, resp.Header, text}, err
}

func (f *front) get(path string, headers ...string) *answer {
	f.t.Helper()
	return f.do("GET", path, "", headers...)
}

func (f *front) post(path, body string, headers ...string) *answer {
	f.t.Helper()
	return f.do("POST", path, body, append([]string{"Content-Type", "application/json"}, headers...)...)
}

// submit accepts a unit and returns its id.
func (f *front) submit(body string, headers ...string) uuid.UUID {
	f.t.Helper()
	var u struct{ ID uuid.UUID }
	f.post("/work-units", body, headers...).is(202).into(&u)
	return u.ID
}

// mock is the smallest good body, with more fields.
func mock(more string) string {
	return `{"backend":"mock","prompt":"Count the words"` + more + `}`
}

func (a *answer) is(status int) *answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

func (a *answer) into(v any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		a.t.Fatalf("%v in %s", err, a.body)
	}
}

// fields is the answer as an object.
func (a *answer) fields() map[string]any {
	a.t.Helper()
	var m map[string]any
	a.into(&m)
	return m
}

// refused checks everything that every problem must have, and where it points:
// "#/…" into the body, else at a parameter; empty at nothing.
func (a *answer) refused(status int, place, detail string) problem.Problem {
	a.t.Helper()
	a.is(status)
	if kind := a.header.Get("Content-Type"); kind != "application/problem+json" {
		a.t.Errorf("content type %q: %s", kind, a.body)
	}
	var p problem.Problem
	a.into(&p)
	if p.Status != status || p.Title == "" || p.Type == "" || p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		a.t.Errorf("incomplete (header: %s): %s", a.header.Get("X-Request-Id"), a.body)
	}
	if !strings.Contains(p.Detail, detail) {
		a.t.Errorf("detail %q lacks %q", p.Detail, detail)
	}
	var at string
	if len(p.Errors) > 0 {
		at = p.Errors[0].Pointer + p.Errors[0].Parameter
	}
	if at != place {
		a.t.Errorf("points at %q, want %q: %s", at, place, a.body)
	}
	return p
}

// crew is a worker process in the ledger's eyes.
func (f *front) crew(offers ...work.Offer) uuid.UUID {
	f.t.Helper()
	p := work.Process{ID: uuid.Must(uuid.NewV7()), Hostname: "host", PID: 1, Version: "test", Slots: 8,
		Queues: []string{"default"}, Backends: offers}
	if err := f.Store.Processes.Register(f.t.Context(), p, time.Minute); err != nil {
		f.t.Fatal(err)
	}
	return p.ID
}

// claim begins a run of a unit, as a worker process would.
func (f *front) claim(unit uuid.UUID) *store.Claimed {
	f.t.Helper()
	process := f.crew(work.Offer{Name: "mock", Available: true})
	claimed, err := f.Store.Runs.Claim(f.t.Context(), store.Claim{
		UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: process, SessionID: "session", Backends: []string{"mock", "claude"},
	})
	if err != nil || claimed == nil {
		f.t.Fatalf("claim: %v, %v", claimed, err)
	}
	return claimed
}

// finish ends a run well.
func (f *front) finish(c *store.Claimed, result string, steps ...transcript.Step) {
	f.t.Helper()
	blob, err := f.Store.Transcripts.Encode(steps)
	if err != nil {
		f.t.Fatal(err)
	}
	cost := 0.25
	verdict, err := f.Store.Runs.Finish(f.t.Context(), store.Finish{
		UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, Status: work.RunSucceeded, Next: work.Succeeded,
		Result: result, RenderedPrompt: "rendered", NumTurns: 2, ToolCalls: 1, TotalCostUSD: &cost,
		DurationMS: 20, DurationAPIMS: 10, OutputFiles: []work.OutputFile{{Name: "out.txt", Size: 3}}, Steps: len(steps), Blob: blob,
	})
	if err != nil || verdict != store.Recorded {
		f.t.Fatalf("finish: %s, %v", verdict, err)
	}
}

// run takes a unit from its acceptance to its end.
func (f *front) run(unit uuid.UUID, result string, steps ...transcript.Step) *store.Claimed {
	f.t.Helper()
	c := f.claim(unit)
	f.finish(c, result, steps...)
	return c
}

func step(number int, kind, text string) transcript.Step {
	return transcript.Step{Number: number, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Type: kind, Text: text}
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.get("/nope").refused(404, "", "no such path")
	f.get("/work-units/").refused(404, "", "no such path")
	f.get("/static/").refused(404, "", "no such path")
	f.get("/static/none.css").refused(404, "", "no such path")
	f.get("/docsx").refused(404, "", "no such path")
	a := f.do("PUT", "/work-units", "{}")
	a.refused(405, "", "does not take that method")
	if allow := a.header.Get("Allow"); !strings.Contains(allow, "POST") {
		t.Errorf("Allow: %q", allow)
	}
	f.do("BREW", "/work-units", "").refused(405, "", "")
}

func TestHEADIsGETWithoutABody(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	for path, status := range map[string]int{
		"/work-units": 200, "/work-units/" + id.String(): 200, "/": 200, "/healthz": 200, "/openapi.json": 200,
		"/work-units/nope": 404, "/work-units/" + id.String() + "/cancel": 405,
	} {
		if a := f.do("HEAD", path, "").is(status); len(a.body) > 0 {
			t.Errorf("%s: body %s", path, a.body)
		}
	}
}

func TestRequestIDsAreKeptWhenTheyArePlain(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	if got := f.get("/healthz", "X-Request-Id", "mine-1").header.Get("X-Request-Id"); got != "mine-1" {
		t.Errorf("got %q", got)
	}
	for _, strange := range []string{strings.Repeat("x", 200), "a b", "né"} {
		got := f.get("/nope", "X-Request-Id", strange).refused(404, "", "").RequestID
		if _, err := uuid.Parse(got); err != nil {
			t.Errorf("%q became %q", strange, got)
		}
	}
}

func TestPanicsAreProblemsAndTellNothing(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	type in struct{}
	register(f.API, op("boom", "GET", "/boom", "", 200), func(context.Context, *in) (*viewAnswer, error) { panic("a secret") })
	p := f.get("/boom").refused(500, "", "server's log")
	if strings.Contains(fmt.Sprint(p), "secret") {
		t.Errorf("leaked: %+v", p)
	}
	if log := f.log.String(); !strings.Contains(log, "a secret") || !strings.Contains(log, p.RequestID) {
		t.Errorf("not in the log: %s", log)
	}
}

func TestInternalErrorsTellNothing(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	type in struct{}
	register(f.API, op("fail", "GET", "/fail", "", 200), func(context.Context, *in) (*viewAnswer, error) {
		return nil, fmt.Errorf("dial 10.0.0.7 with password hunter2")
	})
	p := f.get("/fail").refused(500, "", "server's log")
	if log := f.log.String(); strings.Contains(p.Detail, "hunter2") || !strings.Contains(log, "hunter2") || !strings.Contains(log, p.RequestID) {
		t.Errorf("answer %+v, log %s", p, log)
	}
}

func TestMetricsHaveOursAndNobodyElsesWords(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.submit(mock(""))
	f.do("BREW", "/whatever-"+uuid.NewString(), "")
	text := string(f.get("/metrics").is(200).body)
	for _, want := range []string{
		`piecework_units_accepted_total{backend="mock"} 1`,
		`piecework_http_request_duration_seconds_count{method="POST",route="/work-units",status="202"} 1`,
		`method="other"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "BREW") || strings.Contains(text, "whatever") {
		t.Error("callers can make up metrics")
	}
}
