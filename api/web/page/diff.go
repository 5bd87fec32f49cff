package page

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/aymanbagabas/go-udiff/lcs"

	"piecework/internal/work"
)

// Diff is what two texts have in common and what not.
type Diff struct {
	Name   string
	A, B   string // cut when they are too long
	Groups []Group
	Same   bool
	Apart  string // why they stand side by side and were not compared; empty: they were
}

// Group is lines that stand together.
type Group struct {
	Same  bool // in both, and far from any difference
	Lines []Line
}

// Line is a line of one text or of both.
type Line struct {
	Sign  string // + or −, or a blank when it is in both
	Parts []Piece
}

// Piece is a part of a line.
type Piece struct {
	Text    string
	Changed bool // and not the whole line
}

// What is compared at most, so that a page stays a page.
const (
	maxDiffed      = 100 << 10 // bytes of a text
	maxDiffedLines = 5000
	maxDiffedWords = 2000 // of lines that stand for each other
	aroundDiffs    = 3    // lines that are shown before and after a difference
)

// The signs of a line.
const (
	signBoth, signGone, signNew = " ", "−", "+"
)

// diff compares line by line, and word by word where lines stand for others.
func diff(name, a, b string) Diff {
	d := Diff{Name: name, A: a, B: b, Same: a == b}
	if d.Same {
		d.A = cutDiffed(a)
		return d
	}
	if len(a) > maxDiffed || len(b) > maxDiffed {
		d.Apart = fmt.Sprintf("longer than %s", size(maxDiffed))
	}
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	if d.Apart == "" && max(len(as), len(bs)) > maxDiffedLines {
		d.Apart = fmt.Sprintf("more than %s", count(maxDiffedLines, "line"))
	}
	if a == "" || b == "" || d.Apart != "" {
		if d.Apart == "" {
			d.Apart = "only in one of them"
		}
		d.A = cutDiffed(a)
		d.B = cutDiffed(b)
		return d
	}
	var lines []Line
	at := 0
	for _, e := range lcs.DiffLines(as, bs) {
		for _, l := range as[at:e.Start] {
			lines = append(lines, plain(signBoth, l))
		}
		lines = append(lines, replaced(as[e.Start:e.End], bs[e.ReplStart:e.ReplEnd])...)
		at = e.End
	}
	for _, l := range as[at:] {
		lines = append(lines, plain(signBoth, l))
	}
	d.Groups = fold(lines)
	return d
}

// cutDiffed is a text as far as a page shows it.
func cutDiffed(text string) string {
	cut, shortened := work.Cut(text, maxDiffed)
	if shortened {
		cut += "…"
	}
	return cut
}

func plain(sign, text string) Line { return Line{Sign: sign, Parts: []Piece{{Text: visible(text)}}} }

// visible shows the one end of a line that two texts can differ in unseen.
func visible(text string) string { return strings.ReplaceAll(text, "\r", "␍") }

// replaced is lines that are gone and those that came for them. What differs in
// them is marked word by word, if they have at least a third in common.
func replaced(gone, came []string) []Line {
	a, b := tokens(strings.Join(gone, "\n")), tokens(strings.Join(came, "\n"))
	inA, inB := make([]bool, len(a)), make([]bool, len(b))
	if len(gone) > 0 && len(came) > 0 && max(len(a), len(b)) <= maxDiffedWords {
		kept := len(a)
		for _, e := range lcs.DiffLines(a, b) {
			kept -= e.End - e.Start
			for i := e.Start; i < e.End; i++ {
				inA[i] = true
			}
			for i := e.ReplStart; i < e.ReplEnd; i++ {
				inB[i] = true
			}
		}
		if 3*kept < max(len(a), len(b)) {
			clear(inA)
			clear(inB)
		}
	}
	var lines []Line
	if len(gone) > 0 {
		lines = append(lines, marked(signGone, a, inA)...)
	}
	if len(came) > 0 {
		lines = append(lines, marked(signNew, b, inB)...)
	}
	return lines
}

// marked puts words together to lines again.
func marked(sign string, words []string, changed []bool) []Line {
	lines := []Line{{Sign: sign}}
	for i := 0; i < len(words); {
		line := &lines[len(lines)-1]
		if words[i] == "\n" {
			lines = append(lines, Line{Sign: sign})
			i++
			continue
		}
		end := i
		for end < len(words) && words[end] != "\n" && changed[end] == changed[i] {
			end++
		}
		line.Parts = append(line.Parts, Piece{visible(strings.Join(words[i:end], "")), changed[i]})
		i = end
	}
	return lines
}

// tokens are words, blanks and signs; the end of a line is one of its own.
func tokens(text string) (list []string) {
	kind := func(r rune) int {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), unicode.IsMark(r), r == '_':
			return 1
		case r == '\n':
			return 0
		case unicode.IsSpace(r):
			return 2
		}
		return 0 // stands alone
	}
	begin, last := 0, 0
	for i, r := range text {
		if k := kind(r); i > 0 && (k != last || k == 0) {
			list = append(list, text[begin:i])
			begin, last = i, k
		} else {
			last = k
		}
	}
	if begin < len(text) {
		list = append(list, text[begin:])
	}
	return list
}

// fold puts lines that are far from any difference into groups of their own.
func fold(lines []Line) (groups []Group) {
	near := make([]bool, len(lines))
	for i, l := range lines {
		if l.Sign != signBoth {
			for j := max(i-aroundDiffs, 0); j <= min(i+aroundDiffs, len(lines)-1); j++ {
				near[j] = true
			}
		}
	}
	for i := 0; i < len(lines); {
		end := i
		for end < len(lines) && near[end] == near[i] {
			end++
		}
		groups = append(groups, Group{Same: !near[i], Lines: lines[i:end]})
		i = end
	}
	return groups
}
