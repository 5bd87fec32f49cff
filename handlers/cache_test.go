package handlers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// tuned is a puppet whose operator has a say.
type tuned struct {
	*puppet
	settings atomic.Value
}

func (t *tuned) Settings() string { return t.settings.Load().(string) }

// cacheFixture has three backends, and a worker process with a root that has a
// file in it.
type cacheFixture struct {
	*fixture
	worker *worker
	claude *tuned
	codex  *puppet
	root   string
}

func newCacheFixture(t *testing.T) *cacheFixture {
	t.Helper()
	h := &cacheFixture{fixture: newFixture(t), claude: &tuned{puppet: newPuppet("claude")}, codex: newPuppet("codex"), root: t.TempDir()}
	h.claude.settings.Store("")
	h.worker = h.start(func(o *Options) {
		o.Roots, o.Backends, o.FilePolicy.MaxBytes = rootAt(t, h.root), []backend.Backend{h.puppet, h.claude, h.codex}, 1000
	})
	writeText(t, h.root, "a.txt", "one")
	return h
}

func writeText(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ask submits a unit that may take a result over.
func (h *cacheFixture) ask(changes ...func(*work.Spec)) uuid.UUID {
	h.t.Helper()
	return h.submit(func(s *work.Spec) {
		s.CacheTTL, s.Prompt, s.Payload = 3600, "Read {name}", json.RawMessage(`{"name": "it", "mock": {"files": {"a": ""}}}`)
		for _, change := range changes {
			change(s)
		}
	})
}

// hits waits for a unit that must have this result without a run of a backend.
func (h *cacheFixture) hits(id uuid.UUID, output string) work.Unit {
	h.t.Helper()
	u := h.becomes(id, work.Succeeded)
	if u.Cache != work.CacheHit || u.CachedFrom == nil || *u.Output != output || u.Known() != 0 || len(h.puppet.started) != 0 {
		h.t.Fatalf("unit %+v, %d runs began", u, len(h.puppet.started))
	}
	return u
}

// misses leads the run of a unit that must find nothing.
func (h *cacheFixture) misses(p *puppet, id uuid.UUID, output string) {
	h.t.Helper()
	run := h.begunOn(p)
	if run.req.UnitID != id {
		h.t.Fatalf("another unit runs")
	}
	run.end <- succeed(output)
	if u := h.becomes(id, work.Succeeded); u.Cache != work.CacheMiss || u.CachedFrom != nil || u.Known() != 0.25 {
		h.t.Fatalf("unit %+v", u)
	}
}

func TestResultIsTakenOver(t *testing.T) {
	t.Parallel()
	h := newCacheFixture(t)
	uploaded := h.upload("b.txt", "two")
	files := func(s *work.Spec) { s.Files = work.Refs{"docs:a.txt", uploaded.ID.String()} }
	first := h.ask(files)
	run := h.begun()
	if err := writeFile(run.req.Dir, "report.md"); err != nil {
		t.Fatal(err)
	}
	end := succeed("the answer")
	end.Metadata.Model, end.Metadata.NumTurns, end.Metadata.Usage = "small", 3, work.Usage{InputTokens: 9}
	run.end <- end
	made := h.runs(h.becomes(first, work.Succeeded).ID)[0]

	// What shapes no answer may differ, and so may the id of an equal upload.
	again := h.upload("b.txt", "two")
	second := h.ask(func(s *work.Spec) {
		s.Files = work.Refs{"docs:a.txt", again.ID.String()}
		s.Priority, s.Labels, s.Timeout, s.IdleTimeout, s.SessionPolicy, s.Payload = 9, json.RawMessage(`{"a":"b"}`), 90, 90, work.Fresh,
			json.RawMessage(`{ "name" : "it",  "mock" : {"files":{"a":""}}}`)
		s.MaxRetries = new(5)
	})
	u := h.hits(second, "the answer")
	r := h.runs(second)[0]
	if *u.CachedFrom != made.ID || len(h.runs(second)) != 1 || r.Status != work.RunSucceeded || *r.Result != "the answer" || *r.Model != "small" ||
		r.TotalCostUSD == nil || *r.TotalCostUSD != 0 || r.NumTurns != 0 || r.Usage != (work.Usage{}) || *r.RenderedPrompt != "Read it" {
		t.Errorf("unit %+v, run %+v", u, r)
	}
	if len(r.OutputFiles) != 1 || *r.OutputFiles[0].ID != *made.OutputFiles[0].ID || h.content(*r.OutputFiles[0].ID) == "" {
		t.Errorf("files %+v", r.OutputFiles)
	}
	steps := h.steps(r.ID)
	if len(steps) != 1 || steps[0].Type != transcript.SystemText || !strings.Contains(steps[0].Text, made.ID.String()) {
		t.Errorf("transcript %+v", steps)
	}
	if _, err := os.Stat(filepath.Join(h.worker.disk.Units(), second.String())); !os.IsNotExist(err) {
		t.Errorf("its directory is still there: %v", err)
	}

	// Who does not ask runs, and leaves nothing for others.
	plain := h.submit(func(s *work.Spec) { s.Prompt = "Plain" })
	h.begun().end <- succeed("plain")
	if u := h.becomes(plain, work.Succeeded); u.Cache != "" || u.CachedFrom != nil {
		t.Errorf("unit %+v", u)
	}
	h.misses(h.puppet, h.ask(func(s *work.Spec) { s.Prompt, s.Payload = "Plain", json.RawMessage(`{}`) }), "plain")
}

func TestAnyOtherInputMisses(t *testing.T) {
	t.Parallel()
	h := newCacheFixture(t)
	writeText(t, h.root, "c.txt", "one")
	one, two, renamed := h.upload("b.txt", "one"), h.upload("b.txt", "two"), h.upload("d.txt", "one")
	file := func(refs ...string) func(*work.Spec) { return func(s *work.Spec) { s.Files = refs } }
	payload := func(text string) func(*work.Spec) {
		return func(s *work.Spec) { s.Payload = json.RawMessage(text) }
	}
	asked := map[string]func(*work.Spec){
		"nothing":              func(*work.Spec) {},
		"prompt":               func(s *work.Spec) { s.Prompt = "Read {name}!" },
		"value in the prompt":  payload(`{"name":"that"}`),
		"value beside it":      payload(`{"name":"it","mock":{}}`), // which this backend looks at
		"system prompt":        func(s *work.Spec) { s.SystemPrompt = "s" },
		"model":                func(s *work.Spec) { s.Model = "m" },
		"worker":               func(s *work.Spec) { s.Worker = "w" },
		"schema":               func(s *work.Spec) { s.OutputSchema = json.RawMessage(`{"type":"object"}`) },
		"turns":                func(s *work.Spec) { s.MaxTurns = 3 },
		"budget":               func(s *work.Spec) { s.MaxCostUSD = new(1.0) },
		"another budget":       func(s *work.Spec) { s.MaxCostUSD = new(2.0) },
		"upload":               file(one.ID.String()),
		"its bytes":            file(two.ID.String()),
		"its name":             file(renamed.ID.String()),
		"two uploads":          file(one.ID.String(), renamed.ID.String()),
		"their order":          file(renamed.ID.String(), one.ID.String()),
		"file in a root":       file("docs:a.txt"),
		"its name in the root": file("docs:c.txt"),
	}
	for name, change := range asked {
		h.misses(h.puppet, h.ask(change), name)
	}
	for name, change := range asked {
		h.hits(h.ask(change), name)
	}
	writeText(t, h.root, "a.txt", "two")
	h.misses(h.puppet, h.ask(file("docs:a.txt")), "changed file")

	claude := func(s *work.Spec) { s.Backend = "claude" }
	h.misses(h.claude.puppet, h.ask(claude), "another backend")
	h.misses(h.codex, h.ask(func(s *work.Spec) { s.Backend = "codex" }), "a third")
	h.hits(h.ask(claude, payload(`{"name":"it","line":7}`)), "another backend") // it sees the prompt only
	h.claude.settings.Store("another model")
	h.misses(h.claude.puppet, h.ask(claude), "other settings")
	h.claude.settings.Store("")
	h.hits(h.ask(claude), "another backend")

	// A thousandth of a second is over.
	h.misses(h.puppet, h.ask(func(s *work.Spec) { s.CacheTTL = 0.001 }), "younger")
	h.hits(h.ask(), "younger")
}

func TestResultsThatAreNotKept(t *testing.T) {
	t.Parallel()
	h := newCacheFixture(t)
	file := func(s *work.Spec) { s.Files = work.Refs{"docs:a.txt"} }

	h.ask(file)
	run := h.begun()
	writeText(t, h.root, "a.txt", "changed while it was read")
	run.end <- succeed("of which bytes?")
	h.endsWell(run)
	h.misses(h.puppet, h.ask(file), "of the changed ones")
	writeText(t, h.root, "a.txt", "one")
	h.misses(h.puppet, h.ask(file), "of the first ones")

	large := func(s *work.Spec) { s.Prompt = "Write much" }
	partly := func() {
		run := h.begun()
		writeText(t, run.req.Dir, "large", strings.Repeat("x", 1001))
		run.end <- succeed("not all of it was stored")
		h.endsWell(run)
	}
	h.ask(large)
	partly()
	h.misses(h.puppet, h.ask(large), "whole")
	h.ask(large, func(s *work.Spec) { s.CacheTTL = 0.001 })
	partly()
	h.hits(h.ask(large), "whole")

	failing := func(s *work.Spec) { s.Prompt = "Fail" }
	h.ask(failing)
	run = h.begun()
	run.end <- backend.Result{Output: "half", Error: work.Fail(work.ClassRefusal, "no")}
	if u := h.becomes(run.req.UnitID, work.Failed); u.Cache != work.CacheMiss {
		t.Errorf("unit %+v", u)
	}
	h.misses(h.puppet, h.ask(failing), "whole")
}

// endsWell waits for the end of a run.
func (h *cacheFixture) endsWell(run *puppetRun) {
	h.t.Helper()
	h.becomes(run.req.UnitID, work.Succeeded)
}

// Equal units that run at the same time both miss; the next one does not.
func TestEqualUnitsAtOnceBothRun(t *testing.T) {
	t.Parallel()
	h := newCacheFixture(t)
	ids := []uuid.UUID{h.ask(), h.ask()}
	one, two := h.begun(), h.begun()
	one.end <- succeed("same")
	two.end <- succeed("same")
	for _, id := range ids {
		if u := h.becomes(id, work.Succeeded); u.Cache != work.CacheMiss {
			t.Errorf("unit %+v", u)
		}
	}
	h.hits(h.ask(), "same")
}

// Nobody has answered: a backend that refused credentials stays paused.
func TestHitResumesNoBackend(t *testing.T) {
	t.Parallel()
	h := newCacheFixture(t)
	h.misses(h.puppet, h.ask(), "kept")
	refused := h.submit(func(s *work.Spec) { s.Prompt = "Another" })
	h.begun().end <- backend.Result{Error: work.Fail(work.ClassAuth, "the key is wrong")}
	h.becomes(refused, work.Queued)
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, refused); err != nil {
		t.Fatal(err)
	}
	h.hits(h.ask(), "kept") // the probe lets one unit try
	if h.worker.health.Of("mock").Offer().Paused == nil {
		t.Error("a hit has resumed the backend")
	}
}
