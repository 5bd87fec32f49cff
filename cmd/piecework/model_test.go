package main

import (
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
		if u.State != work.Succeeded || u.Output == nil || *u.Output != `{"key":"[redacted]"}` || u.CostUSD == 0 {
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
	}
}
