package page

import (
	"strings"
	"testing"

	"piecework/internal/work"
)

func TestActionsOfEveryState(t *testing.T) {
	t.Parallel()
	asked := running()
	asked.CancelRequestedAt = &now
	timedOut := failed()
	timedOut.State = work.TimedOut
	for _, test := range []struct {
		unit work.Unit
		want string // of cancel, retry and stopping
	}{
		{queued(), "cancel"}, {running(), "cancel"}, {unit(9, work.Waiting), "cancel"}, {asked, "stopping"},
		{failed(), "retry"}, {unit(9, work.Cancelled), "retry"}, {timedOut, "retry"}, {succeeded(), ""},
	} {
		u := Unit{Unit: test.unit, Now: now, Filter: Filter{Status: "failed"}}
		page := rendered(t, Part{Name: "actions", Data: u})
		for name, sign := range map[string]string{
			"cancel":   `href="/units/` + u.ID.String() + `/cancel?status=failed" data-ask data-key="c"`,
			"retry":    `href="/units/` + u.ID.String() + `/retry?status=failed" data-ask data-key="r"`,
			"stopping": "asked to stop",
		} {
			if has := strings.Contains(page, sign); has != (name == test.want) {
				t.Errorf("%s: %s is %v: %s", test.unit.State, name, has, page)
			}
		}
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	golden(t, "ask-cancel.html", AskCancel(Unit{Unit: running(), Filter: Filter{Search: "<b>"}}))
	ask := AskRetry(Unit{Unit: failed()}, true)
	ask.Error, ask.Change.Prompt, ask.Change.Model = "The turns must be a number.", "\nfirst\n</textarea><b>", `"><b>`
	golden(t, "ask-retry.html", ask.Part())
	golden(t, "ask-pause.html", AskPause(Switch{Kind: "queue", Name: "slow", Back: "/overview?window=1h"}).Part())
	golden(t, "ask-retry-all.html", AskRetryAll(Filter{Status: "failed,timed_out", Backend: "mock", Since: "24h", Labels: []string{"team:<legal>"}},
		12_345, 10_000, work.NewCost(6.5, 0), []work.Unit{failed()}).Part())
	undo := Switch{Kind: "backend", Name: "mock", Back: "/"}.Resume()
	golden(t, "notice.html", Part{Name: "notice", Data: Notice{Text: "It is <b>paused</b>.", Undo: &undo, Close: "/?q=<b>"}})
	golden(t, "switch.html", Part{Name: "switch", Data: Switch{Kind: "queue", Name: "slow", Back: "/overview"}})

	long := failed()
	long.Prompt = strings.Repeat("x", maxFormPrompt+1)
	if page := rendered(t, AskRetry(Unit{Unit: long}, false)); len(page) > 10_000 || strings.Contains(page, "<textarea") {
		t.Errorf("%d bytes", len(page))
	}
}

// Who confirms must have read what it costs.
func TestConsequencesAreTold(t *testing.T) {
	t.Parallel()
	again := running()
	again.RunCount, again.Cost = 2, work.NewCost(0.5, 0)
	waits := queued()
	waits.RunCount, waits.Cost = 3, work.NewCost(0.25, 1)
	for page, want := range map[string]string{
		rendered(t, AskCancel(Unit{Unit: queued()})):                                "has cost nothing",
		rendered(t, AskCancel(Unit{Unit: again})):                                   "earlier runs have cost $0.50",
		rendered(t, AskCancel(Unit{Unit: waits})):                                   "earlier runs have cost ≥ $0.25",
		rendered(t, AskRetry(Unit{Unit: failed()}, false)):                          "Its 3 runs so far have cost $0.0123",
		rendered(t, AskRetry(Unit{Unit: failed()}, true)):                           "<details open>",
		rendered(t, AskRetryAll(Filter{Status: "failed"}, 1, 10, work.Cost{}, nil)): "Run 1 unit again?",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in %s", want, page)
		}
	}
}

func TestOnlyListsOfEndedUnitsAreRetriedTogether(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]int{"failed,timed_out": 15, "cancelled": 0, "succeeded": 0, "": 0, "queued": 0} {
		f := Filter{Status: status}
		if got := (List{Filter: f, Pills: pillsOf(f)}).Again().Count; got != want {
			t.Errorf("%q: %d", status, got)
		}
	}
}
