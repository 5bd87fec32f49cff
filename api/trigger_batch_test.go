package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/hooks"
	"piecework/internal/work"
)

// batchTrigger makes a trigger whose webhooks become batches; more are fields of
// the batch beside items and unit.
func (f *front) batchTrigger(name, fields, more string) sender {
	f.t.Helper()
	var t work.Trigger
	f.do("PUT", "/triggers/"+name, fmt.Sprintf(`{"preset":"github","secrets":[%q]%s,"batch":{"items":"body.docs"%s,"unit":{"backend":"mock","prompt":"Read {title} for {who}","missing_key":"note"}}}`,
		goodSecret, fields, more)).is(200).into(&t)
	return f.sender(t)
}

// made reads the answer to a delivery that made a batch.
func (s sender) made(a *answer, status int, outcome string) uuid.UUID {
	s.t.Helper()
	var got hooks.Receipt
	a.is(status).into(&got)
	if got.Outcome != outcome || got.BatchID == nil || got.UnitID != nil || a.header.Get("Location") != "/batches/"+got.BatchID.String() {
		s.t.Fatalf("got %s %s, want %s", a.header.Get("Location"), a.body, outcome)
	}
	return *got.BatchID
}

func TestATriggerMakesABatch(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	s := f.batchTrigger("lists", `,"mapping":{"who":"body.sender","gone":"body.no.such"}`, `,"custom_id":"id","concurrency":2,"test_first":1,"metadata":{"a":"b"},
		"synthesis":{"unit":{"prompt":"Sum {succeeded} up"}},"stop_when":{"failure_rate":0.5}`)
	const body = `{"sender":"ann","docs":[{"id":"x","title":"One"},{"id":7,"title":"Two <&>"},{"id":"z"}]}`
	id := s.made(s.send("push", "d-1", body), 202, "accepted")
	if again := s.made(s.send("push", "d-1", body), 200, "duplicate"); again != id {
		t.Errorf("%s, and again %s", id, again)
	}
	b := f.becomes(id, work.BatchTesting)
	if b.Title != "lists d-1" || b.Counts.Total != 3 || b.Concurrency != 2 || b.TestFirst != 1 || b.StopWhen == nil ||
		len(b.Synthesis) == 0 || string(b.Metadata) != `{"a":"b"}` ||
		!strings.Contains(string(b.Source), `"path":"lists"`) {
		t.Errorf("%+v", b)
	}
	f.works(id, nil)
	f.becomes(id, work.BatchAwaitingApproval)
	f.post("/batches/"+id.String()+"/approve", "").is(200)
	for f.works(id, nil) > 0 {
	}
	var titles []string
	for _, r := range f.results(id) {
		titles = append(titles, r.CustomID+": "+f.unit(&r.ID).Title)
	}
	if got := strings.Join(titles, "\n"); got != "x: Read One for ann\n7: Read Two <&> for ann\nz: Read {title} for ann [ERROR: Missing template variable: 'title']" {
		t.Error(got)
	}
	if u := f.unit(&f.results(id)[1].ID); string(u.Payload) != `{"id":7,"title":"Two \u003c\u0026\u003e","who":"ann"}` || string(u.Labels) != `{"trigger": "lists"}` {
		t.Errorf("%s %s", u.Payload, u.Labels)
	}
	if got := f.deliveries("lists"); len(got) != 1 || got[0].BatchID == nil || *got[0].BatchID != id || got[0].UnitID != nil ||
		got[0].Duplicates != 1 {
		t.Errorf("%+v", got)
	}
	// What is read can be put again. A delivery stays what it was when the trigger changes.
	read := f.get("/triggers/lists").is(200).fields()
	for _, name := range []string{"name", "secrets", "created_at", "updated_at"} {
		delete(read, name)
	}
	same, err := json.Marshal(read)
	if err != nil {
		t.Fatal(err)
	}
	f.do("PUT", "/triggers/lists", string(same)).is(200)
	f.trigger("lists", "github", "", "x")
	if again := s.made(s.send("push", "d-1", body), 200, "duplicate"); again != id {
		t.Errorf("%s, and again %s", id, again)
	}
	f.trigger("lists", "github", `,"paused":true`, "x")
	s.made(s.send("push", "d-1", body), 200, "duplicate")
}

