package backend

import (
	"slices"
	"strings"
	"testing"

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
			req := request(t, verbs(test.script...))
			got := try(t.Context(), t, fake(t), req)
			if test.output != "" {
				got.wantSuccess(t, test.output)
			} else {
				got.wantFailure(t, work.ClassIncomplete, "1 task(s) in the background (more)")
				if got.Output != "still waiting" {
					t.Errorf("output %q", got.Output)
				}
			}
			asked := slices.ContainsFunc(got.texts(transcript.SystemText), func(s string) bool { return strings.Contains(s, "asking once more") })
			if asked != test.asked || got.Metadata.SessionID != req.SessionID {
				t.Errorf("asked again: %v, session %s", asked, got.Metadata.SessionID)
			}
			if asked && got.Metadata.NumTurns != 2 {
				t.Errorf("%d turns of two processes", got.Metadata.NumTurns)
			}
		})
	}
}

// max_turns is for the whole run.
func TestTurnThatEndsToWaitWithNoTurnLeft(t *testing.T) {
	t.Parallel()
	req := request(t, verbs("init", "background the build", "result waiting for the build"))
	req.MaxTurns = 1
	got := try(t.Context(), t, fake(t), req)
	got.wantFailure(t, work.ClassIncomplete)
	if got.Output != "waiting for the build" {
		t.Errorf("output %q", got.Output)
	}
}

// Tools that need somebody to come back are not offered.
func TestAwaitingToolsAreSwitchedOff(t *testing.T) {
	t.Parallel()
	got := try(t.Context(), t, fake(t), request(t, verbs("init", "args", "result done")))
	args := strings.Join(got.texts(transcript.Action), "")
	for _, tool := range []string{"ScheduleWakeup", "CronCreate", "Monitor", "Workflow", "AskUserQuestion"} {
		if _, after, found := strings.Cut(args, `"--disallowedTools"`); !found || !strings.Contains(after, `"`+tool+`"`) {
			t.Errorf("%s is offered: %s", tool, args)
		}
	}
}
