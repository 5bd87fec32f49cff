package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{nil, "–"},
		{[]float64{12345.6}, "12,346"},
		{[]float64{3, 1, 2}, "2 [1..3]"},
		{[]float64{1, 2, 4, 0.5}, "1.50 [0.50..4]"},
	} {
		if got := spreadOf(c.values).String(); got != c.want {
			t.Errorf("%v: %s, want %s", c.values, got, c.want)
		}
	}
}

func TestRatiosArePaired(t *testing.T) {
	at := func(repetition, units int) taken { return taken{repetition, sample{Units: units, Seconds: 1}} }
	m := &measurement{samples: map[key][]taken{
		{"r", "a", false}: {at(0, 10), at(1, 100), at(2, 7)},
		{"r", "b", false}: {at(1, 50), at(0, 5)},
	}}
	got := m.paired(key{"r", "a", false}, key{"r", "b", false}, perSecond)
	if got.Count != 2 || got.Min != 2 || got.Max != 2 {
		t.Errorf("got %+v", got)
	}
}

func TestDropped(t *testing.T) {
	recorded := map[string]float64{"slower": 3, "as before": 3, "gone": 1}
	err := dropped(recorded, map[string]spread{"slower": {1, 0.5, 1.9, 3}, "as before": {1.5, 1, 2.1, 3}})
	if err == nil || !strings.Contains(err.Error(), "slower:") || !strings.Contains(err.Error(), "gone: not measured") || strings.Contains(err.Error(), "as before:") {
		t.Errorf("got %v", err)
	}
}

// TestGoals: what goals and -short name is there.
func TestGoals(t *testing.T) {
	for _, r := range allRows() {
		names := map[string]bool{"": true}
		for _, s := range r.subjects {
			names[s.name] = true
		}
		for _, g := range r.goals {
			if !names[g.of] || !names[g.to] {
				t.Errorf("%s has no subject %q or %q", r.name, g.of, g.to)
			}
		}
	}
}

func TestCommandsIn(t *testing.T) {
	info := "# Commandstats\r\ncmdstat_evalsha:calls=7,usec=1\r\ncmdstat_info:calls=3,usec=1\r\ncmdstat_config|get:calls=2,usec=9\r\n"
	if n := commandsIn(info); n != 9 {
		t.Errorf("%d commands, want 9", n)
	}
}

func TestCPUOf(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if now, _ := cpuOf(os.Getpid()); now > before {
			return
		}
	}
	t.Error("a process that computes for ten seconds has used no processor time")
}

// TestTitles: a title is as long as those of real units.
func TestTitles(t *testing.T) {
	for i := range 100 {
		if u := newUnit(i); len(u.Title) != 200 || strings.Contains(u.Title, "{") {
			t.Fatalf("unit %d has the title %q", i, u.Title)
		}
		if n := len(payload(i)); n < 900 || n > 1100 {
			t.Fatalf("unit %d has a payload of %d bytes", i, n)
		}
	}
}
