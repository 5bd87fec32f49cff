package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// asked is a route that notes what it was asked.
func asked(queries *[]string, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		*queries = append(*queries, r.URL.RawQuery+" "+string(sent))
		answer(body)(w, r)
	}
}

func TestBulkByFilter(t *testing.T) {
	var retries, cancels []string
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"POST /work-units/retry":  asked(&retries, `{"dry_run":true,"count":7,"cost_usd":1.5,"more":false,"items":[`+failedUnit+`]}`),
		"POST /work-units/cancel": asked(&cancels, `{"count":10000,"stopped":2,"cost_usd":0,"more":true,"items":[]}`),
	})
	run := func(want []string, args ...string) {
		t.Helper()
		s := newStage(t)
		if code := run(s.App, append(args, "--server", remote.Server)); code != 0 {
			t.Errorf("%q: exit code %d: %s", args, code, s.errs.String())
		}
		for _, words := range want {
			if !strings.Contains(s.out.String()+s.errs.String(), words) {
				t.Errorf("%q lacks %q:\n%s%s", args, words, s.out.String(), s.errs.String())
			}
		}
	}
	run([]string{idB, "… and 6 more", "7 units would be retried; they have cost $1.50 so far"},
		"retry", "--class", "max_turns", "--status", "failed,timed_out", "-l", "team=a", "--max-turns", "9", "--dry-run")
	run([]string{"10000 units cancelled, of which 2 were running", "there are more: run it again"}, "cancel", "--all")
	run(nil, "cancel", "--backend", "", "--status", "queued")
	if want := `class=max_turns&dry_run=true&label=team%3Aa&status=failed%2Ctimed_out {"max_turns":9}`; retries[0] != want {
		t.Errorf("asked %s, want %s", retries[0], want)
	}
	if cancels[0] != "all=true " || cancels[1] != "backend=&status=queued " {
		t.Errorf("asked %q", cancels)
	}
}

func TestBulkNeedsAChoice(t *testing.T) {
	remote := serveRoutes(t, nil)
	for _, args := range [][]string{
		{"cancel"}, {"retry", "--dry-run"}, {"retry", "--model", "m"}, {"cancel", idA, "--all"}, {"retry", idA, "--dry-run"},
		{"retry", idA, "--status", "failed"},
	} {
		s := newStage(t)
		if code := run(s.App, append(args, "--server", remote.Server)); code != exitUsage {
			t.Errorf("%q: exit code %d: %s", args, code, s.errs.String())
		}
	}
}
