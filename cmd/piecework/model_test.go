package main

import (
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/testkit/fakemodel"
	"piecework/internal/work"
)

// The model APIs from the front door to the model and back.
func TestModelAPIs(t *testing.T) {
	t.Parallel()
	model := fakemodel.Start(t)
	model.ScriptFor("say", fakemodel.Turn{Thinking: "hm", Text: `{"key":"sk-secret-value"}`})
	p := launch(t, []string{
		"ANTHROPIC_API_KEY=sk-secret-value", "ANTHROPIC_BASE_URL=" + model.URL,
		"OPENAI_API_KEY=sk-secret-value", "OPENAI_BASE_URL=" + model.URL + "/v1",
	}, "dev", "--data", dataDir(t), "--listen", "127.0.0.1:0", "--claude-path", "/nowhere/claude")
	p.up()
	for _, backend := range []string{"anthropic", "openai"} {
		model.ScriptFor("wait", fakemodel.Turn{Status: 429, Times: 1, Headers: map[string]string{"retry-after": "1"}}, fakemodel.Turn{Text: "done"})
		u := p.post("/work-units?wait=1m", `{"backend":"`+backend+`","prompt":"[[script:say]] {what}","payload":{"what":"it"},
			"output_schema":{"type":"object","properties":{"key":{"type":"string"}},"required":["key"]}}`)
		if u.State != work.Succeeded || u.Output == nil || *u.Output != `{"key":"[redacted]"}` || u.Known() == 0 {
			t.Errorf("%s: %+v", backend, u)
		}
		if _, transcript := p.call("GET", "/runs/"+u.Runs[0].ID.String()+"/transcript", ""); !strings.Contains(string(transcript), `"reasoning"`) ||
			strings.Contains(string(transcript), "sk-secret") {
			t.Errorf("%s: transcript %s", backend, transcript)
		}
		u = p.post("/work-units?wait=1m", `{"backend":"`+backend+`","prompt":"[[script:wait]]","max_retries":0}`)
		if u.State != work.Succeeded || u.Failures != 0 || u.Waits == 0 {
			t.Errorf("%s: %+v", backend, u)
		}
		fromCache(t, p, model, backend)
	}
}

// fromCache asks the same twice, from the command line: the model hears it once.
func fromCache(t *testing.T, p *program, model *fakemodel.Server, backend string) {
	t.Helper()
	model.Forget()
	ask := func() unitWithRuns {
		s := newStage(t)
		if code := run(s.App, []string{"submit", "--server", p.server, "--wait", "--json", "-b", backend,
			"--prompt", "Name {it}", "-p", "it=a river", "--cache", "24h"}); code != 0 {
			t.Fatalf("exit code %d: %s", code, s.errs.String())
		}
		var u unitWithRuns
		if err := json.Unmarshal(s.out.Bytes(), &u); err != nil {
			t.Fatal(err)
		}
		return u
	}
	first, second := ask(), ask()
	if first.Cache != work.CacheMiss || first.Known() == 0 || second.Cache != work.CacheHit || second.Known() != 0 ||
		*second.CachedFrom != first.Runs[0].ID || *second.Output != *first.Output {
		t.Errorf("%s: first %+v, second %+v", backend, first, second)
	}
	if n := len(model.Requests()); n != 1 {
		t.Errorf("%s: the model was asked %d times", backend, n)
	}
	s := newStage(t)
	if run(s.App, []string{"get", second.ID.String(), "--server", p.server}); !strings.Contains(s.out.String(),
		"hit: the result of run "+first.Runs[0].ID.String()) {
		t.Errorf("get shows:\n%s", s.out.String())
	}
	for _, path := range []string{"/", "/units/" + second.ID.String()} {
		if _, page := p.call("GET", path, ""); !strings.Contains(string(page), "from cache") {
			t.Errorf("%s does not say where the result came from", path)
		}
	}
}
