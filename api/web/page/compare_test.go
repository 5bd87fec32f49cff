package page

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

func rendered(t *testing.T, page Page) string {
	t.Helper()
	var out bytes.Buffer
	if err := page.Render(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func comparison(a, b Unit) Comparison {
	return Comparison{IDs: [2]string{a.Run.ID.String(), b.Run.ID.String()}, Sides: [2]*Unit{&a, &b}}
}

func TestComparePage(t *testing.T) {
	t.Parallel()
	good, bad := run(work.RunSucceeded, 1), run(work.RunFailed, 2)
	prompt, other, model := "Read it.\nName its dates.\nBe brief.", "Read it.\nName all its <dates>.\nBe brief.", "small"
	good.RenderedPrompt, bad.RenderedPrompt, good.Model = &prompt, &other, &model
	bad.Error, bad.CostIncomplete = failed().Error, true
	a := NewUnit(succeeded(), []work.Run{good}, &good, []transcript.Step{steps()[1], call(2, "a"), answer(3, "a", "one", false)}, now)
	b := NewUnit(failed(), []work.Run{bad}, &bad, []transcript.Step{steps()[1], call(2, "a"), answer(3, "a", "<b>two", true), call(4, "b")}, now)
	golden(t, "compare.html", comparison(a, b))
	choice := Comparison{IDs: [2]string{a.ID.String(), "<b>"}, Sides: [2]*Unit{&a, nil}, Wrong: "There is no run and no unit with the id <b>.",
		Choices: []Candidate{OtherRun(b, bad), OtherUnit(scheduled(), now)}}
	golden(t, "compare-choice.html", choice)
	never := Unit{Unit: queued(), Now: now}
	if page := rendered(t, Comparison{Sides: [2]*Unit{&never, &a}}); !strings.Contains(page, "which has not run yet") {
		t.Error(page)
	}
}

// signs is a diff as a person would write it: words in [] have changed.
func signs(d Diff) (lines []string) {
	for _, g := range d.Groups {
		if g.Same {
			lines = append(lines, fmt.Sprintf("%d same", len(g.Lines)))
			continue
		}
		for _, l := range g.Lines {
			text := l.Sign
			for _, p := range l.Parts {
				if p.Changed {
					p.Text = "[" + p.Text + "]"
				}
				text += p.Text
			}
			lines = append(lines, text)
		}
	}
	return lines
}

func TestDiff(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want []string
	}{
		{"one\ntwo\nthree", "one\nthree", []string{" one", "−two", " three"}},
		{"the cat sat here", "the dog sat here", []string{"−the [cat] sat here", "+the [dog] sat here"}},
		{"alpha beta", "gamma, delta; epsilon", []string{"−alpha beta", "+gamma, delta; epsilon"}},
		{"a b\nc d", "a b x\nc d", []string{"−a b", "+a b[ x]", " c d"}},
		{"line\r", "line", []string{"−line[␍]", "+line"}},
		{"1\n2\n3\n4\n5\n6\nx", "1\n2\n3\n4\n5\n6\ny", []string{"3 same", " 4", " 5", " 6", "−x", "+y"}},
		{"größe 漢字", "größer 漢字", []string{"−[größe] 漢字", "+[größer] 漢字"}},
	} {
		if got := signs(diff("", test.a, test.b)); !slices.Equal(got, test.want) {
			t.Errorf("%q and %q: %q", test.a, test.b, got)
		}
	}
}

func TestDiffIsBounded(t *testing.T) {
	t.Parallel()
	if d := diff("", strings.Repeat("ä", maxDiffed), "b"); d.Groups != nil || d.Apart != "longer than 102.4 kB" || len(d.A) > maxDiffed+3 || d.B != "b" {
		t.Errorf("%d bytes, %q", len(d.A), d.Apart)
	}
	if d := diff("", strings.Repeat("\n", maxDiffedLines), "b"); d.Groups != nil || d.Apart != "more than 5,000 lines" {
		t.Error(d.Apart)
	}
	if d := diff("", "", "b"); d.Groups != nil || d.Apart == "" || d.B != "b" {
		t.Errorf("%+v", d)
	}
	if d := diff("", "x", "x"); !d.Same || d.A != "x" || d.Groups != nil {
		t.Errorf("%+v", d)
	}
	// Nothing in common, in many short lines and in long ones.
	random := rand.New(rand.NewPCG(1, 2))
	text := func(lines, words int) string {
		var out strings.Builder
		for range lines {
			for range words {
				fmt.Fprintf(&out, "%x ", random.IntN(1<<12))
			}
			out.WriteByte('\n')
		}
		return out.String()
	}
	for _, shape := range [][2]int{{4000, 5}, {10, 2000}, {1, 20_000}} {
		begun := time.Now()
		a, b := text(shape[0], shape[1]), text(shape[0], shape[1])
		d := diff("", a, b)
		if d.Apart != "" {
			t.Fatal(d.Apart)
		}
		t.Logf("%v: %s", shape, time.Since(begun)) // a few milliseconds where nobody else is at work
		var left, right []string
		for _, g := range d.Groups {
			for _, l := range g.Lines {
				var line string
				for _, p := range l.Parts {
					line += p.Text
				}
				if l.Sign != signNew {
					left = append(left, line)
				}
				if l.Sign != signGone {
					right = append(right, line)
				}
			}
		}
		if strings.Join(left, "\n") != a || strings.Join(right, "\n") != b {
			t.Errorf("%v: the texts are not in their difference", shape)
		}
	}
}

func TestTranscriptsAreAligned(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ a, b, want string }{
		{"abc", "abc", "0-0 1-1 2-2"}, {"", "", ""}, {"a", "", "0-_"}, {"", "ab", "_-0 _-1"},
		{"aab", "aaaab", "0-0 1-1 _-2 _-3 2-4"}, {"axb", "ayb", "0-0 1-1 2-2"}, {"xabc", "abcy", "0-_ 1-0 2-1 3-2 _-3"},
	} {
		var got []string
		for _, r := range align(strings.Split(test.a, ""), strings.Split(test.b, "")) {
			got = append(got, strings.ReplaceAll(fmt.Sprintf("%d/%d", r.a, r.b), "-1", "_"))
		}
		if text := strings.ReplaceAll(strings.Join(got, " "), "/", "-"); text != test.want {
			t.Errorf("%s and %s: %s", test.a, test.b, text)
		}
	}
}

