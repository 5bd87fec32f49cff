// Package page is the pages: templates, stylesheets, scripts, and what
// they need to know. It reads nothing and decides nothing; package web fills it
// in. This file is its table of contents.
//
//	web.go         Page, and how one is rendered
//	filter.go      Filter: which units the list shows, as a query
//	list.go        List: the left column
//	unit.go        Unit: the right column, one unit and one of its runs
//	action.go      what may be done, and what is told before and after
//	compare.go     Comparison: two runs side by side
//	diff.go        Diff: what two texts have in common and what not
//	steps.go       Steps: a transcript with calls and their results together
//	timeline.go    where the time of a run went
//	markdown.go    what a model wrote, as HTML that can do no harm
//	effort.go      which Markdown is plain enough to be laid out
//	overview.go    Overview and Processes: what happened, and what runs where
//	figures.go     the charts of the overview
//	webhook.go     Webhooks: who is told, and what came of it
//	batches.go     Batches: the list of them
//	batch.go       Batch: units that were submitted together
//	ask.go         what is asked before a batch is changed
//	chart.go       columns and bars, drawn as SVG
//	story.go       Stories: every state of every page
//	sample.go      with made-up data
//	format.go      times, money and counts for people
package page

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"path"
	"sync"

	"github.com/google/uuid"

	"piecework/internal/work"
)

//go:embed *.html
var pages embed.FS

//go:embed static
var static embed.FS

// Asset is a file that the pages load.
type Asset struct {
	Body []byte
	Type string
	Tag  string // an ETag of what is in it
}

// Assets are all of them by name.
func Assets() map[string]Asset {
	kinds := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	assets := map[string]Asset{}
	files, err := static.ReadDir("static")
	for _, file := range files {
		body, failed := static.ReadFile("static/" + file.Name())
		err = errors.Join(err, failed)
		assets[file.Name()] = Asset{body, kinds[path.Ext(file.Name())], fmt.Sprintf(`W/"%.16x"`, sha256.Sum256(body))}
	}
	if err != nil {
		panic(err) // they are in the binary
	}
	return assets
}

// Page can be shown.
type Page interface{ Render(io.Writer) error }

var functions = template.FuncMap{
	"ago": ago, "took": took, "when": work.When, "iso": iso, "usd": usd, "pretty": pretty, "advice": work.Class.Advice, "class": stateClass,
	"count": count, "show": show, "words": words, "size": size, "number": number, "markdown": markdown, "line": line, "share": share,
	"batchPath": func(id *uuid.UUID) string { return BatchPath(*id) },
}

// templates are read when the first page is shown: this program is also the keeper
// of each agent's run, which shows none.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("pages").Funcs(functions).ParseFS(pages, "*.html"))
})

// render writes the template of that name: a page, or a part of one.
func render(w io.Writer, name string, data any) error {
	if err := templates().ExecuteTemplate(w, name, data); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	return nil
}

// Part is a page without what stands around it, for the script.
type Part struct {
	Name string // of the template
	Data any
}

// Render writes the part.
func (p Part) Render(w io.Writer) error { return render(w, p.Name, p.Data) }
