package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// spread is the median of some values, with the least and the greatest.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Count  int     `json:"count"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1], n}
}

func (s spread) String() string {
	switch s.Count {
	case 0:
		return "–"
	case 1:
		return number(s.Median)
	}
	return fmt.Sprintf("%s [%s..%s]", number(s.Median), number(s.Min), number(s.Max))
}

// number has three digits at least, and commas.
func number(v float64) string {
	if a := math.Abs(v); a < 100 && a != math.Trunc(a) {
		return strconv.FormatFloat(v, 'f', map[bool]int{true: 2, false: 1}[a < 10], 64)
	}
	digits := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// values are those of one figure in all samples of a subject.
func (m *measurement) values(k key, figure func(sample) (float64, bool)) spread {
	var all []float64
	for _, t := range m.samples[k] {
		if v, ok := figure(t.sample); ok {
			all = append(all, v)
		}
	}
	return spreadOf(all)
}

// paired are the ratios of a figure of two subjects in the same repetition.
func (m *measurement) paired(of, to key, figure string) spread {
	var all []float64
	for _, a := range m.samples[of] {
		for _, b := range m.samples[to] {
			if a.repetition != b.repetition {
				continue
			}
			v, ok := a.sample.figure(figure)
			w, there := b.sample.figure(figure)
			if ok && there && w > 0 {
				all = append(all, v/w)
			}
		}
	}
	return spreadOf(all)
}

// comparison is a line about a goal, or about two binaries.
type comparison struct {
	what    string
	outcome spread
	atLeast float64
	atMost  float64
}

// verdict says whether a goal is met, in words for a table.
func (c comparison) verdict() string {
	switch {
	case c.outcome.Count == 0 || c.atLeast == 0 && c.atMost == 0:
		return ""
	case c.atLeast > 0 && c.outcome.Median < c.atLeast, c.atMost > 0 && c.outcome.Median > c.atMost:
		return "no"
	}
	return "yes"
}

func (c comparison) aim() string {
	switch {
	case c.atLeast > 0:
		return "≥ " + number(c.atLeast)
	case c.atMost > 0:
		return "≤ " + number(c.atMost)
	}
	return ""
}

// comparisons are those of a row: its goals, then both binaries.
func (m *measurement) comparisons(r row) (all []comparison) {
	for _, g := range r.goals {
		c := comparison{what: g.of + ", " + g.figure, atLeast: g.atLeast, atMost: g.atMost}
		of := key{r.name, g.of, false}
		if g.to == "" {
			c.outcome = m.values(of, func(s sample) (float64, bool) { return s.figure(g.figure) })
		} else {
			c.what = ratioName(g.of, g.to, g.figure)
			c.outcome = m.paired(of, key{r.name, g.to, false}, g.figure)
		}
		if c.outcome.Count > 0 {
			all = append(all, c)
		}
		if g.to == "" || g.figure != perSecond {
			continue
		}
		c = comparison{what: ratioName(g.of, g.to, perCPU), outcome: m.paired(of, key{r.name, g.to, false}, perCPU)}
		if c.outcome.Count > 0 {
			all = append(all, c)
		}
	}
	if m.against == "" {
		return all
	}
	for _, s := range r.subjects {
		of, to := key{r.name, s.name, false}, key{r.name, s.name, true}
		for _, figure := range append([]string{perSecond, perCPU}, m.valueNames(of)...) {
			if ratio := m.paired(of, to, figure); ratio.Count > 0 {
				all = append(all, comparison{what: ratioName(s.name, "the same"+suffixAgainst, figure), outcome: ratio})
			}
		}
	}
	return all
}

func ratioName(of, to, figure string) string { return fmt.Sprintf("%s ÷ %s, %s", of, to, figure) }

// valueNames are the figures that only some subjects have.
func (m *measurement) valueNames(k key) (names []string) {
	for _, t := range m.samples[k] {
		for name := range t.sample.Values {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// costs are processor time per unit of each role in microseconds, with commas.
func (m *measurement) costs(k key) string {
	var parts []string
	for _, role := range roles {
		v := m.values(k, func(s sample) (float64, bool) { v, ok := s.CPU[role]; return v, ok })
		if v.Count == 0 || v.Median < 0.5 {
			parts = append(parts, "–")
			continue
		}
		parts = append(parts, number(math.Round(v.Median)))
	}
	return strings.Join(parts, ", ")
}
