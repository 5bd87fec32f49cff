package conformance

import (
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Each agent has its own way to tell that a tool was not allowed.
func TestDeniedCallsOfEveryAgent(t *testing.T) {
	t.Parallel()
	const tool = `tool Bash {"command":"touch x"}`
	for _, name := range dialects {
		for _, test := range []struct {
			name    string
			script  []string
			denials int
			open    []transcript.Denial
		}{
			{"allowed", []string{"init", tool, "toolresult fine", "result done"}, 0, nil},
			{"denied", []string{"init", tool, "denied not allowed", "result done"}, 1, []transcript.Denial{{Args: "touch x"}}},
			{"made good", []string{"init", tool, "denied not allowed", tool, "toolresult fine", "result done"}, 1, nil},
			{"then another", []string{"init", tool, "denied not allowed", `tool Bash {"command":"ls"}`, "toolresult fine", "result done"}, 1,
				[]transcript.Denial{{Args: "touch x"}}},
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				t.Parallel()
				steps := transcript.NewWriter(nil, nil)
				result, err := fakeAs(t, name).Execute(t.Context(), backendtest.NewRequest(t, backendtest.Script(test.script...)), steps)
				if err != nil || !result.Success || result.Output != "done" {
					t.Fatalf("%v, %+v, error %v", err, result, result.Error)
				}
				count, open := steps.Denied()
				same := func(a, b transcript.Denial) bool { return strings.Contains(a.Args, b.Args) }
				if steps.Denials() != test.denials || count != len(test.open) || !slices.EqualFunc(open, test.open, same) {
					t.Errorf("%d denials, %d open: %+v", steps.Denials(), count, open)
				}
				marked := 0
				for _, s := range steps.Steps() {
					if s.Denied {
						marked++
					}
				}
				if marked != test.denials {
					t.Errorf("%d steps are marked as denied", marked)
				}
			})
		}
	}
}

// Opencode ends without a word when a tool is not allowed. That is no crash,
// and would be no other the next time.
func TestOpenCodeEndsWithADeniedCall(t *testing.T) {
	t.Parallel()
	got := backendtest.Execute(t.Context(), t, fakeAs(t, "opencode"), backendtest.NewRequest(t, backendtest.Script("init", "text I try", `tool Bash {"command":"touch x"}`, "denied no")))
	got.WantFailure(t, work.ClassToolDenied, "not allowed")
	if got.Output != "I try" {
		t.Errorf("output %q", got.Output)
	}
}

// What a model asked for is in the transcript, although nobody offered it.
func TestToolCallsOfModelAPIsAreSeen(t *testing.T) {
	t.Parallel()
	model := fakemodel.Start(t)
	model.Script(fakemodel.Turn{Text: "I look", Calls: []fakemodel.Call{
		{ID: "c1", Name: "get_weather", Input: map[string]string{"city": "Ulm"}}, {ID: "c2", Name: "get_time"},
	}})
	for name, b := range modelAPIs(t, model.URL) {
		for _, way := range []string{"live", "in a batch"} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				var got backendtest.Run
				if way == "live" {
					got = backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "what is the weather?"))
				} else {
					got = throughBatch(t, b.(backend.Batcher), backendtest.NewRequest(t, "what is the weather?"))
				}
				got.WantFailure(t, work.ClassToolDenied, `the tool "get_weather"`)
				if got.Output != "I look" {
					t.Errorf("output %q", got.Output)
				}
				var calls []string
				for _, s := range got.Steps {
					for _, c := range s.Content {
						if c.Type == transcript.ToolCall {
							calls = append(calls, c.ID+" "+c.Name+" "+strings.ReplaceAll(c.Args, " ", ""))
						}
					}
				}
				if want := []string{`c1 get_weather {"city":"Ulm"}`, "c2 get_time "}; len(calls) != 2 || calls[0] != want[0] || !strings.HasPrefix(calls[1], want[1]) {
					t.Errorf("calls %q, want %q", calls, want)
				}
				for _, s := range got.Steps[len(got.Steps)-2:] {
					if s.Type != transcript.ToolResult || !s.Denied || !strings.Contains(s.Text, "offers no tools") {
						t.Errorf("the answer to a call: %+v", s)
					}
				}
			})
		}
	}
}

// Some servers end an answer that asks for a tool as if it were done.
func TestToolCallWithoutItsStopReason(t *testing.T) {
	t.Parallel()
	model := fakemodel.Start(t)
	model.Script(fakemodel.Turn{StopReason: "end_turn", Calls: []fakemodel.Call{{ID: "c1", Name: "get_weather"}}})
	for name, b := range modelAPIs(t, model.URL) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "what is the weather?")).WantFailure(t, work.ClassToolDenied, "get_weather")
		})
	}
}

// An answer that was too long to be read is not there, and would not be there
// if the unit ran again for the same price.
func TestAnswerThatIsTooLong(t *testing.T) {
	t.Parallel()
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := backendtest.NewRequest(t, backendtest.Script("init", "text on my way", "resultbytes 34000000"))
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name), req)
			got.WantFailure(t, work.ClassInvalidRequest, "32 MiB", "write what is long into a file")
			if got.Error.Class.Follow() != work.FollowFail {
				t.Error("it would be paid for again")
			}
			if name == "claude" && !got.CostIncomplete {
				t.Error("the cost was in the line that is lost")
			}
		})
	}
}

// A line that is too long and was not the answer loses nothing but itself.
func TestLongLineBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backendtest.Execute(t.Context(), t, fakeAs(t, name), backendtest.NewRequest(t, backendtest.Script("init", "line 34000000", "result done"))).WantSuccess(t, "done")
		})
	}
}
