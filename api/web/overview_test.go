package web

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// busyDay is made-up figures of a day.
func busyDay(name string) work.Figures {
	w, _ := work.WindowOf(name)
	f := work.Figures{Window: name, From: w.Since(now), To: now, Bucket: work.Seconds(w.Bucket.Seconds()), Finished: map[work.State]int64{}}
	for i := int64(0); !f.From.Add(time.Duration(i) * w.Bucket).After(now); i++ {
		one := work.Interval{From: f.From.Add(time.Duration(i) * w.Bucket), Accepted: 40 + i*7%30, Finished: map[work.State]int64{
			work.Succeeded: 30 + i*5%20, work.Failed: i * 3 % 7, work.TimedOut: i % 2, work.Cancelled: i / 9}}
		one.Cost = work.Spent{Runs: 50, Unpriced: i % 3, Cost: 1.5 + float64(i)/10, Wasted: 0.4}
		f.Series = append(f.Series, one)
		f.Accepted += one.Accepted
		for state, n := range one.Finished {
			f.Finished[state] += n
		}
		f.Cost.Add(one.Cost)
	}
	f.Runs = []work.Outcome{{Status: work.RunSucceeded, Count: 900, Cost: 40}, {Status: work.RunFailed, Class: work.ClassInfra, Count: 70, Cost: 3},
		{Status: work.RunTimedOut, Class: work.ClassTimeout, Count: 12, Cost: 5}, {Status: work.RunLost, Class: work.ClassInfra, Count: 4},
		{Status: work.RunReleased, Count: 2, Cost: 0.2}}
	f.Models = []work.Spent{{Name: `<b>model</b>`, Runs: 600, Cost: 60, Wasted: 8, Unpriced: 3}, {Runs: 20}}
	f.Backends = []work.Spent{{Name: "claude", Runs: 600, Cost: 60, Wasted: 8, Unpriced: 3}, {Name: "mock", Runs: 20}}
	f.Workers = []work.Spent{{Name: "reader", Runs: 10, Cost: 0.0123}}
	f.Wait = work.NewLatency("", map[int]int64{-5: 700, 3: 250, 20: 50})
	f.Run = []work.Latency{work.NewLatency("claude", map[int]int64{20: 500, 25: 90, 30: 10}), work.NewLatency("mock", map[int]int64{-20: 20})}
	return f
}

func crew() []work.Process {
	return []work.Process{
		{ID: uuid.UUID{0: 5}, Hostname: "host-<1>", PID: 17, Version: "v1", Slots: 8, Running: 3, Queues: []string{"default", "urgent"}, Live: true,
			StartedAt: now.Add(-time.Hour), BeatAt: now.Add(-1200 * time.Millisecond), Backends: []work.Offer{
				{Name: "claude", Available: true, Version: "2.1.329"}, {Name: "codex", Detail: "codex is not here: <install> it"},
				{Name: "anthropic", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: "401: <key>"}}}},
		{ID: uuid.UUID{0: 6}, Hostname: "host-2", PID: 18, Version: "v1", Slots: 4, Queues: []string{"default"},
			StartedAt: now.Add(-2 * time.Hour), BeatAt: now.Add(-90 * time.Second)},
	}
}

func overview(window string) Overview {
	wait, later, unit := work.Seconds(75), now.Add(time.Hour), uuid.UUID{0: 7}
	return Overview{Figures: busyDay(window), Processes: crew(), Now: now,
		Queues: []Queue{{Name: "bulk", Due: 1200, Scheduled: 40, Paused: "paused since 2026-01-02T03:00:00Z by <ann>"},
			{Name: "default", Due: 3, Running: 3, Processes: 1, OldestWait: &wait}},
		Backends: []Backend{{Name: "claude", Status: "available", Slots: 8}, {Name: "anthropic", Status: "paused", Detail: "auth: 401: <key>"},
			{Name: "codex", Status: "unavailable", Detail: "codex is not here"}, {Name: "mock", Status: "unknown"}},
		Checks:    []Check{{Name: "postgres", OK: true, Detail: "reachable, schema up to date"}, {Name: "redis", Detail: "takes no writes"}},
		Schedules: []work.Schedule{{Name: "daily", NextAt: later, LastAt: before(time.Hour), LastUnit: &unit}, {Name: "weekly", Paused: true, NextAt: later}},
	}
}

func TestOverviewPage(t *testing.T) {
	t.Parallel()
	golden(t, "overview.html", overview("24h"))
	nothing := work.Figures{Window: "1h", To: now, From: now.Add(-time.Hour), Bucket: 60, Series: []work.Interval{{From: now}}}
	golden(t, "overview-empty.html", Overview{Figures: nothing, Now: now})
}

