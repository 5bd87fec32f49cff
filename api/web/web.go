// Package web is the pages: templates, one stylesheet, and what they need to
// know. It reads nothing and decides nothing; package api fills it in.
package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"strings"
	"time"
	"unicode"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

//go:embed *.html
var files embed.FS

//go:embed app.css
var static embed.FS

// Static is what the pages load.
func Static() fs.FS { return static }

// Page can be shown.
type Page interface{ Render(io.Writer) error }

// List is the newest units.
type List struct {
	Units  []work.Unit
	Search string
	Next   string // id to go on after; empty on the last page
	Now    time.Time
}

// Render writes the page.
func (p List) Render(w io.Writer) error { return render(w, "list.html", p.Now, p) }

// Unit is one unit with its runs.
type Unit struct {
	work.Unit
	Runs  []Run
	Waits []string // why it has not begun; empty unless it is queued
	Now   time.Time
}

// Render writes the page.
func (p Unit) Render(w io.Writer) error { return render(w, "unit.html", p.Now, p) }

// maxSteps is how many steps of a run a page shows: a browser must not freeze.
const maxSteps = 300

// Run is one run with the newest steps of its transcript.
type Run struct {
	work.Run
	Steps   []transcript.Step
	Earlier int // steps that are not shown
}

// NewRun makes a Run that a page can show.
func NewRun(run work.Run, steps []transcript.Step) Run {
	earlier := max(len(steps)-maxSteps, 0)
	return Run{Run: run, Steps: steps[earlier:], Earlier: earlier}
}

func render(w io.Writer, name string, now time.Time, data any) error {
	t, err := template.New("layout.html").Funcs(template.FuncMap{
		"ago":  func(t time.Time) string { return ago(now, t) },
		"took": func(from time.Time, to *time.Time) string { return took(now, from, to) },
		"when": func(t *time.Time) string { return t.UTC().Format("2 Jan 2006 15:04:05 MST") },
		"due":  func(t *time.Time) bool { return t == nil || !t.After(now) },
		"usd":  usd, "pretty": pretty, "advice": work.Class.Advice, "class": stateClass, "count": count, "show": show, "words": words,
	}).ParseFS(files, "layout.html", name)
	if err != nil {
		return fmt.Errorf("read page %s: %w", name, err)
	}
	if err := t.Execute(w, data); err != nil {
		return fmt.Errorf("render page %s: %w", name, err)
	}
	return nil
}

// ago says how long since t in the largest fitting unit.
func ago(now, t time.Time) string {
	switch d := now.Sub(t); {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	default:
		return t.Format("2 Jan 2006")
	}
}

// took is how long something lasted, or has lasted so far.
func took(now, from time.Time, to *time.Time) string {
	end := now
	if to != nil {
		end = *to
	}
	d := end.Sub(from)
	if d < time.Minute {
		return max(d.Round(time.Millisecond), time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func usd(v any) string {
	switch v := v.(type) {
	case float64:
		return dollars(v)
	case *float64:
		if v != nil {
			return dollars(*v)
		}
	}
	return "cost unknown"
}

// dollars shows fractions of a cent: many units cost no more.
func dollars(v float64) string {
	if v == 0 || v >= 1 {
		return fmt.Sprintf("$%.2f", v)
	}
	return fmt.Sprintf("$%.4f", v)
}

// count is "1 turn", "2 turns".
func count(n any, noun string) string {
	text := fmt.Sprint(n)
	if text != "1" {
		noun += "s"
	}
	return text + " " + noun
}

// words is how a person writes a name such as timed_out.
func words(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") }

func pretty(raw json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, raw, "", "  ") != nil {
		return string(raw)
	}
	return out.String()
}

// show makes visible what would deceive a reader: characters that turn text
// around or hide it, and control characters. The template escapes the rest.
func show(v any) string {
	text, ok := v.(string)
	if p, isPointer := v.(*string); isPointer && p != nil {
		text, ok = *p, true
	}
	if !ok {
		text = fmt.Sprint(v)
	}
	if !strings.ContainsFunc(text, deceives) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if deceives(r) {
			fmt.Fprintf(&out, "‹%U›", r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// deceives leaves alone what scripts need: the joiners of Persian, of Indian
// languages and of emoji.
func deceives(r rune) bool {
	switch {
	case r == '\n', r == '\r', r == '\t':
		return false
	case r == 0xad, r == 0x200b, r == 0x200e, r == 0x200f, r == 0xfeff, // hides, or turns around
		r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return unicode.IsControl(r)
}

// stateClass groups states by the colour they are shown in; the word is always
// there too.
func stateClass(state any) string {
	switch fmt.Sprint(state) {
	case "succeeded":
		return "good"
	case "failed", "timed_out", "lost", "fenced":
		return "bad"
	case "running", "waiting":
		return "busy"
	}
	return "quiet"
}
