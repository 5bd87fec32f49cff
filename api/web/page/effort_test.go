package page

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// hostileMarkdown is text for which a parser of Markdown, or the page that comes
// of it, takes more than its share.
func hostileMarkdown() map[string]string {
	all := map[string]string{}
	for _, piece := range []string{
		">", ">>", "> ", " >", "1. ", "+ ", "- ", "*~", "_www.", "www._", "~www.", "@*", "[", "[:", "[-", "[a](", "![a", "`", "<", "*a_",
		"|a", "|-",
		"\n", ">\n", "\n>", "a\n\n", "- a\n\n", "[a]: b\n\n", "a\n- ", "`\\\t", "~\n\n", "-|<", "#<", "&amp;", "**a ", "\\[", "(www.",
		"(http://", "(", ")www.", "1. [:\n", "2. [:\n", "a\n    - [:*~\n", "- [:\n    2. *~\n", "|[:\n|-\n",
	} {
		all[fmt.Sprintf("%q", piece)] = strings.Repeat(piece, maxMarkdown/len(piece))
	}
	grow := func(line func(n int) string) string {
		var b strings.Builder
		for n := 0; ; n++ {
			next := line(n)
			if b.Len()+len(next) > maxMarkdown {
				return b.String()
			}
			b.WriteString(next)
		}
	}
	all["lists in lists"] = grow(func(n int) string { return strings.Repeat("  ", n) + "- a\n" })
	all["many levels, many lines"] = grow(func(int) string { return strings.Repeat(">", maxMarkers) + " a\n\n" })
	all["a wide table"] = strings.Repeat("|a", 9000) + "\n" + strings.Repeat("|-", 9000) + "\n" + strings.Repeat("a\n", 9000)
	all["a long link"] = "[a]: <" + strings.Repeat("u", 90_000) + ">\n\n" + strings.Repeat("[a]\n\n", 18_000)
	all["many links"] = grow(func(n int) string { return fmt.Sprintf("[x%d]: y\n\n[x%d]\n\n", n, n) })
	return all
}

// Not parallel, for it counts what the process allocates: what takes time takes
// memory here too, or is refused by plainEnough.
func TestHostileMarkdownIsCheap(t *testing.T) {
	for name, text := range hostileMarkdown() {
		var out string
		if spent := testkit.Allocated(t, func() { out = string(markdown(text)) }); spent > 20<<20 {
			t.Errorf("%s: allocated %d bytes", name, spent)
		}
		if len(out) > maxLaidOut+maxMarkdown {
			t.Errorf("%s: became %d bytes", name, len(out))
		}
		if depth := strings.Count(out, "<blockquote>") + strings.Count(out, "<ul>"); depth > maxLines*maxMarkers {
			t.Errorf("%s: %d elements", name, depth)
		}
	}
	for _, piece := range []string{">", "> ", "www._", "[:", "- ", "*~"} {
		if out := string(markdown(strings.Repeat(piece, maxMarkdown/len(piece)))); !strings.HasPrefix(out, "<pre>") {
			t.Errorf("%q is laid out", piece)
		}
	}
}

// What models write is laid out, also when there is much of it.
func TestOrdinaryMarkdownIsLaidOut(t *testing.T) {
	t.Parallel()
	prose := strings.Repeat("The quick brown fox (it's \"quick\") jumps over the lazy dog; again, and again. ", 1000)
	for name, text := range map[string]string{
		"prose in one line": prose,
		"paragraphs":        strings.Repeat("Some **bold** words, `code` and a [link](https://a.example).\n\n", 2000),
		"a list":            strings.Repeat("- one thing, *with* `code`\n", 1000),
		"lists in lists":    strings.Repeat("- a\n  - b\n    - c\n      1. d\n", 300),
		"a table":           "| a | b | c |\n|---|:-:|--:|\n" + strings.Repeat("| 1 | `two` | **3** |\n", 200),
		"code":              "Here:\n\n```go\n" + strings.Repeat("if err := f(a[i], *b, &c); err != nil { return fmt.Errorf(\"x: %w\", err) }\n", 1500) + "```\n",
		"quotes":            strings.Repeat("> said\n>> before\n\n", 300),
		"links elsewhere":   strings.Repeat("See [1] and [2].\n\n", 100) + "[1]: https://a.example\n[2]: https://b.example\n",
	} {
		if out := string(markdown(text)); strings.HasPrefix(out, "<pre>") && name != "code" || !strings.Contains(out, "<") {
			t.Errorf("%s is not laid out", name)
		}
	}
}

func TestPrettyIsBounded(t *testing.T) {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	for name, raw := range map[string]string{
		"deep":      "[" + strings.Repeat(deep+",", 10) + "1]",
		"long":      "[" + strings.Repeat("1,", 5<<20) + "1]",
		"long text": `"` + strings.Repeat("x", 10<<20) + `"`,
	} {
		var out string
		if spent := testkit.Allocated(t, func() { out = show(pretty(json.RawMessage(raw))) }); spent > 32<<20 ||
			len(out) > maxShownText+100 {
			t.Errorf("%s: %d bytes for %d", name, spent, len(out))
		}
	}
	if got := pretty(json.RawMessage(`{"a":["\"[{",1]}`)); got != "{\n  \"a\": [\n    \"\\\"[{\",\n    1\n  ]\n}" {
		t.Errorf("%s", got)
	}
}

// A page of steps has room for so much, whatever an agent writes into them.
func TestPageOfStepsIsBounded(t *testing.T) {
	t.Parallel()
	var steps []transcript.Step
	for i := range 200 {
		s := transcript.Step{Number: i + 1, Type: transcript.Action, Time: now, Text: strings.Repeat("x", 50<<10)}
		for n := range 3000 {
			s.Content = append(s.Content, transcript.Content{Type: transcript.Text, Text: fmt.Sprint("part ", n)})
		}
		steps = append(steps, s)
	}
	script := NewScript(run(work.RunSucceeded, 1), steps, now)
	size := 0
	for _, s := range script.At(0).Shown {
		size += len(s.Text)
		if len(s.Parts) > maxParts+1 {
			t.Errorf("%d parts", len(s.Parts))
		}
		for _, p := range s.Parts {
			size += len(p.Text)
		}
	}
	if size > pageRoom+200*(excerpt+100)+200*maxParts*20 {
		t.Errorf("%d bytes", size)
	}
	if got := script.Of(strings.Repeat("1-,", 1<<20), false); len(got.Shown) != 200 {
		t.Errorf("%d steps", len(got.Shown))
	}
}

// Each tool may have a name of its own: the figure has room for some.
func TestTimelineHasFewShares(t *testing.T) {
	t.Parallel()
	done := run(work.RunSucceeded, 1)
	end := done.StartedAt.Add(1000 * time.Second)
	done.CompletedAt = &end
	var steps []transcript.Step
	for i := range 500 {
		steps = append(steps, transcript.Step{Number: i + 1, Type: transcript.ToolResult, Name: fmt.Sprint("tool", i),
			Time: done.StartedAt.Add(time.Duration(i+1) * time.Second)})
	}
	line := NewScript(done, steps, now).timeline.end()
	times := 0
	for _, s := range line.Shares {
		times += s.Times
	}
	if len(line.Shares) != maxShares+1 || line.Shares[maxShares].Name != "others" || times != 501 {
		t.Errorf("%d shares, %d times", len(line.Shares), times)
	}
}