func TestProcessesPage(t *testing.T) {
	t.Parallel()
	page := Processes{Now: now}
	for _, p := range crew() {
		page.Processes = append(page.Processes, Process{Process: p})
	}
	held := run(work.RunRunning, 2)
	held.Title, held.WorkerType = "Read <this>", "claude"
	page.Processes[0].Runs = []work.Run{held}
	golden(t, "processes.html", page)
	golden(t, "processes-none.html", Processes{Now: now})
}

// The pages' policy allows neither styles nor scripts within them; a drawing
// must name its parts, and every id that something refers to must be there.
func TestOverviewKeepsThePolicyAndItsReferences(t *testing.T) {
	t.Parallel()
	for _, page := range []Page{overview("1h"), overview("7d"), Overview{Now: now}, Processes{Processes: []Process{{Process: crew()[0]}}, Now: now}} {
		var out bytes.Buffer
		if err := page.Render(&out); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if found := regexp.MustCompile(`(?i)<(style|img|foreignObject|use|image|animate)\b|\s(style|on\w+|font-family)=`).FindString(text); found != "" {
			t.Errorf("%T has %s", page, found)
		}
		ids := map[string]bool{}
		for _, m := range regexp.MustCompile(`\bid="([^"]+)"`).FindAllStringSubmatch(text, -1) {
			if ids[m[1]] {
				t.Errorf("%T: id %s is there twice", page, m[1])
			}
			ids[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`(?:aria-labelledby="|url\(#)([^")]+)`).FindAllStringSubmatch(text, -1) {
			for id := range strings.FieldsSeq(m[1]) {
				if !ids[id] {
					t.Errorf("%T refers to %s, which is not there", page, id)
				}
			}
		}
		for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1) {
			d := xml.NewDecoder(strings.NewReader(svg))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%v in %s", err, svg)
				}
			}
			if !strings.Contains(svg, `aria-hidden="true"`) && !strings.Contains(svg, "<desc") {
				t.Errorf("a drawing has no words: %.200s", svg)
			}
		}
	}
}

// Every fill is told apart without colour by a pattern of its own.
func TestEveryFillHasAPattern(t *testing.T) {
	t.Parallel()
	page, err := pages.ReadFile("overview.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, fill := range []string{fillGood, fillBad, fillOther, fillBusy, "free"} {
		if !strings.Contains(string(page), fmt.Sprintf(`<pattern id="fill-%s"`, fill)) {
			t.Errorf("no pattern for %s", fill)
		}
	}
}

func TestColumnsStayInTheirFrame(t *testing.T) {
	t.Parallel()
	var c Columns
	c.draw([]stack{{}, {parts: []piece{{fillGood, 1e6}, {fillBad, 1}}, mark: 1e6 + 1}, {parts: []piece{{fillBad, 0.001}}}}, rate)
	if c.Top != "2,000,000" || len(c.Columns[0].Parts) != 0 || c.Columns[0].Mark != nil {
		t.Errorf("%+v", c)
	}
	if p := c.Columns[1].Parts; p[0].Y != "50%" || p[1].Y != "49.2%" || p[1].H != "0.8%" || c.Columns[1].X != "33.33%" {
		t.Errorf("%+v", c.Columns[1])
	}
	if parts := bar(10, piece{fillGood, 5}, piece{fillBad, 0}, piece{fillOther, 50}); len(parts) != 2 || parts[1].X != "50%" || parts[1].W != "50%" {
		t.Errorf("%+v", parts)
	}
}

func TestFiguresInWords(t *testing.T) {
	t.Parallel()
	for s, want := range map[work.Seconds]string{0: "0 ms", 0.0042: "4.2 ms", 0.25: "250 ms", 1: "1 s", 9.96: "10 s", 75: "75 s", 600: "10 min", 7200: "2 h", 86400 * 3: "3 d"} {
		if got := span(s); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.0123: "0.01", 0.5: "0.5", 2: "2", 9.99: "10", 1234.4: "1,234"} {
		if got := rate(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := number(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for v, want := range map[float64]float64{0: 1, 0.3: 0.3, 1: 1, 2.4: 3, 4.1: 6, 7: 8, 8.5: 10, 1500: 2000} {
		if got := roundUp(v); got < want*0.999 || got > want*1.001 {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0 %", 0.4: "0.4 %", 50: "50 %", 99.6: "99.6 %", 100: "100 %"} {
		if got := share(v, 100); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
