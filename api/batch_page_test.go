package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// lots is the body of a batch of n units, with more fields.
func lots(n int, more string) string {
	return `{"unit":{"backend":"mock","prompt":"Read {number}"},"units":[` + strings.TrimSuffix(strings.Repeat(`{"payload":{"number":1}},`, n), ",") + `]` + more + `}`
}

func batchPath(id uuid.UUID) string { return "/batch-list/" + id.String() }

// tested is a batch of which the first have run.
func (f *front) tested(n int, more string, fail func(work.Unit) bool) uuid.UUID {
	f.t.Helper()
	id := f.batch(lots(n, `,"test_first":3`+more)).ID
	for f.becomes(id, work.BatchTesting); f.readBatch(id).Status == work.BatchTesting; {
		f.works(id, fail)
	}
	f.becomes(id, work.BatchAwaitingApproval)
	return id
}

func TestBatchPages(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	f.get("/batch-list").is(200).has("No batches yet")
	id := f.tested(10, `,"title":"letters <b>","max_cost_usd":9`, func(u work.Unit) bool { return u.CustomID == "2" })
	page := batchPath(id)

	f.get("/batch-list").has("letters &lt;b&gt;", `href="`+page+`"`, "awaiting approval", "3 of 10 units", "1 failed", "$0.75 of $9.00",
		`aria-label="3 of 10 units over: 2 succeeded, 1 failed or timed out, 7 queued"`, `Await approval <b>1</b>`)
	f.get("/batch-list?status=completed").has("No batch is like this")
	f.get("/batch-list?q=LETTERS").has("letters &lt;b&gt;", `name="q" type="search" value="LETTERS"`, `href="/batch-list?q=LETTERS&amp;status=awaiting_approval"`, `All <b>1</b>`)
	f.get("/batch-list?q=%25&status=awaiting_approval").has("No title contains “%”", `All <b>0</b>`, `name="status" value="awaiting_approval"`)
	f.get("/batch-list?status=nonsense").refused(422, "status", "")
	f.get("/batch-list?after=x").refused(422, "after", "")
	if part := f.get("/batch-list", "X-Part", "batches").is(200); strings.Contains(string(part.body), "<html") {
		t.Errorf("%s", part.body)
	}
	whole := f.get(page).is(200).has("What the other 7 units will probably take", "letters &lt;b&gt;", "Approve…", "Reject…", "A person says whether the other 7 may",
		"refusal", "no, thank you", "/results?format=csv", "/manifest", `href="/?batch=`+id.String()+`&amp;status=failed%2Ctimed_out"`)
	keepsPolicy(t, string(whole.body))
	if part := f.get(page, "X-Part", "batch").is(200); strings.Contains(string(part.body), "<html") {
		t.Errorf("%s", part.body)
	}
	f.get(batchPath(uuid.New())).refused(404, "", "")
	f.get("/batch-list/x").refused(404, "", "")
	f.get("/overview").has("0 batches in progress, 1 awaits approval")

	alone := f.submit(mock(""))
	list := f.get("/?batch="+id.String()+"&status=queued").is(200).has("Units of the batch", "Queued <b>7</b>", "Failed <b>1</b>", `<input type="hidden" name="batch"`)
	if strings.Contains(string(list.body), alone.String()) {
		t.Error("a unit of no batch is in the list of one")
	}
	f.get("/?batch="+uuid.NewString()).refused(404, "", "")
	f.get("/?batch=x").refused(422, "batch", "")
	var units struct{ Items []work.Unit }
	f.get("/work-units?batch=" + id.String()).into(&units)
	f.get("/units/"+units.Items[0].ID.String()).is(200).has(`href="`+page+`">letters &lt;b&gt;</a>, item <code>10</code>`, "waits for a person")

	for i := range 25 {
		f.batch(lots(1, fmt.Sprintf(`,"title":"batch %d"`, i)))
	}
	f.get("/batch-list").has("Older batches", `All <b>26</b>`)
	last := f.get("/batch-list?status=awaiting_approval").has("letters")
	if strings.Contains(string(last.body), "Older batches") {
		t.Error("there is more after the last")
	}
}

