package page

import (
	"fmt"
	"math"
	"strings"

	"piecework/internal/work"
)

// Charts are drawn here and not by a library: those for Go write colours,
// fonts and styles into each element, which neither the pages' security policy
// nor a dark screen allows, and know no patterns. Lengths are percentages, so
// that a chart fits any width and its patterns are not stretched. Words stand
// beside the drawing, where a phone can show them as large as others.

// Fills of parts. Each differs from the others without its colour too: see the
// patterns in overview.html.
const (
	fillGood  = "good"
	fillBad   = "bad"
	fillOther = "other"
	fillBusy  = "busy"
	fillFree  = "free"
)

// Rect is a part of a bar, in percent of the drawing.
type Rect struct {
	Fill       string
	X, Y, W, H string
}

// Column is what a time chart shows of one interval.
type Column struct {
	Tip   string // all of it in words
	X, W  string // the whole column
	Parts []Rect
	Mark  *Rect // a line across the column
}

// Columns is a chart of intervals: bars in parts, and a mark for each.
type Columns struct {
	ID, Title, Desc string
	Columns         []Column
	Top, Half       string   // labels of the scale
	Ticks           []string // labels of the time, spread evenly
	Legend          []Key
	Table           Table
}

// Key says what a fill means. The fill "mark" is the line.
type Key struct{ Fill, Text string }

// Table is the same in figures; the first cell of a row is its name.
type Table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// stack is the values of one interval, from the ground up.
type stack struct {
	parts []piece
	mark  float64 // below 0: none
	tip   string
}

type piece struct {
	fill  string
	value float64
}

func (s stack) height() (sum float64) {
	for _, p := range s.parts {
		sum += p.value
	}
	return max(sum, s.mark)
}

// draw fills in the columns and their scale, whose labels label writes.
func (c *Columns) draw(stacks []stack, label func(float64) string) {
	top := 0.0
	for _, s := range stacks {
		top = max(top, s.height())
	}
	top = roundUp(top)
	c.Top, c.Half = label(top), label(top/2)
	wide := 100 / float64(max(len(stacks), 1))
	gap := wide * 0.14
	for i, s := range stacks {
		x := float64(i) * wide
		column := Column{Tip: s.tip, X: percent(x), W: percent(wide)}
		ground := 100.0
		for _, p := range s.parts {
			if p.value <= 0 {
				continue
			}
			high := max(p.value/top*100, 0.8) // little is not nothing
			ground = max(ground-high, 0)
			column.Parts = append(column.Parts, Rect{Fill: p.fill, X: percent(x + gap), Y: percent(ground), W: percent(wide - 2*gap),
				H: percent(high)})
		}
		if s.mark > 0 {
			y := percent(100 - s.mark/top*100)
			column.Mark = &Rect{X: percent(x + gap/2), W: percent(x + wide - gap/2), Y: y}
		}
		c.Columns = append(c.Columns, column)
	}
}

// Row is a name, a bar from left to right, and what it says in words.
type Row struct {
	Name  string
	Parts []Rect
	Cells []string // figures beside the bar
	Note  string
}

// Bars is a chart that is a table too.
type Bars struct {
	Caption string
	Name    string   // what the rows are
	Head    []string // of the cells
	Rows    []Row
	Legend  []Key
}

// bar lays pieces end to end; whole is the value that fills the width.
func bar(whole float64, pieces ...piece) (parts []Rect) {
	x := 0.0
	for _, p := range pieces {
		if p.value <= 0 || whole <= 0 {
			continue
		}
		wide := min(max(p.value/whole*100, 0.5), 100-x)
		parts = append(parts, Rect{Fill: p.fill, X: percent(x), Y: "0%", W: percent(wide), H: "100%"})
		x += wide
	}
	return parts
}

func percent(v float64) string {
	text := fmt.Sprintf("%.2f", v)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + "%"
}

// roundUp is the next number of one digit, of which a half is easily read.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 3, 4, 6, 8} {
		if v <= step*power*1.0000001 {
			return step * power
		}
	}
	return 10 * power
}

// rate is a number per minute to two digits or so.
func rate(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.095:
		return fmt.Sprintf("%.1g", v)
	case v < 9.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	return number(int64(math.Round(v)))
}

// span is a length of time to two digits, in the unit that fits.
func span(s work.Seconds) string {
	v := float64(s)
	for _, unit := range []struct {
		below, is float64
		name      string
	}{{0.995, 0.001, "ms"}, {99.5, 1, "s"}, {99.5 * 60, 60, "min"}, {47.5 * 3600, 3600, "h"}, {math.Inf(1), 86400, "d"}} {
		if v < unit.below {
			return digits(v/unit.is) + " " + unit.name
		}
	}
	return ""
}

func digits(v float64) string {
	if v < 9.95 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	return fmt.Sprintf("%.0f", v)
}
