// Package web is the pages: templates, one stylesheet, and what they need to
// know. It reads nothing and decides nothing; package api fills it in.
package web

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"time"

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
}

// Render writes the page.
func (p List) Render(w io.Writer) error { return render(w, "list.html", p) }

// Unit is one unit with its runs.
type Unit struct {
	work.Unit
	Runs []Run
}

// Run is one run with its transcript.
type Run struct {
	work.Run
	Steps []transcript.Step
}

// Render writes the page.
func (p Unit) Render(w io.Writer) error { return render(w, "unit.html", p) }

func render(w io.Writer, name string, data any) error {
	t, err := template.New("layout.html").Funcs(template.FuncMap{
		"ago": ago, "took": took, "usd": usd, "pretty": pretty, "advice": work.Class.Advice, "class": stateClass,
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
func ago(t time.Time) string {
	switch d := time.Since(t); {
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
func took(from time.Time, to *time.Time) string {
	end := time.Now()
	if to != nil {
		end = *to
	}
	return end.Sub(from).Round(10 * time.Millisecond).String()
}

func usd(v any) string {
	switch v := v.(type) {
	case float64:
		return fmt.Sprintf("$%.4f", v)
	case *float64:
		if v != nil {
			return fmt.Sprintf("$%.4f", *v)
		}
	}
	return "unknown"
}

func pretty(raw json.RawMessage) string {
	out, err := json.MarshalIndent(raw, "", "  ")
	if err != nil {
		return string(raw)
	}
	return string(out)
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
