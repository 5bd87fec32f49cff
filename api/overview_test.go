package api

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/ops"
	"piecework/internal/work"
	"piecework/store"
)

func TestStatsAndOverview(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const evil = `"><svg onload=alert(1)><style>`
	body, _ := json.Marshal(map[string]any{"backend": "mock", "prompt": "Count", "model": evil})
	f.run(f.submit(string(body)), "done")
	c := f.claim(f.submit(mock(`,"queue":"bulk"`)))
	cost := 0.5
	if _, err := f.Store.Runs.Finish(t.Context(), store.Finish{UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, Status: work.RunFailed,
		Next:  work.Failed,
		Error: work.Fail(work.ClassRefusal, "no"), TotalCostUSD: &cost}); err != nil {
		t.Fatal(err)
	}
	f.submit(mock(`,"queue":"bulk"`))
	f.post("/queues/bulk/pause", `{"why":"<b>audit</b>"}`).is(200)

	for _, query := range []string{"", "?window=1h", "?window=24h", "?window=7d", "?window=30d"} {
		var s ops.Stats
		f.get("/stats" + query).is(200).into(&s)
		if s.Accepted != 3 || s.Finished[work.Succeeded] != 1 || s.Finished[work.Failed] != 1 || s.Cost.Known() != 0.75 ||
			s.Cost.Wasted.Known() != 0.5 {
			t.Errorf("%s: %+v", query, s.Figures)
		}
		if len(s.Queues) != 2 || s.Queues[0].Name != "bulk" || s.Queues[0].Paused == nil || s.Queues[0].Due != 1 || len(s.Processes) != 2 {
			t.Errorf("%s: %+v, %+v", query, s.Queues, s.Processes)
		}
		if s.Checks["redis"].OK || !s.Checks["postgres"].OK || s.Checks["reconciler"].OK {
			t.Errorf("%s: %+v", query, s.Checks)
		}
		page := string(f.get("/overview" + query).is(200).body)
		for _, want := range []string{"takes no writes", "no worker process has run yet", "refusal", "$0.75", "&lt;b&gt;audit", "&lt;svg onload"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s lacks %q", query, want)
			}
		}
		if !regexp.MustCompile(`paused since \d+ [A-Z][a-z]+ 20\d\d \d\d:\d\d:\d\d UTC`).MatchString(page) {
			t.Errorf("%s does not say since when it is paused as pages do", query)
		}
		keepsPolicy(t, page)
	}
	f.get("/stats?window=2h").refused(422, "window", "")
	f.get("/overview?window=2h").refused(422, "window", "must be one of 1h, 24h, 7d, 30d")
	if csp := f.get("/overview").header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Error(csp)
	}
	f.get("/static/overview.css").is(200)
}

func TestReconcilerIsSeen(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	if _, err := f.Store.Overview.Tally(t.Context(), work.DefaultTenant); err != nil {
		t.Fatal(err)
	}
	var s ops.Stats
	f.get("/stats").is(200).into(&s)
	if c := s.Checks["reconciler"]; !c.OK || !strings.Contains(c.Detail, "was here") {
		t.Errorf("%+v", c)
	}
}

func TestProcessesPageShowsWhatRuns(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	if page := string(f.get("/worker-processes").is(200).body); !strings.Contains(page, "Start one with") {
		t.Error(page)
	}
	id := f.submit(`{"backend":"mock","prompt":"<script>alert(1)</script>"}`)
	f.claim(id)
	f.crew(work.Offer{Name: "claude", Detail: "not <here>"},
		work.Offer{Name: "mock", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Since: time.Now(), Message: "<key>"}})
	page := string(f.get("/worker-processes").is(200).body)
	for _, want := range []string{"1 of 8 slots busy", "0 of 8 slots busy", "/units/" + id.String(), "not &lt;here&gt;",
		"auth: &lt;key&gt;", "&lt;script&gt;", "alive"} {
		if !strings.Contains(page, want) {
			t.Errorf("lacks %q", want)
		}
	}
	keepsPolicy(t, page)
	if !strings.Contains(string(f.get("/").body), `href="/overview"`) || !strings.Contains(string(f.get("/overview").body), `href="/worker-processes"`) {
		t.Error("no link leads there")
	}
}

// keepsPolicy fails when a page holds what its policy forbids, or leads away.
func keepsPolicy(t *testing.T, page string) {
	t.Helper()
	for _, tag := range regexp.MustCompile(`<([a-zA-Z]+)([^>]*)>`).FindAllStringSubmatch(page, -1) {
		if strings.Contains(" style img iframe object embed foreignObject use image base ", " "+tag[1]+" ") ||
			regexp.MustCompile(`\s(style|src|on\w+)=`).MatchString(strings.Replace(tag[2], ` src="/static/app.js"`, "", 1)) {
			t.Errorf("a page has %s", tag[0])
		}
	}
	for _, ref := range regexp.MustCompile(`(?:href|action)="([^"]*)"|url\(([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		if to := ref[1] + ref[2]; !strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "#") || strings.HasPrefix(to, "//") {
			t.Errorf("a page leads to %s", to)
		}
	}
}

// Asynqmon asks another host for fonts. Its policy names none but ours, so no
// browser asks, and the page does without; what it does load is all here.
func TestAsynqmonLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	a := f.get("/asynqmon").is(200)
	if !strings.Contains(string(a.body), "fonts.googleapis.com") {
		t.Error("Asynqmon has fonts of its own now: this test and the policy's comment are out of date")
	}
	csp := a.header.Get("Content-Security-Policy")
	for directive := range strings.SplitSeq(csp, ";") {
		name, sources, _ := strings.Cut(strings.TrimSpace(directive), " ")
		for source := range strings.FieldsSeq(sources) {
			if source != "'self'" && source != "'none'" && source != "'unsafe-inline'" && (source != "data:" || name != "img-src") {
				t.Errorf("%s may come from %s", name, source)
			}
		}
	}
	if !strings.HasPrefix(csp, "default-src 'self'") {
		t.Error(csp)
	}
	for _, ref := range regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(string(a.body), -1) {
		f.get(ref[1]).is(200)
	}
	f.get("/asynqmon/queues/" + uuid.NewString()).is(200) // its links work when they are opened anew
}
