package cursor

import (
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/testkit/backendtest"
	"piecework/internal/work"
)

func TestCursorArguments(t *testing.T) {
	c := fake(t)
	c.Force = true
	req := backendtest.NewRequest(t, backendtest.Script("init", "args", "result fine"))
	req.Model = "--trust"
	got := backendtest.Execute(t.Context(), t, c, req)
	got.WantSuccess(t, "fine")
	if args := strings.Join(backendtest.Args(t, got), " "); args != "--print --output-format=stream-json --force --model=--trust" {
		t.Error(args)
	}
}

func TestCursorRefusesWhatCannotWork(t *testing.T) {
	req := backendtest.NewRequest(t, "hi")
	req.OutputSchema = json.RawMessage(`{"type":"blah"}`)
	backendtest.Execute(t.Context(), t, fake(t), req).WantFailure(t, work.ClassInvalidRequest, "output_schema")
	req.OutputSchema, req.MaxCostUSD = nil, new(1.0)
	backendtest.Execute(t.Context(), t, fake(t), req).WantFailure(t, work.ClassInvalidRequest, "max_cost_usd")
}

func TestCursorFailsOnStderr(t *testing.T) {
	for words, want := range map[string]work.Class{
		"Error: Authentication required. Please run 'agent login' first": work.ClassAuth,
		"ActionRequiredError: You've hit your usage limit":               work.ClassRateLimit,
		"Cannot use this model: model gpt-9 not found":                   work.ClassInvalidRequest,
		"something broke": work.ClassCrash,
	} {
		got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t, backendtest.Script("init", "error x 0 "+words)))
		got.WantFailure(t, want, words)
	}
}

func TestCursorPromptIsInert(t *testing.T) {
	for _, prompt := range []string{"/cost", "&go away", "@/etc/hostname", "!ls"} {
		if got := inert("", prompt); strings.HasPrefix(strings.TrimSpace(got), prompt[:1]) || !strings.HasSuffix(got, prompt) {
			t.Errorf("%q becomes %q", prompt, got)
		}
	}
	if got := inert("/rules", "task"); strings.HasPrefix(got, "/") || !strings.HasSuffix(got, "/rules\n\ntask") {
		t.Errorf("%q", got)
	}
	for _, prompt := range []string{"task", "-", "--help", ""} {
		if got := inert("", prompt); got != prompt {
			t.Errorf("%q becomes %q", prompt, got)
		}
	}
}
