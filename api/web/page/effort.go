package page

import (
	"regexp"
	"strings"
	"unicode"
)

// plainEnough tells whether Markdown can be laid out in about 0.1 s, and a part
// of a page in its part of that. The parser needs, at worst, time for each pair
// of a character and a sign in the same paragraph, for each line and each level
// of quotes and lists around it, for each cell of a table, written or not, and
// for each use of a link that is defined elsewhere, the whole of it. One pass
// counts them. What it is not sure of counts as one paragraph.
func plainEnough(text string) bool {
	var e effort
	lines, fence := 0, ""
	for line := range strings.Lines(text) {
		if lines++; lines > maxLines {
			return false
		}
		if fence != "" {
			if closes(line, fence) {
				fence = ""
			}
			continue
		}
		m := readMarkers(line)
		if m.levels > maxMarkers {
			return false
		}
		if fence = fenceOf(line); fence != "" || strings.Trim(line, "> \t\r\n") == "" {
			e.end()
			e.item = marker{}
			continue
		}
		if e.begins(m) {
			e.end()
			e.item = m
		}
		if !e.add(line) {
			return false
		}
	}
	e.end()
	return e.sum+e.brackets*e.definition <= min(maxEffort, freeEffort+effortPerByte*len(text))
}

// effort is what a parser has to do, as far as it is known.
type effort struct {
	sum        int
	brackets   int // that may use a link
	definition int // the longest paragraph that may define one
	item       marker
	paragraph
}

// paragraph is lines that the parser may look at together.
type paragraph struct {
	lines, size, signs, columns, brackets int

	last    string
	table   bool
	defines bool
}

// prose is signs that mean nothing to the parser in the middle of a line.
const prose = `.,;?'"-/()’“”–—…`

// add takes a line, unless the table that it may belong to would be too large.
func (e *effort) add(line string) bool {
	p := &e.paragraph
	columns := 1
	for _, r := range line {
		if (unicode.IsPunct(r) || unicode.IsSymbol(r)) && !strings.ContainsRune(prose, r) {
			p.signs++
		}
		switch r {
		case '|':
			columns++
		case '[':
			p.brackets++
		}
	}
	p.table = p.table || heads(p.last, line)
	p.defines = p.defines || strings.Contains(line, "]:")
	p.lines, p.size, p.columns, p.last = p.lines+1, p.size+len(line), max(p.columns, columns), line
	if p.table { // its rows are read one by one
		rest := paragraph{lines: p.lines, columns: p.columns, table: true}
		e.end()
		e.paragraph = rest
	}
	return p.lines*p.columns <= maxCells
}

// end counts what was read together.
func (e *effort) end() {
	e.sum += e.signs * e.size
	e.brackets += e.paragraph.brackets
	if e.defines {
		e.definition = max(e.definition, e.size)
	}
	e.paragraph = paragraph{}
}

// delimiters is the line below the head of a table.
var delimiters = regexp.MustCompile(`^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*\r?\n?$`)

// heads tells whether head and line begin a table.
func heads(head, line string) bool {
	columns := func(row string) int {
		row = strings.TrimSpace(row)
		return strings.Count(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), "|")
	}
	return head != "" && strings.Contains(line, "|") && !strings.ContainsAny(head, "\\`") && delimiters.MatchString(line) &&
		columns(head) == columns(line)
}

// fenceOf is what a line begins that opens a block of code in no list and no
// quote: what is in such a block is text.
func fenceOf(line string) string {
	for _, mark := range []string{"`", "~"} {
		if rest := strings.TrimLeft(line, mark); len(line)-len(rest) >= 3 && (mark == "~" || !strings.Contains(rest, mark)) {
			return line[:len(line)-len(rest)]
		}
	}
	return ""
}

func closes(line, fence string) bool {
	text := strings.TrimRight(line, " \t\r\n")
	return strings.HasPrefix(text, fence) && strings.Trim(text, fence[:1]) == ""
}

// marker is what a line begins with.
type marker struct {
	levels  int // quotes and lists that it begins, and those that it may stand in by its indent
	indent  int // before the first; a tab counts as 4
	bullet  bool
	ordered bool
	first   bool // an ordered list may begin with it anywhere
}

// begins tells whether a line is certainly an item of a list, and so a
// paragraph of its own: others go on with the one before.
func (e *effort) begins(m marker) bool {
	at := e.item.indent
	near := m.indent < 4 || (e.item.bullet || e.item.ordered) && m.indent >= at+2 && m.indent < at+4
	return near && (m.bullet || m.ordered && (m.first || e.item.ordered && m.indent == at || e.size == 0))
}

func readMarkers(line string) (m marker) {
	indent := 0
	for n := 0; ; n++ {
		text := strings.TrimLeft(line, " \t")
		blank := line[:len(line)-len(text)]
		indent += len(blank) + 3*strings.Count(blank, "\t")
		rest, kind := afterMarker(text)
		if n == 0 {
			some := strings.TrimSpace(rest) != "" // an empty item begins no list within a paragraph
			m.indent, m.bullet, m.ordered, m.first = indent, kind == '-' && some, kind == '1' && some, strings.HasPrefix(text, "1. ") ||
				strings.HasPrefix(text, "1) ")
		}
		if kind == 0 {
			if n > 0 {
				m.levels = n + indent/2
			}
			return m
		}
		line = rest
	}
}

// afterMarker is what follows the mark of a quote (>) or a list (- or 1), and
// which it is; 0: none.
func afterMarker(text string) (rest string, kind byte) {
	digits := strings.TrimLeft(text, "0123456789")
	switch {
	case strings.HasPrefix(text, ">"):
		return text[1:], '>'
	case strings.HasPrefix(text, "-"), strings.HasPrefix(text, "+"), strings.HasPrefix(text, "*"):
		rest, kind = text[1:], '-'
	case digits != text && (strings.HasPrefix(digits, ".") || strings.HasPrefix(digits, ")")):
		rest, kind = digits[1:], '1'
	default:
		return text, 0
	}
	if rest == "" || strings.ContainsAny(rest[:1], " \t\r\n") {
		return rest, kind
	}
	return text, 0
}