func TestPairsSayWhetherTheyAreTheSame(t *testing.T) {
	t.Parallel()
	r := run(work.RunSucceeded, 1)
	side := func(text string, more ...transcript.Step) Unit {
		return NewUnit(succeeded(), nil, &r, append([]transcript.Step{call(1, "a"), answer(2, "a", text, false), step(3)}, more...), now)
	}
	var marks string
	for _, p := range comparison(side("x"), side("y", step(4))).Pairs().Rows {
		marks += p.Mark
	}
	if marks != "≠=+" {
		t.Error(marks)
	}
	many := make([]transcript.Step, 450)
	for i := range many {
		many[i] = step(i + 4)
	}
	c := comparison(side("x", many...), side("x"))
	c.From = 200
	if p := c.Pairs(); len(p.Rows) != pairsShown || p.Total != 452 || !strings.Contains(p.Later, "from=400") || p.Earlier == "" ||
		strings.Contains(p.Earlier, "from") {
		t.Errorf("%d of %d, earlier %s, later %s", len(p.Rows), p.Total, p.Earlier, p.Later)
	}
	c.From = 1 << 40
	if p := c.Pairs(); len(p.Rows) != 0 || p.Later != "" {
		t.Errorf("%d rows beyond the end", len(p.Rows))
	}
}

func step(number int) transcript.Step {
	return transcript.Step{Number: number, Type: transcript.Reasoning, Text: fmt.Sprint("thought ", number)}
}