func TestBatchByForms(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	id := f.tested(10, "", nil)
	page := batchPath(id)
	f.get(page+"/approve").is(200).has("Let the rest of this batch run?", "The other 7 units will probably cost", `name="max_cost_usd"`)
	f.get(page + "/pause").is(409).has("It is awaiting approval.")
	f.get(page+"/cancel").is(200).has("Reject this batch?", "The 7 units that did not begin are cancelled")
	f.form(page+"/approve", "max_cost_usd", "much").is(422).has("The cost must be a number above 0", `value="much"`)
	f.formAs(page+"/approve", "notice", "concurrency", "0").is(422).has("whole number", `role="alert"`)
	f.form(page+"/approve", "max_cost_usd", "20.5", "concurrency", "3").leadsTo(f, page+"?done=approved")
	f.get(page+"?done=approved").has("It is approved", `action="`+page+`/pause"`)
	if b := f.readBatch(id); b.Status != work.BatchInProgress || *b.MaxCostUSD != 20.5 || b.Concurrency != 3 {
		t.Errorf("%+v", b.Batch)
	}
	f.form(page+"/approve").is(409).has("<html", "the batch is in_progress")

	f.form(page+"/pause", "by", "ann", "why", "look <first>").leadsTo(f, page+"?done=paused")
	f.get(page).has("paused since", "by ann: look &lt;first&gt;", "Resume…")
	f.get(page+"/resume").has("It was paused: look &lt;first&gt;", `value="20.5"`)
	f.formAs(page+"/resume", "notice", "concurrency", "5").is(200).has("It goes on.")
	if b := f.readBatch(id); b.Paused != nil || b.Concurrency != 5 {
		t.Errorf("%+v", b.Batch)
	}
	f.works(id, func(work.Unit) bool { return true })
	f.get(page+"/retry").is(200).has("Run 5 units again?", "5 failed, 0 timed out, 0 were cancelled")
	f.form(page+"/retry").leadsTo(f, page+"?done=retried")
	f.formAs(page+"/cancel", "notice", "why", "enough").is(200).has("cancelled")
	if b := f.becomes(id, work.BatchCancelled); b.Why != "enough" || b.Counts.Cancelled != 7 {
		t.Errorf("%s %+v", b.Why, b.Counts)
	}
	f.get(page + "/cancel").is(409).has("It is cancelled.")
	f.get(page).has("enough", "Retry failed…")

	for _, verb := range []string{"approve", "cancel", "pause", "resume", "retry"} {
		f.form(batchPath(uuid.New())+"/"+verb).refused(404, "", "")
		f.get(batchPath(uuid.New())+"/"+verb).refused(404, "", "")
		f.do("POST", page+"/"+verb, "", "Content-Type", "application/x-www-form-urlencoded", "Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site").is(403)
	}
}

// A page of a batch hears of its units, and of nobody else's.
func TestPageFollowsTheUnitsOfABatch(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	f.get("/live?batch=x").refused(404, "", "")
	id, other := f.tested(5, "", nil), f.tested(5, "", nil)
	one, all := f.listen("/live?batch="+id.String()), f.listen("/live?batch=all")
	hears := func(l *listener, batch uuid.UUID) {
		t.Helper()
		for e := l.next(); e.event != "units" || !strings.Contains(e.data, batch.String()); e = l.next() {
			if e.event == "units" && (l == one || !strings.Contains(e.data, `"batch_id"`)) {
				t.Errorf("a page that waits for %s hears %s", batch, e.data)
			}
		}
	}
	hello := func(l *listener) {
		t.Helper()
		for e := l.next(); e.event != "hello"; e = l.next() {
		}
	}
	hello(one)
	hello(all)
	f.submit(mock(""))
	f.post("/batches/"+other.String()+"/approve", "{}").is(200)
	f.works(other, nil)
	hears(all, other)
	f.post("/batches/"+id.String()+"/approve", "{}").is(200)
	f.works(id, nil)
	hears(one, id)
	hears(all, id)
}
