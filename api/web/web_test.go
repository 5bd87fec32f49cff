package web

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func golden(t *testing.T, name string, page Page) {
	t.Helper()
	var out bytes.Buffer
	if err := page.Render(&out); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/"+name, out.Bytes())
}

func at(before time.Duration) *time.Time {
	when := now.Add(-before)
	return &when
}

func unit(n byte, state work.State) work.Unit {
	return work.Unit{
		ID: uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 15: n}, Title: "Read the contract and name its dates", State: state,
		CreatedAt: now.Add(-3 * time.Minute), RunCount: 1, CostUSD: 0.0123,
		Spec: work.Spec{Backend: "claude", Model: "small", Prompt: "Read {file_path} and name its dates",
			Payload: json.RawMessage(`{"file_path":"docs:contract.txt","note":"<b> & \"co\""}`)},
	}
}

func queued() work.Unit {
	u := unit(1, work.Queued)
	expires := now.Add(time.Hour)
	u.RunCount, u.CostUSD, u.ExpiresAt = 0, 0, &expires
	return u
}

func scheduled() work.Unit {
	u := queued()
	later := now.Add(time.Hour)
	u.ID[15], u.NotBefore = 2, &later
	return u
}

func running() work.Unit {
	u := unit(3, work.Running)
	u.StartedAt = at(90 * time.Second)
	return u
}

func succeeded() work.Unit {
	u := unit(4, work.Succeeded)
	output := "It begins on 1 May 2026.\nIt ends on 30 April 2028."
	u.StartedAt, u.FinishedAt, u.Output, u.Summary = at(time.Minute), at(57*time.Second), &output, &output
	return u
}

func failed() work.Unit {
	u := unit(5, work.Failed)
	u.StartedAt, u.FinishedAt, u.RunCount = at(time.Minute), at(50*time.Second), 3
	u.Error = work.Fail(work.ClassAuth, "401 from <model>: the key was refused\x1b[31m")
	return u
}

func run(status work.RunStatus, attempt int) work.Run {
	cost, live := 0.0123, "reads docs:contract.txt"
	r := work.Run{ID: uuid.UUID{0: 2, 15: byte(attempt)}, Attempt: attempt, Status: status, StartedAt: *at(time.Minute), HasTranscript: true,
		ToolCalls: 1, LiveStatus: &live}
	if status != work.RunRunning {
		r.CompletedAt, r.NumTurns, r.TotalCostUSD = at(57*time.Second), 2, &cost
		r.Usage = work.Usage{InputTokens: 1200, OutputTokens: 80}
	}
	return r
}

func steps() []transcript.Step {
	return []transcript.Step{
		{Number: 1, Type: transcript.SystemText, Text: "session begins"},
		{Number: 2, Type: transcript.Reasoning, Text: "I should read it first."},
		{Number: 3, Type: transcript.Action, Content: []transcript.Content{
			{Type: transcript.Text, Text: "I read it."}, {Type: transcript.ToolCall, Name: "Read", Args: `{"path":"contract.txt"}`}}},
		{Number: 4, Type: transcript.ToolResult, Name: "Read", Text: "<script>alert(1)</script>", IsError: true},
		{Number: 5, Type: transcript.UserText, Text: "Go on."},
	}
}

func TestListPage(t *testing.T) {
	t.Parallel()
	golden(t, "list.html", List{Units: []work.Unit{scheduled(), queued(), running(), succeeded(), failed()}, Search: `"dates" & <co>`,
		Next: uuid.Max.String(), Now: now})
	golden(t, "list-empty.html", List{Now: now})
	golden(t, "list-nothing-found.html", List{Search: "<b>", Now: now})
}

func TestUnitPage(t *testing.T) {
	t.Parallel()
	golden(t, "unit-queued.html", Unit{Unit: queued(), Now: now})
	golden(t, "unit-running.html", Unit{Unit: running(), Now: now, Runs: []Run{NewRun(run(work.RunRunning, 1), steps()[:3])}})
	done := run(work.RunSucceeded, 1)
	id := uuid.UUID{0: 3}
	done.OutputFiles = []work.OutputFile{
		{ID: &id, Name: `<img src=x onerror=alert(1)>.txt`, Size: 12}, {Name: "big.bin", Size: 1 << 30, Reason: "larger than <10> bytes"},
	}
	whole := succeeded()
	whole.Files = work.Refs{id.String(), "docs:<a>.txt"}
	golden(t, "unit-succeeded.html", Unit{Unit: whole, Now: now, Runs: []Run{NewRun(done, steps())}})
	lost := run(work.RunLost, 1)
	lost.Error, lost.CostIncomplete, lost.HasTranscript = work.Fail(work.ClassInfra, "the worker process stopped giving signs of life"), true, false
	refused := run(work.RunFailed, 2)
	refused.Error = failed().Error
	golden(t, "unit-failed.html", Unit{Unit: failed(), Now: now, Runs: []Run{NewRun(lost, nil), NewRun(refused, steps()[:1])}})
}

func TestDeceivingCharactersAreShown(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain ä 漢字\n\ttext\r\n": "plain ä 漢字\n\ttext\r\n",
		"invoice\u202egnp.exe":   "invoice‹U+202E›gnp.exe",
		"zero\u200bwidth\ufeff":  "zero‹U+200B›width‹U+FEFF›",
		"red\x1b[31m\x07":        "red‹U+001B›[31m‹U+0007›",
		"hidden\U000e0041":       "hidden‹U+E0041›",
		"👩\u200d🔬 می\u200cخواهم": "👩\u200d🔬 می\u200cخواهم",
	} {
		if got := show(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestLongWordsAndManyStepsStaySmall(t *testing.T) {
	t.Parallel()
	many := make([]transcript.Step, 100_000)
	r := NewRun(run(work.RunSucceeded, 1), many)
	if len(r.Steps) != maxSteps || r.Earlier != len(many)-maxSteps {
		t.Errorf("%d steps, %d earlier", len(r.Steps), r.Earlier)
	}
	var out bytes.Buffer
	u := succeeded()
	u.Title = strings.Repeat("x", 1<<20)
	if err := (Unit{Unit: u, Now: now, Runs: []Run{r}}).Render(&out); err != nil {
		t.Fatal(err)
	}
}

func TestAgoAndTook(t *testing.T) {
	t.Parallel()
	for before, want := range map[time.Duration]string{
		0: "just now", -time.Hour: "just now", 90 * time.Second: "1 min ago", 3 * time.Hour: "3 h ago", 72 * time.Hour: "30 Dec 2025",
	} {
		if got := ago(now, now.Add(-before)); got != want {
			t.Errorf("%s: %s", before, got)
		}
	}
	for length, want := range map[time.Duration]string{
		0: "1ms", 1234567 * time.Microsecond: "1.235s", 90500 * time.Millisecond: "1m31s", 3 * time.Hour: "3h0m0s",
	} {
		end := now.Add(length)
		if got := took(now, now, &end); got != want {
			t.Errorf("%s: %s", length, got)
		}
	}
	if got := took(now, *at(5 * time.Second), nil); got != "5s" {
		t.Error(got)
	}
}
