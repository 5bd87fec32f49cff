package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestTableIsSafeForTheTerminal(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out, "A", "B")
	table.row("\x1b]0;title\a", "two\nlines\tand a tab")
	table.row("rtl\u202eevil", "zero\u200bwidth")
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.ContainsAny(got, "\x1b\a\t\u202e\u200b") || strings.Count(got, "\n") != 3 {
		t.Errorf("unsafe: %q", got)
	}
	if !strings.Contains(out.String(), "two lines and a tab") {
		t.Errorf("text is lost: %q", out.String())
	}
}

func TestExcerpt(t *testing.T) {
	for _, tc := range []struct {
		text  string
		limit int
		want  string
	}{
		{"short", 10, "short"},
		{"exactly ten", 11, "exactly ten"},
		{"äöü äöü äöü", 8, "äöü äöü…"},
		{"  many\n\n  lines ", 40, "many lines"},
	} {
		if got := excerpt(tc.text, tc.limit); got != tc.want {
			t.Errorf("excerpt(%q, %d) = %q, want %q", tc.text, tc.limit, got, tc.want)
		}
	}
}

func TestAmountsAndTimesRead(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1900 * time.Millisecond: "1.9 s", 65 * time.Second: "1 m 05 s", 2*time.Hour + 3*time.Minute: "2 h 03 m", -time.Second: "0.0 s",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%s) = %q, want %q", d, got, want)
		}
	}
}
