package api

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/api/web/page"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// look opens a door and a tab on it.
func look(t *testing.T) (*front, *tab) {
	t.Helper()
	f := newFront(t)
	w := newTab(t, f.url)
	return f, w
}

// titled is a unit that is done.
func (f *front) titled(title, result string, steps ...transcript.Step) uuid.UUID {
	f.t.Helper()
	id := f.submit(fmt.Sprintf(`{"backend":"mock","prompt":%s}`, quote(title)))
	f.run(id, result, steps...)
	return id
}

// chat is a run of so many calls with answers; one answer is long, and one
// call goes wrong.
func chat(calls, long, wrong int) (steps []transcript.Step) {
	for i := 1; i <= calls; i++ {
		id, text := fmt.Sprintf("call-%d", i), fmt.Sprintf("answer %d", i)
		if i == long {
			text = strings.Repeat("long answer ", 2000) + "its end"
		}
		steps = append(steps,
			transcript.Step{Number: 2*i - 1, Time: step(1, "", "").Time, Type: transcript.Action, Content: []transcript.Content{
				{Type: transcript.Text, Text: fmt.Sprintf("I look at part %d.", i)},
				{Type: transcript.ToolCall, ID: id, Name: "Read", Args: fmt.Sprintf(`{"part":%d}`, i)}}},
			transcript.Step{Number: 2 * i, Time: step(1, "", "").Time, Type: transcript.ToolResult, CallID: id, Name: "Read", Text: text,
				IsError: i == wrong})
	}
	return steps
}

