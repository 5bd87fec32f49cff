package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"

	"piecework/internal/work"
)

// table writes rows in columns for people. Whatever comes from a model or a
// caller is made safe for the terminal on its way.
type table struct {
	columns *tabwriter.Writer
}

func newTable(w io.Writer, heads ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(heads...)
	return t
}

func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = safeLine(cell)
	}
	_, _ = fmt.Fprintln(t.columns, strings.Join(cells, "\t"))
}

func (t *table) flush() error {
	if err := t.columns.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// safeLine makes text safe for the terminal that must stay on one line.
func safeLine(s string) string {
	return work.Visible(strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return r == '\n' || r == '\r' || r == '\t' || r == ' '
	}), " "))
}

// excerpt is the start of s on one line, at most limit characters wide.
func excerpt(s string, limit int) string {
	line := safeLine(s)
	if utf8.RuneCountInString(line) <= limit {
		return line
	}
	return strings.TrimRight(string([]rune(line)[:limit-1]), " ") + "…"
}

// firstLine is the first line of s that is not blank.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// took is the time from start to end, or to now while there is no end.
func took(start, end *time.Time) string {
	if start == nil {
		return "-"
	}
	if end == nil {
		return duration(time.Since(*start))
	}
	return duration(end.Sub(*start))
}

func duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0.0 s"
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d m %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d m", int(d.Hours()), int(d.Minutes())%60)
}

// printJSON writes a document of the server's own, indented.
func printJSON(w io.Writer, document []byte) error {
	indented, err := json.MarshalIndent(json.RawMessage(document), "", "  ")
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	_, err = fmt.Fprintln(w, string(indented))
	return err
}

// printLine writes a document on one line.
func printLine(w io.Writer, document []byte) error {
	line, err := json.Marshal(json.RawMessage(document))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	_, err = fmt.Fprintln(w, string(line))
	return err
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// writeWhole makes a file appear under its name when all of it is there.
func writeWhole(name string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return usagef("--output: %w", err)
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	if err := write(file); err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(file.Name(), name); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
