package backend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"piecework/internal/work"
)

// Every backend says what it can do, in words there are, in one order.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	for name := range capabilities {
		if !slices.Contains(Names, name) {
			t.Errorf("%s is no backend", name)
		}
		last := -1
		for _, c := range Capabilities(name) {
			at := slices.Index(work.Capabilities, c)
			if at <= last {
				t.Errorf("%s: %s is unknown or out of order", name, c)
			}
			last = at
		}
		if Can(name, work.CanMaxCost) && !Can(name, work.CanCost) {
			t.Errorf("%s keeps max_cost_usd and does not know its cost", name)
		}
	}
	if Can("mock", work.CanTools) || !Can("claude", work.CanTools) || Can("nobody", work.CanFiles) {
		t.Error("Can does not read the table")
	}
}

// docs/backends.md is made of the tables; `go test ./internal/backend -update` writes it anew.
func TestBackendsDocument(t *testing.T) {
	t.Parallel()
	var doc strings.Builder
	doc.WriteString("# Backends\n\n<!-- written by the tests of internal/backend -->\n\n" +
		"A unit may change from one backend to another and keeps its result's fields, its error classes and its transcript's\n" +
		"shape. What a backend cannot do has a name, which `GET /backends` shows too.\n\n## What each can do\n\n")
	writeRow(&doc, "", Names)
	writeRow(&doc, "---", slices.Repeat([]string{":-:"}, len(Names)))
	for _, c := range work.Capabilities {
		writeCells(&doc, "`"+string(c)+"`", func(name string) string {
			if Can(name, c) {
				return "✓"
			}
			return "–"
		})
	}
	doc.WriteString("\n")
	for _, c := range work.Capabilities {
		if meanings[c] == "" {
			t.Errorf("%s has no meaning", c)
		}
		fmt.Fprintf(&doc, "- `%s`: %s\n", c, meanings[c])
	}
	doc.WriteString("\n## What each needs, and what it cannot\n")
	for _, name := range Names {
		describe(t, &doc, name)
	}
	doc.WriteString("\n## Conformance\n\nEvery case is run on every backend: the agents faked in their own words, the APIs against a model server of ours,\n" +
		"and the real `claude`, `codex`, `opencode` and `gemini` where they are installed. `.ci/run` installs `claude` and `codex`; elsewhere the others are faked. ✓ passes; a word is the capability for\n" +
		"whose lack the case is refused, or goes on without; \"not told\" is what the program keeps to itself.\n\n")
	writeRow(&doc, "case", Names)
	writeRow(&doc, "---", slices.Repeat([]string{":-:"}, len(Names)))
	for _, c := range conformances() {
		writeCells(&doc, c.name, func(name string) string {
			if c.hides == name {
				return "not told"
			}
			if by := c.refusedBy(name); by != "" {
				return "`" + string(by) + "`"
			}
			return "✓"
		})
	}
	compareGolden(t, "../../docs/backends.md", []byte(doc.String()))
}

func describe(t *testing.T, doc *strings.Builder, name string) {
	t.Helper()
	d := descriptions[name]
	fmt.Fprintf(doc, "\n### %s\n\n%s.\n\n", name, strings.ToUpper(d.what[:1])+d.what[1:])
	for _, line := range []struct{ what, text string }{{"Program", d.program}, {"Key", d.keys}, {"Settings", d.settings}} {
		if line.text != "" {
			fmt.Fprintf(doc, "- %s: %s.\n", line.what, line.text)
		}
	}
	for _, c := range work.Capabilities {
		why := d.lacks[c]
		if Can(name, c) == (why != "") {
			t.Errorf("%s: %s is both there and missing, or missing without a reason", name, c)
		}
		if why != "" {
			fmt.Fprintf(doc, "- No `%s`: %s\n", c, why)
		}
	}
	for _, note := range d.notes {
		fmt.Fprintf(doc, "- %s\n", note)
	}
}

func writeCells(doc *strings.Builder, first string, cell func(name string) string) {
	cells := make([]string, len(Names))
	for n, name := range Names {
		cells[n] = cell(name)
	}
	writeRow(doc, first, cells)
}

func writeRow(doc *strings.Builder, first string, cells []string) {
	fmt.Fprintf(doc, "| %s | %s |\n", first, strings.Join(cells, " | "))
}
