package api

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"piecework/internal/transcript"
)

// The names that scripts rely on.
var (
	runItemFields = []string{
		"attempt", "completed_at", "cost_incomplete", "denials", "duration_api_ms", "duration_ms", "error", "execution_time", "has_transcript",
		"id", "live_status", "model", "num_turns", "output_files", "session_id", "started_at", "status", "task", "tool_calls",
		"total_cost_usd", "transcript_removed_at", "unit_id", "usage", "worker_process", "worker_type",
	}
	runFields = slices.Sorted(slices.Values(append([]string{"rendered_prompt", "result"}, runItemFields...)))
)

func TestRunHasTheFieldsThatScriptsRelyOn(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	unit := f.submit(mock(""))
	c := f.run(unit, "all of it", step(1, transcript.SystemText, "hello"))
	r := f.get("/runs/" + c.RunID.String()).is(200).fields()
	if diff := cmp.Diff(runFields, slices.Sorted(maps.Keys(r))); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]any{
		"id": c.RunID.String(), "unit_id": unit.String(), "attempt": 1.0, "task": "Count the words", "worker_type": "mock",
		"status": "succeeded", "result": "all of it", "error": nil, "rendered_prompt": "rendered", "session_id": "session",
		"num_turns": 2.0, "tool_calls": 1.0, "total_cost_usd": 0.25, "duration_ms": 20.0, "duration_api_ms": 10.0, "has_transcript": true,
	} {
		if r[name] != want {
			t.Errorf("%s: %v, want %v", name, r[name], want)
		}
	}
	if diff := cmp.Diff([]any{map[string]any{"id": nil, "name": "out.txt", "size": 3.0}}, r["output_files"]); diff != "" {
		t.Error(diff)
	}
	inUnit := f.get("/work-units/" + unit.String()).is(200).fields()["runs"].([]any)
	if diff := cmp.Diff([]any{r}, inUnit); diff != "" {
		t.Error(diff)
	}
}

func TestRunListFilters(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	first := f.submit(mock(""))
	second := f.submit(`{"backend":"mock","prompt":"Weigh the words"}`)
	done := f.run(first, "done").RunID.String()
	live := f.claim(second).RunID.String()
	var list listAnswer
	f.get("/runs").is(200).into(&list)
	if diff := cmp.Diff(runItemFields, slices.Sorted(maps.Keys(list.Items[0]))); diff != "" {
		t.Error(diff)
	}
	for query, want := range map[string][]string{
		"": {live, done}, "status=running": {live}, "status=succeeded,lost": {done}, "status=lost": {}, "backend=mock": {live, done},
		"backend=claude": {}, "unit=" + first.String(): {done}, "q=weigh": {live}, "limit=1": {live}, "after=" + live: {done}, "after=" + done: {},
	} {
		if diff := cmp.Diff(want, f.listed("/runs?"+query)); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
}
