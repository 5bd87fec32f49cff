package api

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
)

var figures = flag.Bool("figures", false, "measure the pages; only on a quiet machine do the figures mean anything")

// TestViewerFigures measures what the pages cost with 100,000 units in the
// ledger, and complains where they cost too much.
func TestViewerFigures(t *testing.T) {
	if !*figures {
		t.Skip("only with -figures: it takes a minute, and a quiet machine")
	}
	f := newFront(t)
	copies(t, f.database, 100_000)
	long := f.titled("long", "done", chat(500, 0, 0)...)
	for path, most := range map[string]time.Duration{
		"/": 20 * time.Millisecond, "/?status=failed,timed_out": 20 * time.Millisecond, "/?q=document+99": 0, "/?label=team:team-3": 0, "/units/" + long.String(): 0,
	} {
		var took []time.Duration
		for range 300 {
			begun := time.Now()
			f.get(path, "Accept-Encoding", "gzip").is(http.StatusOK)
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		fmt.Printf("%-40.40s p50 %6.1f ms, p99 %6.1f ms\n", path, p50.Seconds()*1000, p99.Seconds()*1000)
		if most > 0 && p99 > most {
			t.Errorf("%s: p99 %s, more than %s", path, p99, most)
		}
	}
	weight := 0
	for _, path := range []string{"/", "/static/app.css", "/static/app.js", "/static/morph.js", "/static/icon.svg"} {
		n := len(f.get(path, "Accept-Encoding", "gzip").body)
		weight += n
		fmt.Printf("%-40s %6.1f kB\n", path, float64(n)/1e3)
	}
	if weight > 100_000 {
		t.Errorf("the first page weighs %d bytes in all", weight)
	}
	w := newTab(t, f.url)
	call(w, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `window.longTasks = [];
		new PerformanceObserver((l) => longTasks.push(...l.getEntries().map((e) => Math.round(e.duration)))).observe({ type: "longtask", buffered: true });`})
	var paints []int
	for range 10 {
		w.open("/")
		w.until("it is painted", `performance.getEntriesByName("first-contentful-paint").length`)
		paints = append(paints, eval[int](w, `Math.round(performance.getEntriesByName("first-contentful-paint")[0].startTime)`))
	}
	slices.Sort(paints)
	fmt.Printf("first contentful paint of /: median %d ms, worst %d ms\n", paints[len(paints)/2], paints[len(paints)-1])
	if paints[len(paints)/2] > 300 {
		t.Errorf("first contentful paint: %v ms", paints)
	}
	w.open("/units/" + long.String())
	w.until("the transcript is there", `document.querySelectorAll(".step").length === 200`)
	for _, do := range []string{
		`document.querySelector("[data-fold]").click()`, `document.querySelector("[data-fold]").click()`,
		`document.querySelector(".gap a")?.click()`, `document.querySelector("#detail").scrollTop = 0`, `document.querySelector("#detail").scrollTop = 1e9`,
	} {
		eval[any](w, do)
		eval[any](w, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))`)
	}
	tasks := eval[[]int](w, `longTasks`)
	eval[any](w, `(() => { const end = performance.now() + 120; while (performance.now() < end); })()`)
	w.until("a long task would have been seen", `longTasks.length > `+fmt.Sprint(len(tasks)))
	fmt.Printf("long tasks on a transcript of 1,000 steps: %v ms\n", tasks)
	if len(tasks) > 0 && slices.Max(tasks) > 100 {
		t.Errorf("long tasks: %s", strings.Trim(fmt.Sprint(tasks), "[]"))
	}
	stepsOnScreen(t, "with Redis", true, 300*time.Millisecond)
	stepsOnScreen(t, "without Redis", false, 1500*time.Millisecond)
}

// stepsOnScreen measures how long a step takes from before it is written until
// it stands on an open page. Without Redis the API hears of nothing, and looks
// once a second.
func stepsOnScreen(t *testing.T, how string, told bool, most time.Duration) {
	t.Helper()
	f := newFront(t)
	f.watchFor(time.Second)
	w := newTab(t, f.url)
	s := f.story(f.submit(mock("")))
	w.open("/units/" + s.c.ID.String())
	w.until("it runs", `document.querySelector("#state").textContent === "running"`)
	eval[any](w, `(() => { window.came = {}; new MutationObserver(() => {
		for (const s of document.querySelectorAll(".step")) came[s.dataset.number] ??= Date.now();
	}).observe(document.body, { childList: true, subtree: true }); })()`)
	var took []time.Duration
	for number := 1; number <= 100; number++ {
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // at any moment of what the page does
		begun := time.Now()
		if told {
			s.say("told")
			s.write()
		} else {
			s.tell("untold")
		}
		w.until("the step is on the screen", fmt.Sprintf(`came[%d]`, number))
		took = append(took, time.UnixMilli(eval[int64](w, fmt.Sprintf(`came[%d]`, number))).Sub(begun.Truncate(time.Millisecond)))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	fmt.Printf("a step is on the screen %s: p50 %d ms, p99 %d ms (n = %d)\n", how, p50.Milliseconds(), p99.Milliseconds(), len(took))
	if p99 > most {
		t.Errorf("%s a step takes %s, more than %s", how, p99, most)
	}
}
