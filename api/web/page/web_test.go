package page

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Every story is rendered as the server would, and looks as it did.
func TestStories(t *testing.T) {
	t.Parallel()
	for _, story := range Stories() {
		if story.Name == "unit-thousand-steps" {
			continue // as unit-done, and large
		}
		golden(t, "story-"+story.Name+".html", story.Page)
	}
	golden(t, "stories.html", Storybook{Stories()})
}

func golden(t *testing.T, name string, page Page) {
	t.Helper()
	var out bytes.Buffer
	if err := page.Render(&out); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/"+name, out.Bytes())
}

// The units of the stories, by their states.
var (
	now       = storyNow
	unit      = madeUnit
	queued    = storyQueued
	scheduled = storyScheduled
)

func pillsOf(f Filter) []Pill { return storyList(f).List.Pills }

func running() work.Unit       { return storyRunning().Unit }
func succeeded() work.Unit     { return storyDone(60).Unit }
func failed() work.Unit        { return storyFailed(0).Unit }
func steps() []transcript.Step { return madeSteps(5) }

func run(status work.RunStatus, attempt int) work.Run {
	return storyRun(madeUnit(1, work.Running), status, attempt)
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
	for i := range many {
		many[i] = transcript.Step{Number: i + 1, Type: transcript.SystemText, Text: "x"}
	}
	done := run(work.RunSucceeded, 1)
	u := madeUnit(1, work.Succeeded)
	u.Title = strings.Repeat("x", 1<<20)
	page := NewUnit(u, nil, &done, many, now)
	if steps := page.Steps(); len(steps.Shown) != window || steps.Earlier != len(many)-2*window+1 || steps.Later != 0 {
		t.Errorf("%d steps, earlier %d, later %d", len(steps.Shown), steps.Earlier, steps.Later)
	}
	var out bytes.Buffer
	if err := page.Render(&out); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 2<<20 {
		t.Errorf("%d bytes", out.Len())
	}
}

func call(number int, id string) transcript.Step {
	return transcript.Step{Number: number, Type: transcript.Action, Content: []transcript.Content{
		{Type: transcript.Text, Text: "now"}, {Type: transcript.ToolCall, ID: id, Name: "shell", Args: "{}"}}}
}

func answer(number int, id, text string, wrong bool) transcript.Step {
	return transcript.Step{Number: number, Type: transcript.ToolResult, CallID: id, Name: "shell", Text: text, IsError: wrong}
}

func TestCallsStandWithTheirAnswers(t *testing.T) {
	t.Parallel()
	steps := []transcript.Step{
		call(1, "a"), call(2, "b"), answer(3, "b", "second", true), answer(4, "a", "first", false),
		call(5, "a"), answer(6, "a", "again", false), // the id comes again
		answer(7, "gone", "whose?", false), call(8, "c"),
	}
	states := func(status work.RunStatus) (all []string) {
		for _, s := range NewScript(run(status, 1), steps, now).At(0).Shown {
			for _, c := range s.Parts {
				switch {
				case c.Result != nil:
					all = append(all, c.State+" "+c.Answer)
				case c.State != "":
					all = append(all, c.State)
				}
			}
		}
		return all
	}
	for status, last := range map[work.RunStatus]string{work.RunRunning: "running", work.RunLost: "unanswered"} {
		want := []string{"done first", "error second", "done again", " whose?", last}
		if got := states(status); !slices.Equal(got, want) {
			t.Errorf("%s: %q", status, got)
		}
	}
	if first := NewScript(run(work.RunLost, 1), steps, now).At(0).FirstError; first != 2 {
		t.Errorf("the first error is at %d: its call is step 2", first)
	}
}

func TestStepsAsked(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", excerpt+1)
	script := NewScript(run(work.RunRunning, 1), []transcript.Step{call(1, "a"), answer(2, "a", long, false), call(3, "b"), call(4, "c"),
		answer(5, "b", "", false)}, now)
	for asked, want := range map[string][]int{
		"1": {1}, "2": {1}, "3-": {3, 4}, "5": {3}, "4,1": {1, 4}, "1-4": {1, 3, 4}, "9": nil, "": nil, "x,-1,3": {3}, "1-999999999999999999999": {1, 3, 4},
	} {
		var got []int
		for _, s := range script.Of(asked, false).Shown {
			got = append(got, s.Number)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, not %v", asked, got, want)
		}
	}
	if c := script.Of("1", false).Shown[0].Parts[1]; len(c.Answer) != excerpt || !c.Cut {
		t.Errorf("%d bytes, cut %v", len(c.Answer), c.Cut)
	}
	if c := script.Of("1", true).Shown[0].Parts[1]; len(c.Answer) != len(long) || c.Cut {
		t.Errorf("%d bytes of the whole, cut %v", len(c.Answer), c.Cut)
	}
}