// The process that answered is gone before it has made the units: another has
// all it needs.
func TestADeliveredBatchOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	f := newFront(t) // makes no units of batches
	s := f.batchTrigger("lists", "", "")
	list := "1" + strings.Repeat(",1", 599)
	id := s.made(s.send("push", "d-1", `{"docs":[`+list+`]}`), 202, "accepted")
	if b := f.readBatch(id); b.Status != work.BatchEnumerating || b.Counts.Total != 0 {
		t.Fatalf("%+v", b)
	}
	dead := uuid.New()
	taken, err := f.Store.Batches.ClaimEnumeration(t.Context(), dead)
	if err != nil || taken == nil || taken.ID != id {
		t.Fatalf("%v %v", taken, err)
	}
	other := openFront(t, f.database, nowhere, nil)
	other.watchFor(time.Second)
	if err := f.Store.Batches.LeaveEnumeration(t.Context(), id, dead, 0); err != nil {
		t.Fatal(err)
	}
	if b := other.becomes(id, work.BatchInProgress); b.Counts.Total != 600 {
		t.Errorf("%+v", b.Counts)
	}
}

func TestDeliveriesThatMakeNoBatch(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	s := f.batchTrigger("lists", `,"mapping":{"who":"body.who"}`, `,"custom_id":"id"`)
	for i, test := range []struct{ body, words string }{
		{`{}`, "docs"},
		{`{"docs":{"a":1}}`, "no list"},
		{`{"docs":[]}`, "no item"},
		{`{"docs":[{"id":"a"},{"title":"x"}]}`, "item 2"},
		{`{"docs":[{"id":"a"},{"id":"a"}]}`, "item 2"},
		{`{"docs":[{"id":"` + strings.Repeat("x", 513) + `"}]}`, "longer than"},
		{`{"docs":[{"id":"a","file_path":"docs:secret"}]}`, "must not"},
		{`{"docs":[{"id":"a","working_directory":"docs:"}]}`, "must not"},
	} {
		if p := s.send("push", fmt.Sprint("d-", i), test.body).refused(422, "#", test.words); p.Detail == "" {
			t.Errorf("%+v", p)
		}
	}
	many := f.batchTrigger("many", `,"mapping":{"big":"body.big"}`, "")
	ones := "1" + strings.Repeat(",1", 10_000)
	many.send("push", "d-1", `{"docs":[`+ones+`]}`).refused(422, "#", "more than 10000")
	many.send("push", "d-2", `{"docs":[`+ones[:2*10_000-1]+`],"big":"`+strings.Repeat("x", 100_000)+`"}`).refused(422, "#", "map less")
	if got := append(f.deliveries("lists"), f.deliveries("many")...); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	skip := f.batchTrigger("skip", "", `,"custom_id":"id","on_invalid":"skip"`)
	other := openFront(t, f.database, nowhere, nil)
	other.watchFor(time.Second)
	id := skip.made(skip.send("push", "d-1", `{"docs":[{"id":"a"},{"title":"x"},{"id":"b","file_path":"docs:secret"},{"id":"a"},{"id":"c"}]}`), 202, "accepted")
	if b := other.becomes(id, work.BatchInProgress); b.Counts.Total != 2 || b.Rejected != 3 {
		t.Errorf("%+v %+v", b.Counts, b.Problems)
	}
	skip.send("push", "d-2", `{"docs":[{"title":"x"}]}`).refused(422, "#", "no item")
}

func TestBadBatchTriggersAreRefused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const unit = `"unit":{"backend":"mock","prompt":"x"}`
	for _, test := range []struct{ batch, more, pointer, words string }{
		{`{` + unit + `}`, "", "#/batch", "items"},
		{`{"items":"body.",` + unit + `}`, "", "#/batch/items", "Syntax error"},
		{`{"items":"body"}`, "", "#/batch/unit", "missing"},
		{`{"items":"body","unit":{"backend":"gpt","prompt":"x"}}`, "", "#/batch/unit/backend", "no backend"},
		{`{"items":"body","unit":{"backend":"mock","prompt":"x","delay":5}}`, "", "#/batch/unit", "delay"},
		{`{"items":"body","dry_run":true,` + unit + `}`, "", "#/batch", "dry_run"},
		{`{"items":"body","stop_when":{},` + unit + `}`, "", "#/batch/stop_when", "failure_rate"},
		{`{"items":"body","synthesis":{"unit":{"backend":"gpt","prompt":"x"}},` + unit + `}`, "", "#/batch/synthesis/unit/backend", "no backend"},
		{`{"items":"body","source":{},` + unit + `}`, "", "#/batch", "source"},
		{`{"items":"body",` + unit + `}`, "," + unit, "#/unit", "either"},
	} {
		p := f.do("PUT", "/triggers/t", fmt.Sprintf(`{"preset":"github","secrets":[%q],"batch":%s%s}`, goodSecret, test.batch, test.more))
		if p.status != 422 || !strings.Contains(string(p.body), test.pointer) || !strings.Contains(string(p.body), test.words) {
			t.Errorf("%s: %d %s", test.batch, p.status, p.body)
		}
	}
}
