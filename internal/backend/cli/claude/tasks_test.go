package claude

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// A turn that ends to wait for something is gone on with once, in the same
// session.
func TestTurnThatEndsToWait(t *testing.T) {
	t.Parallel()
	wakeup := `tool ScheduleWakeup {"delaySeconds":120}`
	for _, test := range []struct {
		name   string
		script []string
		output string // of a success
		asked  bool
	}{
		{"background task", []string{"next init", "next result all done", "init", "background the build", "result waiting for the build"}, "all done", true},
		{"task that has ended", []string{"init", "background the build", "result waiting", "backgroundends the build", "init", "result all done"}, "all done", false},
		{"wake-up", []string{"next init", "next result all done", "init", wakeup, "toolresult scheduled", "result waiting"}, "all done", true},
		{"wake-up that was not to be had", []string{"init", wakeup, "denied no such tool", "result all done"}, "all done", false},
		{"wake-up that came", []string{"init", wakeup, "toolresult scheduled", "result waiting", "init", "result all done"}, "all done", false},
		{"waits again", []string{"next init", "next background more", "next result still waiting", "init", "background the build", "result waiting"}, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			req := backendtest.NewRequest(t, backendtest.Script(test.script...))
			got := backendtest.Execute(t.Context(), t, fake(t), req)
			if test.output != "" {
				got.WantSuccess(t, test.output)
			} else {
				got.WantFailure(t, work.ClassIncomplete, "1 task(s) in the background (more)")
				if got.Output != "still waiting" {
					t.Errorf("output %q", got.Output)
				}
			}
			asked := slices.ContainsFunc(got.Texts(transcript.SystemText), func(s string) bool { return strings.Contains(s, "asking once more") })
			if asked != test.asked || got.Metadata.SessionID != req.SessionID {
				t.Errorf("asked again: %v, session %s", asked, got.Metadata.SessionID)
			}
			if asked && got.Metadata.NumTurns != 2 {
				t.Errorf("%d turns of two processes", got.Metadata.NumTurns)
			}
		})
	}
}

// Each event counts by itself: that a task has ended is told by an event of its own,
// by the list of all tasks, or by both.
func TestEventsOfTasks(t *testing.T) {
	t.Parallel()
	started := `task_started {"task_id":"1","description":"the build","is_backgrounded":true}`
	for _, test := range []struct {
		name   string
		events []string
		open   string
	}{
		{"started", []string{started}, "1 task(s) in the background (the build)"},
		{"in the foreground", []string{`task_started {"task_id":"1","description":"the build"}`}, ""},
		{"completed", []string{started, `task_updated {"task_id":"1","patch":{"status":"completed"}}`}, ""},
		{"killed", []string{started, `task_updated {"task_id":"1","patch":{"status":"killed"}}`}, ""},
		{"notified", []string{started, `task_notification {"task_id":"1","status":"failed"}`}, ""},
		{"goes on", []string{started, `task_updated {"task_id":"1","patch":{"status":"running"}}`}, "1 task(s) in the background (the build)"},
		{"another completed", []string{started, `task_updated {"task_id":"2","patch":{"status":"completed"}}`}, "1 task(s) in the background (the build)"},
		{"listed", []string{`background_tasks_changed {"tasks":[{"task_id":"1","description":"the build"}]}`}, "1 task(s) in the background (the build)"},
		{"not listed any more", []string{started, `background_tasks_changed {"tasks":[]}`}, ""},
	} {
		tasks := newPendingTasks()
		for _, event := range test.events {
			subtype, text, _ := strings.Cut(event, " ")
			var e taskEvent
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatal(err)
			}
			tasks.take(subtype, e)
		}
		if got := tasks.open(); got != test.open {
			t.Errorf("%s: %q, want %q", test.name, got, test.open)
		}
	}
}

// max_turns is for the whole run.
func TestTurnThatEndsToWaitWithNoTurnLeft(t *testing.T) {
	t.Parallel()
	req := backendtest.NewRequest(t, backendtest.Script("init", "background the build", "result waiting for the build"))
	req.MaxTurns = 1
	got := backendtest.Execute(t.Context(), t, fake(t), req)
	got.WantFailure(t, work.ClassIncomplete)
	if got.Output != "waiting for the build" {
		t.Errorf("output %q", got.Output)
	}
}

// Tools that need somebody to come back are not offered.
func TestAwaitingToolsAreSwitchedOff(t *testing.T) {
	t.Parallel()
	got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t, backendtest.Script("init", "args", "result done")))
	args := strings.Join(got.Texts(transcript.Action), "")
	for _, tool := range []string{"ScheduleWakeup", "CronCreate", "Monitor", "Workflow", "AskUserQuestion"} {
		if _, after, found := strings.Cut(args, `"--disallowedTools"`); !found || !strings.Contains(after, `"`+tool+`"`) {
			t.Errorf("%s is offered: %s", tool, args)
		}
	}
}
