package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestPruneCommand(t *testing.T) {
	var asks []string
	answers := []string{`{"units":1000,"batches":1,"more":true}`, `{"units":7,"batches":0,"more":false}`}
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"POST /prune": func(w http.ResponseWriter, r *http.Request) {
			body := `{"dry_run":true,"units":1007,"batches":1,"files":3,"bytes":99,"more":false}`
			if r.URL.Query().Get("dry_run") == "" {
				body, answers = answers[0], answers[1:]
			}
			asked(&asks, body)(w, r)
		},
	})
	for _, c := range []struct{ args, want string }{
		{"--before 2026-01-31 --dry-run", "would remove 1007 units and 1 batches that ended before 2026-01-31T00:00:00Z, with 3 output files of 99 bytes"},
		{"--before 2026-01-31T01:00:00+01:00", "removed 1007 units and 1 batches that ended before 2026-01-31T00:00:00Z"},
	} {
		s := newStage(t)
		if code := run(s.App, append(strings.Fields("prune "+c.args), "--server", remote.Server)); code != 0 ||
			!strings.Contains(s.out.String(), c.want) {
			t.Errorf("%s: exit code %d, %s%s; want %s", c.args, code, s.out.String(), s.errs.String(), c.want)
		}
	}
	if len(asks) != 3 || asks[0] != "before=2026-01-31T00%3A00%3A00Z&dry_run=true " || asks[1] != asks[2] {
		t.Errorf("asked %q", asks)
	}
	for _, args := range []string{"", "--before tomorrow", "--before 0", "--before -3d"} {
		s := newStage(t)
		if code := run(s.App, append(strings.Fields("prune "+args), "--server", remote.Server)); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	now := time.Now()
	if got, err := (&PruneCommand{Before: "90d"}).before(now); err != nil || now.Sub(got) != 90*24*time.Hour {
		t.Errorf("%s, %v", got, err)
	}
}

func TestPeriods(t *testing.T) {
	for text, want := range map[string]string{"0": "0", "0d": "0", "90d": "90d", "12h": "12h0m0s", "48h": "2d", " 7d ": "7d"} {
		var p Period
		if err := p.UnmarshalText([]byte(text)); err != nil || p.String() != want {
			t.Errorf("%q: %s, %v", text, p, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1.5d", "-3h", "week", "99999d"} {
		var p Period
		if err := p.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was taken for %s", text, p)
		}
	}
}

// Whoever repeats a request within a day finds what it made.
func TestKeysAreKeptForADay(t *testing.T) {
	crew := Crew{Concurrency: 1, Lease: 30 * time.Second, Heartbeat: 5 * time.Second, Probe: time.Minute, Pack: time.Minute, Queues: "default"}
	for keep, ok := range map[Period]bool{0: true, Period(time.Hour): false, leastKeepKeys: true} {
		crew.KeepKeys = keep
		if _, err := crew.check(); (err == nil) != ok {
			t.Errorf("%s: %v", keep, err)
		}
	}
}