// copies fills the ledger of a database with units, older than any other, as if
// they had come by the API. Of ten, one is failed, one queued, the rest is done.
func copies(t testing.TB, database string, n int) {
	t.Helper()
	db, err := sql.Open("postgres", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.Exec(`INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, labels, prompt, payload, missing_key, timeout, idle_timeout,
			check_at, created_at, started_at, finished_at, error_class, error_message, summary, cost_usd, run_count)
		SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'default', state, 'Read document ' || i || ' and name its dates', 'mock', 'default', 5,
			jsonb_build_object('team', 'team-' || i % 7), 'Read it', '{}', 'fail', 60, 60, now(), now() - interval '1 day' + i * interval '1 ms',
			CASE WHEN state <> 'queued' THEN now() END, CASE WHEN state <> 'queued' THEN now() END,
			CASE WHEN state = 'failed' THEN 'infra' END, CASE WHEN state = 'failed' THEN 'overloaded' END,
			CASE WHEN state = 'succeeded' THEN 'It begins in May.' END, 0.01, 1
		FROM (SELECT i, CASE i % 10 WHEN 0 THEN 'failed' WHEN 1 THEN 'queued' ELSE 'succeeded' END AS state FROM generate_series(1, $1) i) made`, n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`VACUUM ANALYZE work_units`); err != nil {
		t.Fatal(err)
	}
}

const (
	hasUnit = `document.querySelector("#detail h1")?.textContent === `
	current = `document.querySelector(".card a[aria-current]")?.querySelector(".title").textContent`
	titles  = `[...document.querySelectorAll(".card .title")].map((e) => e.textContent).join()`
)

func TestBrowserChoosesAUnitAndComesBack(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	first := f.titled("first", "one")
	f.titled("second", "two")
	w.open("/?status=succeeded")
	w.click("#card-" + first.String() + " a")
	w.until("the unit is shown", hasUnit+`"first"`)
	same(w, "the address", `location.pathname + location.search`, "/units/"+first.String()+"?status=succeeded")
	same(w, "the title", `document.title`, "first · Piecework")
	same(w, "the chosen card", current, "first")
	same(w, "pages loaded", `performance.getEntriesByType("navigation").length + document.querySelectorAll(".card").length`, 3)
	w.click(".card:first-child a")
	w.until("the other unit is shown", hasUnit+`"second"`)
	eval[any](w, `history.back()`)
	w.until("back at the first", hasUnit+`"first" && `+current+` === "first"`)
	eval[any](w, `history.back()`)
	w.until("back at the list", `document.querySelector(".nothing") && !`+current)
	same(w, "the title", `document.title`, "Units · Piecework")
	eval[any](w, `history.forward()`)
	w.until("forward again", hasUnit+`"first"`)

	w.open("/units/" + first.String() + "?status=succeeded") // as somebody else who was given the link
	w.until("the link leads there", hasUnit+`"first" && `+current+` === "first"`)
	w.open("/units/" + first.String() + "#output")
	w.until("so does one into it", hasUnit+`"first"`)
}

func TestBrowserSearchesWhileItIsTyped(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	for _, title := range []string{"apples", "pears", "pineapples"} {
		f.titled(title, "")
	}
	w.open("/")
	w.click("#q")
	w.press("apple")
	w.until("two are left", titles+` === "pineapples,apples"`)
	same(w, "the address", `location.search`, "?q=apple")
	w.until("the counts follow", `document.querySelector("#pills a").textContent === "All 2"`)
	same(w, "the field has the focus still", `document.activeElement.id`, "q")
	w.press("x")
	w.until("none is left", `document.querySelector(".empty")?.textContent.includes("No task contains “applex”")`)
	for range "applex" {
		w.press("\b")
	}
	w.until("all are back", titles+` === "pineapples,pears,apples"`)
	same(w, "the address", `location.search`, "")
}

func TestBrowserNarrowsTheList(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	copies(t, f.database, 30)
	f.submit(`{"backend":"claude","prompt":"the only one","labels":{"team":"law"}}`)
	w.open("/")
	same(w, "pills", `[...document.querySelectorAll(".pill")].map((e) => e.textContent).join()`, "All 31,Queued 4,Running 0,Waiting 0,Done 24,Failed 3,Cancelled 0")
	w.click(".pill.bad")
	w.until("the failed ones are shown", `document.querySelectorAll(".card").length === 3 && document.querySelector(".pill[aria-current]").textContent === "Failed 3"`)
	w.click(".pill")
	w.until("all are shown", `document.querySelectorAll(".card").length === 31`)
	w.click(".narrow summary")
	w.click(`input[name=label]`)
	w.press("team:law")
	eval[any](w, `document.querySelector("select[name=backend]").value = "claude"`)
	w.click(".fields button")
	w.until("one is left", titles+` === "the only one"`)
	same(w, "the filters stay open", `document.querySelector(".narrow").open + " " + document.querySelector("select[name=backend]").value`, "true claude")
	w.click(".fields a")
	w.until("all are back", `document.querySelectorAll(".card").length === 31`)
}

func TestBrowserScrollsWithoutEnd(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	const n = 1000
	copies(t, f.database, n)
	w.open("/")
	same(w, "cards at first", `document.querySelectorAll(".card").length`, 50)
	w.until("all units are there", `(document.querySelector("#list").scrollTop = 1e9, !document.querySelector("#more"))`)
	same(w, "cards", `document.querySelectorAll(".card").length`, n)
	same(w, "each once, newest first", `(() => { const ids = [...document.querySelectorAll(".card")].map((c) => c.id); return ids.join() === [...new Set(ids)].sort().reverse().join() })()`, true)
	w.click(".card:last-child a")
	w.until("the oldest is shown", hasUnit+`"Read document 1 and name its dates"`)
}

func TestBrowserByKeyboardAlone(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	f.titled("oldest", "")
	f.titled("middle", "", chat(150, 0, 40)...)
	f.titled("newest", "")
	w.open("/")
	w.press("j")
	w.until("the first is chosen", hasUnit+`"newest" && `+current+` === "newest"`)
	w.press("j")
	w.until("then the next", hasUnit+`"middle"`)
	w.press("k")
	w.until("and back", hasUnit+`"newest"`)
	w.press("j")
	w.until("the next again", hasUnit+`"middle"`)
	w.press("e")
	w.until("the first error is in sight", `document.querySelector("#step-79:has(.call.error)")?.getBoundingClientRect().top < innerHeight && location.hash === "#step-79"`)
	w.press("g")
	w.until("the end is in sight", `document.querySelector("#step-299").getBoundingClientRect().bottom <= innerHeight`)
	w.press("?")
	w.until("help", `document.querySelector("#help").open`)
	w.press("\u001b")
	w.until("no help", `!document.querySelector("#help").open`)
	same(w, "the unit stays", hasUnit+`"middle"`, true)
	w.press("/")
	w.until("the search has the focus", `document.activeElement.id === "q"`)
	w.press("jk?e")
	same(w, "keys are text there", `document.querySelector("#q").value`, "jk?e")
	w.press("\u001b")
	w.until("the search is left", `document.activeElement.id !== "q"`)
	w.press("\u001b")
	w.until("the list alone", `document.querySelector(".nothing") && location.pathname === "/"`)
	w.open("/")
	w.press("\t")
	w.until("the first stop is the way past the rest", `document.activeElement?.className === "skip"`)
	w.press("\r")
	w.until("it leads to the content", `location.hash === "#main"`)
	eval[any](w, `document.querySelector(".card:nth-child(3) a").focus()`)
	w.press("\r")
	w.until("enter opens", hasUnit+`"oldest" && document.activeElement.id === "detail"`)
}

func TestBrowserReadsALongTranscript(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	id := f.titled("long", "result", chat(600, 590, 580)...) // 1,200 steps; 600 are shown
	w.open("/units/" + id.String())
	same(w, "the end is shown", `document.querySelectorAll(".step").length + " " + document.querySelector(".step:last-child").id`, "200 step-1199")

	open := `document.querySelectorAll(".call[open]").length`
	same(w, "what went wrong is open", open, 1)
	w.click("[data-fold]")
	same(w, "all is folded", open, 0)
	w.click("[data-fold]")
	same(w, "all is unfolded", open, 200)
	w.click("[data-fold]")
	w.click("#step-1179 summary")
	same(w, "one is open", open, 1)

	same(w, "a long answer is cut", `document.querySelector("#step-1179 .inside").textContent.includes("its end")`, false)
	w.click("#step-1179 .whole")
	w.until("all of it is there", `document.querySelector("#step-1179 .inside").textContent.includes("its end") && document.querySelector("#step-1179 details").open`)

	eval[any](w, `document.querySelector("#step-801").scrollIntoView()`)
	place := `Math.round(document.querySelector("#step-801").getBoundingClientRect().top)`
	w.until("it is in sight", place+` < innerHeight`)
	was := eval[int](w, place)
	eval[any](w, `document.querySelector(".gap a").click()`)
	w.until("earlier steps are there", `document.querySelectorAll(".step").length === 400 && document.querySelector("#step-401")`)
	if is := eval[int](w, place); is < was-2 || is > was+2 {
		t.Errorf("what was read moved from %d to %d", was, is)
	}
	for _, first := range []string{"#step-201", "#step-1"} {
		eval[any](w, `document.querySelector(".gap a").click()`)
		w.until("still earlier steps are there", `document.querySelector("`+first+`")`)
	}
	same(w, "links to earlier steps", `document.querySelectorAll(".gap").length`, 0)
	same(w, "each once and in order", `[...document.querySelectorAll(".step")].every((s, i) => s.dataset.number == 2 * i + 1)`, true)
	w.click(".first-error")
	w.until("the first error is in sight", `document.querySelector("#step-1159").getBoundingClientRect().top < innerHeight`)

	w.open("/units/" + id.String() + "?at=101#step-101")
	w.until("a link leads to a step", `document.querySelector("#step-101")?.getBoundingClientRect().top < innerHeight`)
	eval[any](w, `document.querySelector(".gap:last-child a").click()`)
	w.until("later steps come", `document.querySelectorAll(".step").length > 200`)
}

// The clipboard is a stand-in: neither a permission nor the focus decides. What
// is pressed must be there when it is let go, whatever the server has just told.
func TestBrowserCopies(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	w.open("/units/" + f.titled("copy <me>", "a **result** to copy").String())
	eval[any](w, `(() => {
		[window.copied, window.said, window.button] = [[], [], document.querySelector("[data-copy=result-text]")];
		Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async (text) => { copied.push(text); } } });
		new MutationObserver((all) => all.forEach((m) => said.push(m.target.textContent))).observe(document.body, { childList: true, subtree: true });
	})()`)
	press := func(name, text string) {
		t.Helper()
		eval[any](w, `copied.length = said.length = 0`)
		w.click("[data-copy=" + name + "]")
		w.until("it says so", `said.includes("Copied")`)
		same(w, "what was copied", `copied.join("|")`, text)
		w.until("it can be pressed again", `document.querySelector("[data-copy=`+name+`]").textContent === "Copy"`)
	}
	press("result-text", "a **result** to copy")
	w.until("the page has heard that no more comes", `performance.getEntriesByType("resource").some((e) => e.name.includes("/steps?"))`)
	w.click(".asked summary")
	press("prompt", "rendered")

	// A page that came by http from elsewhere has another way.
	eval[any](w, `(() => {
		Object.defineProperty(navigator, "clipboard", { value: undefined });
		document.execCommand = (what) => {
			const e = new ClipboardEvent(what, { clipboardData: new DataTransfer() });
			document.dispatchEvent(e);
			return copied.push(e.clipboardData.getData("text/plain")) > 0;
		};
	})()`)
	press("result-text", "a **result** to copy")
	same(w, "it is the same button", `window.button === document.querySelector("[data-copy=result-text]")`, true)
	eval[any](w, `(() => { document.execCommand = () => false; said.length = 0; })()`)
	w.click("[data-copy=prompt]")
	w.until("it says that it cannot", `said.includes("Select and copy by hand")`)
}

// harm is what others may write, in all places where the pages show it.
var harm = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'-alert(1)-'`, `</pre></title></textarea><svg onload=alert(1)>`,
	`[x](javascript:alert(1)) ![](http://evil.example/?q=1) <http://evil.example/>`, `</style><link rel=stylesheet href=//evil.example>`,
	`<iframe srcdoc="<script>parent.alert(1)</script>">`, `<form action=//evil.example><button>x</button></form>`, `<base href=//evil.example>`,
	"\u202egnp.exe \x1b[31m \u200b",
}

func TestBrowserTakesHarmForText(t *testing.T) {
	t.Parallel()
	f, w := look(t)
	all := strings.Join(harm, " ")
	body := fmt.Sprintf(`{"backend":"mock","prompt":%[1]s,"payload":{"k":%[1]s},"model":"<img src=x onerror=alert(1)>","system_prompt":%[1]s,"labels":{"<b>":"<img src=x onerror=alert(1)>"}}`, quote(strings.Join(harm[:9], " ")))
	id := f.submit(body)
	c := f.claim(id)
	if err := f.Store.Transcripts.Append(t.Context(), store.Progress{RunID: c.RunID, LiveStatus: all, ToolCalls: 1}); err != nil {
		t.Fatal(err)
	}
	w.open("/")
	w.until("the list is there", `document.querySelectorAll(".card").length === 1`)
	f.finish(c, all, step(1, transcript.SystemText, all), step(2, transcript.Reasoning, all),
		transcript.Step{Number: 3, Type: transcript.Action, Content: []transcript.Content{{Type: transcript.Text, Text: all},
			{Type: transcript.ToolCall, ID: all, Name: all, Args: all}}},
		transcript.Step{Number: 4, Type: transcript.ToolResult, CallID: all, Name: all, Text: all, IsError: true},
		step(5, transcript.UserText, all))
	w.open("/?q=" + strings.ReplaceAll(`"><script>alert(1)</script>`, `"`, "%22"))
	w.open("/units/" + id.String())
	w.until("the unit is there", `document.querySelectorAll(".step").length === 4`)
	w.click("[data-fold]")
	eval[any](w, `document.querySelectorAll("details").forEach((d) => d.open = true)`)
	same(w, "elements that the pages do not have", `document.querySelectorAll("img, iframe, base, object, embed, main script, main link, main style, main form:not([method])").length`, 0)
	for _, story := range page.Stories() {
		if strings.Contains(story.Name, "hostile") {
			w.open("/stories/" + story.Name)
			w.until("the story is there", `document.querySelector("#main")`)
			eval[any](w, `document.querySelectorAll("details").forEach((d) => d.open = true)`)
		}
	}
}

// sights are how people look at the pages, in an order in which one load does
// for all.
var sights = []struct {
	name, scheme  string
	width, height int64
	opened        bool // all that can be folded
}{
	{"dark", "dark", 1280, 800, false},
	{"phone", "light", 390, 844, false},
	{"light", "light", 1280, 800, true},
}

// beyond names what cannot be seen without scrolling sideways, or not at all:
// a region that scrolls, and what stands beyond the side, unless it is cut off
// with dots in what does not.
const beyond = `(() => {
	const side = document.documentElement.clientWidth, cut = new Map();
	const cuts = (e) => cut.get(e) ?? cut.set(e, e !== document.body && (getComputedStyle(e).overflowX !== "visible" || cuts(e.parentElement))).get(e);
	const name = (e) => e.id || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.tagName + "." + e.className;
	const scrolls = [document.documentElement, ...document.querySelectorAll("#list, #detail, .wide")].filter((e) => e.scrollWidth > e.clientWidth);
	const out = [...document.querySelectorAll("body *:not(svg *)")].filter((e) => {
		const { left, right, width } = e.getBoundingClientRect();
		return width && (right > side + 1 || left < -1) && !cuts(e.parentElement);
	});
	return [...scrolls, ...out].slice(0, 5).map(name).join();
})()`

// fits fails when anything on the page is beyond its side, on a screen, on a
// tablet or on a phone.
func fits(w *tab, what string) {
	w.t.Helper()
	for _, width := range []int64{1400, 768, 390} {
		w.size(width, 844)
		same(w, fmt.Sprintf("%s at %d pixels: what is beyond the side", what, width), beyond, "")
	}
}

// Nothing is cut off at the side, and nobody is kept out.
func TestBrowserStoriesFitAndAreAccessible(t *testing.T) {
	t.Parallel()
	axe := ""
	if path := os.Getenv("PIECEWORK_TEST_AXE"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		axe = string(text)
	} else {
		t.Log("SKIPPED: PIECEWORK_TEST_AXE does not name axe.min.js, so only the widths are checked")
	}
	f := newFront(t)
	w := newTab(t, f.url) // for all: a tab costs more than a story
	for _, story := range page.Stories() {
		t.Run(story.Name, func(t *testing.T) {
			w.lend(t)
			w.open("/stories/" + story.Name)
			slow := story.Name == "unit-thousand-steps" // and as unit-done
			if axe != "" && !slow {
				eval[any](w, axe+";0")
			}
			for _, sight := range sights {
				w.size(sight.width, sight.height)
				w.scheme(sight.scheme)
				if sight.opened {
					fits(w, "closed")
					eval[any](w, `document.querySelectorAll("details").forEach((d) => d.open = true)`)
					fits(w, "opened")
					w.size(sight.width, sight.height)
				}
				if axe == "" || slow {
					continue
				}
				found := eval[string](w, audit(sight.name))
				if found != "" {
					t.Errorf("%s: %s", sight.name, found)
				}
			}
		})
	}
}

// What callers, models and receivers wrote has words of any length, and is
// written from right to left too; and the pages that show errors fit as well.
func TestBrowserPagesFit(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	w := newTab(t, f.url)
	word := strings.Repeat("Donaudampfschifffahrt", 40)
	f.post("/webhook-endpoints", fmt.Sprintf(`{"url":"https://hooks.example.com/%s","description":"%s","events":["batch.completed_with_failures","work_unit.*"]}`, word, word[:480])).is(201)
	text := word + ` <b>عقد رقم 17</b> ` + word
	id := f.submit(fmt.Sprintf(`{"backend":"mock","prompt":%s,"model":"%s","labels":{"%.64[2]s":"%[2]s"},"callback_url":"https://example.com/%[2]s"}`, quote(text), word[:200]))
	f.run(id, text, step(1, transcript.Reasoning, text), step(2, transcript.UserText, text))
	f.claim(f.submit(fmt.Sprintf(`{"backend":"mock","prompt":%s}`, quote(text))))
	failed := f.fail(fmt.Sprintf(`{"backend":"mock","prompt":%s}`, quote("عقد رقم 17")), work.ClassInfra)
	batch := f.batch(lots(2, fmt.Sprintf(`,"title":"%s","metadata":{"%.64[1]s":"%[1]s"}`, word[:200]))).ID
	f.post("/queues/default/pause", fmt.Sprintf(`{"by":"%s","why":"%s"}`, word[:200], word)).is(200)
	f.do("PUT", "/schedules/"+strings.ToLower(word[:64]), `{"cron":"0 6 * * *","unit":{"backend":"mock","prompt":"x"}}`, "Content-Type", "application/json").is(200)
	db, err := sql.Open("postgres", f.database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`UPDATE webhook_deliveries SET attempts = 3, last_error = $1, url = $2`, text, "https://example.com/"+word); err != nil {
		t.Fatal(err)
	}
	w.bear("404|409|422")
	for _, path := range []string{"/", "/?q=" + word, "/units/" + id.String(), "/units/" + id.String() + "/retry?change=1",
		"/units/" + failed.String() + "/retry?change=1", "/units/" + uuid.NewString(),
		"/batch-list", batchPath(batch), batchPath(batch) + "/cancel", "/overview", "/overview?window=30d", "/worker-processes",
		"/webhooks", "/webhooks?status=dead",
		"/webhooks?status=none", "/compare?a=" + id.String() + "&b=" + failed.String(), "/compare?a=" + word, "/operate/queues/default/pause", "/stories", "/nope"} {
		w.open(path)
		fits(w, path)
	}
}

// audit is what axe-core finds that is serious; what colours do not change is
// looked at once.
func audit(sight string) string {
	options := `{resultTypes: ["violations"]}`
	if sight != "light" {
		options = `{resultTypes: ["violations"], runOnly: ["color-contrast", "scrollable-region-focusable"]}`
	}
	return `axe.run(document, ` + options + `).then((r) => r.violations.filter((v) => ["serious", "critical"].includes(v.impact))
		.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + (n.any[0]?.message ?? "")).join(" | ")).join("\n"))`
}