func TestWindowsMeet(t *testing.T) {
	t.Parallel()
	steps := make([]transcript.Step, 1000)
	for i := range steps {
		steps[i] = transcript.Step{Number: i + 1, Type: transcript.Reasoning}
	}
	script := NewScript(run(work.RunSucceeded, 1), steps, now)
	part := script.At(500)
	first, last := part.Shown[0].Number, part.Shown[len(part.Shown)-1].Number
	if first > 500 || last < 500 || part.Later != last+1 || part.Earlier != first-window {
		t.Errorf("%d to %d, earlier %d, later %d", first, last, part.Earlier, part.Later)
	}
	if part := script.At(5000); part.Later != 0 || part.Shown[window-1].Number != 1000 {
		t.Errorf("beyond the end: %d, later %d", part.Shown[window-1].Number, part.Later)
	}
}

func TestMarkdownDoesNoHarm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"# A **b**":                             "<h1>A <strong>b</strong></h1>\n",
		"<script>alert(1)</script>x":            "<p>&lt;script&gt;alert(1)&lt;/script&gt;x</p>\n",
		"a <b>c</b>":                            "<p>a &lt;b&gt;c&lt;/b&gt;</p>\n",
		"![x](http://evil.example/?q=1)":        "<p></p>\n",
		"[x](javascript:alert(1))":              "<p>x</p>\n",
		"[x](/cancel)":                          "<p>x</p>\n",
		"[x](//evil.example)":                   "<p>x</p>\n",
		`[x](https://a.example "t")`:            `<p><a href="https://a.example" rel="nofollow noreferrer noopener" target="_blank">x</a></p>` + "\n",
		`<a href="/" style="x" id="head">x</a>`: "<p>&lt;a href=&#34;/&#34; style=&#34;x&#34; id=&#34;head&#34;&gt;x&lt;/a&gt;</p>\n",
		"a\nb":                                  "<p>a<br>\nb</p>\n",
		"zero\u200bwidth":                       "<p>zero‹U+200B›width</p>\n",
	} {
		if got := string(markdown(text)); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := markdown(strings.Repeat("<", maxMarkdown+1)); strings.Count(string(got), "&lt;") != maxMarkdown {
		t.Errorf("%d bytes", len(got))
	}
}

func TestTimelineGivesEachItsTime(t *testing.T) {
	t.Parallel()
	done := run(work.RunSucceeded, 1)
	end := done.StartedAt.Add(100 * time.Second)
	done.CompletedAt = &end
	steps := []transcript.Step{call(1, "a"), answer(2, "a", "", false), call(3, "b"), answer(4, "b", "", false)}
	for i, s := range []int{10, 60, 70, 80} {
		steps[i].Time = done.StartedAt.Add(time.Duration(s) * time.Second)
	}
	line := NewScript(done, steps, now).timeline.end()
	if len(line.Shares) != 2 || line.Shares[0].Name != "shell" || line.Shares[0].Percent != 60 || line.Shares[0].Times != 2 ||
		line.Shares[1].Percent != 40 {
		t.Errorf("%+v", line.Shares)
	}
	if len(line.Bars) != 5 || line.Bars[1].X != 100 || line.Bars[1].Width != 500 {
		t.Errorf("%+v", line.Bars)
	}
	if line := NewScript(done, nil, now).timeline.end(); line.Bars != nil {
		t.Errorf("%+v of nothing", line)
	}
}

func TestPillsKeepTheRestOfTheFilter(t *testing.T) {
	t.Parallel()
	list := Filter{Search: "x", Status: "failed,timed_out", Labels: []string{"a:b", "c:d"}}.Pills(map[work.State]int{work.Failed: 2,
		work.TimedOut: 3, work.Queued: 10}, 10)
	if all := list[0]; all.Query != "?label=a%3Ab&label=c%3Ad&q=x" || all.Chosen || all.Count != 15 || !all.Most {
		t.Errorf("%+v", all)
	}
	if failed := list[5]; !failed.Chosen || failed.Count != 5 || failed.Most {
		t.Errorf("%+v", failed)
	}
	var states int
	for _, p := range pills {
		states += len(p.states)
	}
	if states != len(work.States) {
		t.Errorf("%d states have a pill of %d", states, len(work.States))
	}
}

func TestAgoAndTook(t *testing.T) {
	t.Parallel()
	for before, want := range map[time.Duration]string{
		0: "just now", -time.Hour: "2 Jan 2026 04:04:05 UTC", 90 * time.Second: "1 min ago", 3 * time.Hour: "3 h ago", 72 * time.Hour: "30 Dec 2025",
	} {
		if got := ago(now, now.Add(-before)); got != want {
			t.Errorf("%s: %s", before, got)
		}
	}
	for length, want := range map[time.Duration]string{
		0: "1 ms", 1234567 * time.Microsecond: "1.2 s", 90500 * time.Millisecond: "1 min 30 s", 3*time.Hour + 5*time.Minute: "3 h 05 min",
	} {
		end := now.Add(length)
		if got := took(now, now, &end); got != want {
			t.Errorf("%s: %s", length, got)
		}
	}
	if got := took(now, *before(5 * time.Second), nil); got != "5.0 s" {
		t.Error(got)
	}
}
