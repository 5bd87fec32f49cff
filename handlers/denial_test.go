package handlers

import (
	"testing"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// A run that answered although a tool was denied has failed, unless the denial
// was made good or is only to be noted. Its answer and its cost are kept.
func TestRunWithDeniedTools(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	call := func(run *puppetRun, id string, result transcript.Step) {
		run.steps.Extend(transcript.Content{Type: transcript.ToolCall, ID: id, Name: "Bash", Args: `{"command":"touch x"}`})
		result.Type, result.CallID = transcript.ToolResult, id
		run.steps.Add(result)
	}
	denied, fine := transcript.Step{IsError: true, Denied: true, Text: "not allowed"}, transcript.Step{Text: "done"}
	for _, test := range []struct {
		name, policy string
		results      []transcript.Step
		state        work.State
		denials      int
	}{
		{"none", "", []transcript.Step{fine}, work.Succeeded, 0},
		{"denied", "", []transcript.Step{denied}, work.Failed, 1},
		{"denied, noted", work.OnDeniedNote, []transcript.Step{denied}, work.Succeeded, 1},
		{"denied, made good", work.OnDeniedFail, []transcript.Step{denied, fine}, work.Succeeded, 1},
		{"made, then denied", work.OnDeniedFail, []transcript.Step{fine, denied}, work.Failed, 1},
	} {
		id := h.submit(func(s *work.Spec) { s.OnDenied = test.policy })
		run := h.begun()
		for i, result := range test.results {
			call(run, string(rune('a'+i)), result)
		}
		run.end <- succeed("I did what I could")
		u := h.becomes(id, test.state)
		if *u.Output != "I did what I could" || u.Known() != 0.25 || u.Denials == nil || *u.Denials != test.denials || u.RunCount != 1 {
			t.Errorf("%s: output %q, %d runs, denials %v", test.name, *u.Output, u.RunCount, u.Denials)
		}
		if r := h.runs(id)[0]; r.Denials == nil || *r.Denials != test.denials {
			t.Errorf("%s: denials of the run %v", test.name, r.Denials)
		}
		if failed := test.state == work.Failed; failed && (u.Error.Class != work.ClassToolDenied || !contains(u.Error.Message, `1 of its tool calls were denied and did not succeed later: Bash {"command":"touch x"}`)) {
			t.Errorf("%s: %v", test.name, u.Error)
		}
	}
}

// What succeeded in spite of denials is no result for a unit that they would fail.
func TestCacheKeepsResultsWithDenialsApart(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	for _, policy := range []string{work.OnDeniedNote, work.OnDeniedFail} {
		id := h.submit(func(s *work.Spec) { s.CacheTTL, s.OnDenied = 3600, policy })
		h.begun().end <- succeed("an answer")
		if u := h.becomes(id, work.Succeeded); u.Cache != work.CacheMiss {
			t.Errorf("%s: %s", policy, u.Cache)
		}
	}
}
