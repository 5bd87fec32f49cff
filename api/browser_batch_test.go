package api

import (
	"testing"

	"piecework/internal/work"
)

const status = `document.querySelector("#status").textContent === `

// A person watches a batch being tested, approves it with another budget, and
// sees it end, all on one page.
func TestBrowserApprovesABatch(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	w := newTab(t, f.url)
	id := f.batch(lots(12, `,"title":"letters","test_first":3`)).ID
	f.becomes(id, work.BatchTesting)
	w.open("/batch-list")
	w.click("#batch-" + id.String() + " a")
	w.until("it is tested", status+`"testing"`)
	eval[any](w, `window.same = document.querySelector("h1")`)
	f.works(id, func(u work.Unit) bool { return u.CustomID == "3" })
	w.until("it asks", status+`"awaiting approval" && document.querySelector(".forecast h2")?.textContent === "What the other 9 units will probably take"`)
	same(w, "the bar says", `document.querySelector(".progress").getAttribute("aria-label")`, "3 of 12 units over: 2 succeeded, 1 failed or timed out, 9 queued")

	w.click(".actions .primary")
	w.until("it tells what will follow", `document.querySelector("#ask").open && document.querySelector("#ask").textContent.includes("The other 9 units will probably cost")`)
	w.bear("422") // what is typed first is wrong
	w.click("#ask input[name=max_cost_usd]")
	w.press("a lot")
	w.click("#ask button.primary")
	w.until("it says what is wrong", `document.querySelector("#ask [role=alert]")?.textContent.includes("number above 0") && document.querySelector("#ask input").value === "a lot"`)
	for range "a lot" {
		w.press("\b")
	}
	eval[any](w, `document.querySelector("#ask input[name=max_cost_usd]").value = "20"`)
	w.click("#ask button.primary")
	w.until("it is told", `!document.querySelector("#ask").open && document.querySelector("#notice").textContent.includes("It is approved")`)
	w.until("it goes on", status+`"in progress"`)
	if b := f.readBatch(id); *b.MaxCostUSD != 20 {
		t.Errorf("the budget is %v", *b.MaxCostUSD)
	}

	w.click("#notice form button") // pauses it again
	w.until("it is paused", `document.querySelector("#paused") && document.querySelector(".waits").textContent.includes("paused since")`)
	w.click("#notice form button")
	w.until("it is resumed", `!document.querySelector("#paused") && document.querySelector("#notice").textContent.includes("It goes on.")`)

	for !f.readBatch(id).Status.Final() {
		f.works(id, nil)
	}
	w.until("it has ended", status+`"completed with failures" && document.querySelector(".progress").getAttribute("aria-label").startsWith("12 of 12 units over: 11 succeeded")`)
	same(w, "it is still the same page", `window.same === document.querySelector("h1")`, true)
	w.click(".failures a")
	w.until("the failed unit", `document.querySelectorAll(".card").length === 1 && document.querySelector(".of-batch").textContent.includes("letters")`)
	w.click(".card a")
	w.until("it names its batch", `document.querySelector("#head a[href='/batch-list/`+id.String()+`']")?.textContent === "letters"`)
}

func TestBrowserListsBatchesLive(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	w := newTab(t, f.url)
	w.open("/batch-list")
	w.until("none", `document.querySelector(".empty")`)
	id := f.batch(lots(4, `,"title":"letters"`)).ID
	row := `document.querySelector("#batch-` + id.String() + `")`
	f.becomes(id, work.BatchInProgress)
	w.until("it comes", row+`?.querySelector(".badge").textContent === "in progress"`)
	f.works(id, nil)
	w.until("it ends", row+`.querySelector(".badge").textContent === "completed" && `+row+`.querySelector("b").textContent === "100 %"`)
	w.click(".pill.busy")
	w.until("none is in progress", `document.querySelector(".empty") && location.search.includes("in_progress")`)

	w.open("/batch-list")
	w.click("#q")
	w.press("LETx")
	w.until("none is called so", `document.querySelector(".empty")?.textContent.includes("No title contains “LETx”") && location.search === "?q=LETx"`)
	w.press("\b")
	w.until("it is found", row+` && document.querySelector(".pill").textContent === "All 1" && location.search === "?q=LET"`)
	same(w, "the field has the focus still", `document.activeElement.id`, "q")
}

// The row of a unit that its batch holds does not change when the batch does.
func TestBrowserTellsWhyABatchHoldsAUnit(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	w := newTab(t, f.url)
	id := f.tested(6, "", nil)
	var units struct{ Items []work.Unit }
	f.get("/work-units?batch=" + id.String()).into(&units)
	w.open("/units/" + units.Items[0].ID.String())
	says := func(what string) {
		t.Helper()
		w.until(what, `document.querySelector(".waits").textContent.includes(`+quote(what)+`)`)
	}
	says("waits for a person")
	f.post("/batches/"+id.String()+"/approve", `{"concurrency":1}`).is(200)
	says("other units of its batch go before it")
	f.post("/batches/"+id.String()+"/pause", `{"by":"ann"}`).is(200)
	says("by ann")
}
