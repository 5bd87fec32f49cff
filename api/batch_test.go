package api

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/ops"
	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// newBatches opens a door that makes the units of batches, with one root, docs.
func newBatches(t *testing.T) (*front, string) {
	t.Helper()
	docs := t.TempDir()
	f := openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) {
		var err error
		if o.Roots, err = o.Roots.With("docs", docs); err != nil {
			t.Fatal(err)
		}
		if o.Buckets, err = blob.ParseBuckets("bucket=" + blob.Local(docs)); err != nil {
			t.Fatal(err)
		}
		o.FilePolicy.MaxBytes = 1000
	})
	f.watchFor(time.Second)
	return f, docs
}

func (f *front) batch(body string, headers ...string) BatchView {
	f.t.Helper()
	var b BatchView
	f.post("/batches", body, headers...).is(202).into(&b)
	return b
}

func (f *front) readBatch(id uuid.UUID) BatchView {
	f.t.Helper()
	var b BatchView
	f.get("/batches/" + id.String()).is(200).into(&b)
	return b
}

// becomes waits until a batch has a status.
func (f *front) becomes(id uuid.UUID, status work.BatchStatus) (b BatchView) {
	f.t.Helper()
	testkit.Eventually(f.t, "the batch is "+string(status), func() bool {
		b = f.readBatch(id)
		if b.Status.Final() && b.Status != status {
			f.t.Fatalf("the batch is %s: %s %v", b.Status, b.Why, b.Problems)
		}
		return b.Status == status
	})
	return b
}

// works runs every unit of a batch that was let go, and tells how many; fail
// chooses those that fail.
func (f *front) works(id uuid.UUID, fail func(work.Unit) bool) (n int) {
	f.t.Helper()
	return f.worksAs(id, work.ClassRefusal, fail)
}

// worksAs does so too; those that fail do with an error of the class.
func (f *front) worksAs(id uuid.UUID, class work.Class, fail func(work.Unit) bool) (n int) {
	f.t.Helper()
	f.advance(id)
	units, _, err := f.Store.Units.List(f.t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: id,
		States: []work.State{work.Queued}, Limit: 500})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, u := range slices.Backward(units) {
		if u.Held {
			continue
		}
		n++
		c := f.claim(u.ID)
		if fail == nil || !fail(u) {
			f.finish(c, "result of "+u.CustomID)
			continue
		}
		if _, err := f.Store.Runs.Finish(f.t.Context(), store.Finish{UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount,
			Status: work.RunFailed, Next: work.Failed,
			TotalCostUSD: new(0.25), Error: work.Fail(class, "no, thank you")}); err != nil {
			f.t.Fatal(err)
		}
	}
	f.advance(id)
	return n
}

// advance does what worker processes and the reconciler do.
func (f *front) advance(id uuid.UUID) {
	f.t.Helper()
	if err := jobs.AdvanceBatch(f.t.Context(), f.Store, f.Queue, f.Log, id); err != nil {
		f.t.Fatal(err)
	}
}

func (f *front) results(id uuid.UUID) (all []jobs.Result) {
	f.t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(f.get("/batches/" + id.String() + "/results").is(200).body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r jobs.Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestBatchOfUnits(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	a := f.post("/batches", `{"title":"letters","callback_url":"https://example.com/done","metadata":{"case":"7"},"unit":{"backend":"mock","prompt":"Sum {text} up","payload":{"tone":"dry"},"labels":{"team":"a"}},
		"units":[{"payload":{"text":"one"}},{"custom_id":"x","payload":{"text":"two","tone":"wet"},"labels":{"b":"c"}},{"prompt":"Say {tone}"}]}`).is(202)
	var b submittedBatch
	a.into(&b)
	if a.header.Get("Location") != "/batches/"+b.ID.String() || b.Sample.CustomID != "1" || b.Sample.Title != "Sum one up" {
		t.Errorf("%s %+v", a.header, b.Sample)
	}
	f.becomes(b.ID, work.BatchInProgress)
	f.works(b.ID, nil)
	done := f.becomes(b.ID, work.BatchCompleted)
	if c := done.Counts; c.Total != 3 || c.Succeeded != 3 || c.Known() != 0.75 || done.Title != "letters" || string(done.Metadata) != `{"case":"7"}` {
		t.Errorf("%+v %s", c, done.Metadata)
	}
	var units struct{ Items []work.Unit }
	f.get("/work-units?batch=" + b.ID.String()).is(200).into(&units)
	var said []string
	for _, u := range slices.Backward(units.Items) {
		said = append(said, u.CustomID+" "+u.Title+" "+string(u.Labels))
	}
	want := []string{`1 Sum one up {"team":"a"}`, `x Sum two up {"b":"c","team":"a"}`, `3 Say dry {"team":"a"}`}
	for i := range said {
		said[i] = strings.ReplaceAll(said[i], `": "`, `":"`)
		said[i] = strings.ReplaceAll(said[i], `", "`, `","`)
	}
	if !slices.Equal(said, want) {
		t.Errorf("%q", said)
	}
	results := f.results(b.ID)
	if len(results) != 3 || results[1].CustomID != "x" || *results[1].Output != "result of x" {
		t.Errorf("%+v", results)
	}
	table, err := csv.NewReader(bytes.NewReader(f.get("/batches/" + b.ID.String() + "/results?format=csv&status=succeeded").is(200).body)).ReadAll()
	if err != nil || len(table) != 4 || table[2][3] != "result of x" {
		t.Errorf("%v %v", table, err)
	}
	var manifest struct {
		Counts work.BatchCounts
		Input  work.File
		Units  []manifestUnit
	}
	f.get("/batches/" + b.ID.String() + "/manifest").is(200).into(&manifest)
	if len(manifest.Units) != 3 || manifest.Counts.Total != 3 || manifest.Input.SHA256 == "" || manifest.Units[1].OutputBytes != len("result of x") {
		t.Errorf("%+v", manifest)
	}
	var list struct{ Items []work.Batch }
	f.get("/batches?status=completed&q=LETT").is(200).into(&list)
	if len(list.Items) != 1 || list.Items[0].Counts.Succeeded != 3 {
		t.Errorf("%+v", list)
	}
	var told struct{ Items []work.Delivery }
	f.get("/deliveries?batch=" + b.ID.String()).is(200).into(&told)
	if len(told.Items) != 1 || told.Items[0].BatchID == nil || *told.Items[0].BatchID != b.ID {
		t.Errorf("%+v", told)
	}
}

func TestBatchIsRefused(t *testing.T) {
	t.Parallel()
	f, docs := newBatches(t)
	if err := os.WriteFile(filepath.Join(docs, "rows.csv"), []byte("name\nAnn\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unit := `"unit":{"backend":"mock","prompt":"Hello {name}"}`
	for _, c := range []struct {
		body   string
		status int
		place  string
		detail string
	}{
		{`{}`, 422, "#/units", "there are none"},
		{`{"units":[{}]}`, 400, "#/units/0/prompt", "line 1: is missing"},
		{`{"units":[{"backend":"mock","prompt":"x"},{"backend":"nope","prompt":"x"}]}`, 400, "#/units/1/backend", "line 2: there is no backend"},
		{`{"units":[{"custom_id":"a","backend":"mock","prompt":"x"},{"custom_id":"a","backend":"mock","prompt":"x"}]}`, 400, "#/units/1/custom_id", `line 2: "a" is there already`},
		{`{"units":[{"custom_id":7,"backend":"mock","prompt":"x"}]}`, 400, "#/units/0/custom_id", "must be a text"},
		{`{"units":[{"backend":"mock","prompt":"x","tiemout":3}]}`, 400, "#/units/0/tiemout", "there is no field"},
		{`{"units":[{"backend":"mock","prompt":"x"}],"source":{"type":"csv","path":"docs:rows.csv"}}`, 422, "#/units", "either units or source"},
		{`{` + unit + `,"source":{"type":"csv","path":"docs:none.csv"}}`, 422, "#/source/path", "none.csv"},
		{`{` + unit + `,"source":{"type":"csv","path":"other:rows.csv"}}`, 422, "#/source/path", "no root"},
		{`{` + unit + `,"source":{"type":"csv","path":"0198f0c2-7b1e-7c3a-9d55-2f6a1c0e4b77"}}`, 422, "#/source/path", "no uploaded file"},
		{`{` + unit + `,"source":{"type":"csv","path":"docs:rows.csv","glob":["*"]}}`, 422, "#/source/glob", "type files"},
		{`{` + unit + `,"source":{"type":"files","path":"docs:","suffix":[".pdf"]}}`, 422, "#/source", "nothing in it"},
		{`{` + unit + `,"source":{"type":"json","path":"docs:rows.csv"}}`, 422, "#/source/path", "not JSON"},
		{`{"unit":{"backend":"mock"},"source":{"type":"csv","path":"docs:rows.csv"}}`, 400, "#/source/items/2/prompt", "is missing"},
		{`{` + unit + `,"units":[{}],"max_cost_usd":0}`, 422, "#/max_cost_usd", "more than 0"},
		{`{` + unit + `,"units":[{}],"stop_when":{}}`, 422, "#/stop_when", "failure_rate"},
		{`{` + unit + `,"units":[{}],"expires_at":"2020-01-01T00:00:00Z"}`, 422, "#/expires_at", "past"},
		{`{` + unit + `,"units":[{}],"metadata":{"a":1}}`, 422, "#/metadata/a", "text"},
		{`{` + unit + `,"units":[{}],"callback_url":"http://10.0.0.1/"}`, 422, "#/callback_url", ""},
		{`{` + unit + `,"units":[{}],"synthesis":{"unit":{}}}`, 422, "#/synthesis/unit/prompt", "is missing"},
	} {
		f.post("/batches", c.body).refused(c.status, c.place, c.detail)
	}
	for _, path := range []string{"", "/results", "/manifest"} {
		f.get("/batches/0198f0c2-7b1e-7c3a-9d55-2f6a1c0e4b77"+path).refused(404, "", "")
		f.get("/batches/nope"+path).refused(404, "", "")
	}
	var list struct{ Items []work.Batch }
	f.get("/batches").is(200).into(&list)
	if len(list.Items) != 0 {
		t.Errorf("%d batches were made of what was refused", len(list.Items))
	}
	files, _, err := f.Store.Files.List(t.Context(), store.FileFilter{Tenant: work.DefaultTenant})
	if err != nil || len(files) != 0 {
		t.Errorf("%d files are left of what was refused", len(files))
	}
}

func (f *front) lines(status int, text string, headers ...string) *answer {
	f.t.Helper()
	return f.do("POST", "/batches", text, append([]string{"Content-Type", "application/x-ndjson"}, headers...)...).is(status)
}

func TestBatchOfLines(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	head := `{"batch":{"title":"lines","unit":{"backend":"mock","prompt":"Do {n}"}}}` + "\n"
	var text strings.Builder
	text.WriteString(head)
	for i := range 700 {
		fmt.Fprintf(&text, `{"custom_id":"c%d","payload":{"n":%d}}`+"\n\n", i, i)
	}
	var b BatchView
	f.lines(202, text.String(), "Idempotency-Key", "k").into(&b)
	done := f.becomes(b.ID, work.BatchInProgress)
	if done.Counts.Total != 700 || done.Title != "lines" {
		t.Errorf("%+v", done.Counts)
	}
	var again BatchView
	if a := f.lines(202, text.String(), "Idempotency-Key", "k"); a.header.Get("Idempotent-Replayed") != "true" {
		t.Error("made again")
	} else if a.into(&again); again.ID != b.ID {
		t.Errorf("%s, then %s", b.ID, again.ID)
	}
	for body, want := range map[string]struct{ place, detail string }{
		"":                             {"", "no line"},
		head:                           {"", ""},
		head + "{\"payload\":{}}\n{\n": {"#/3", "line 3"},
		head + "[]\n":                  {"#/2", "must be an object"},
		`{"batch":{"unit":{"backend":"mock","prompt":"x"}},"line":0}` + "\n{}\n\n{\n": {"#/3", "line 3"},
		`{"batch":{},"line":1}` + "\n{}":                                              {"", "line 1"},
		`{"batch":{},"prompt":"x"}`:                                                   {"", "line 1"},
		`{"batch":{"titel":"x"}}` + "\n{}":                                            {"#/1/batch/titel", "there is no field"},
		`{"batch":{"max_cost_usd":-1}}` + "\n{}":                                      {"#/1/batch/max_cost_usd", "more than 0"},
		head + `{"custom_id":"a"}` + "\n" + `{"custom_id":"a"}`:                       {"#/3/custom_id", `line 3: "a" is there already`},
	} {
		a := f.do("POST", "/batches", body, "Content-Type", "application/x-ndjson")
		if a.status < 400 || a.status > 422 {
			t.Errorf("%q: %d %s", body, a.status, a.body)
			continue
		}
		if body != head {
			a.refused(a.status, want.place, want.detail)
		}
	}
	var dry submittedBatch
	f.lines(200, `{"batch":{"dry_run":true},"line":0}`+"\n"+`{"backend":"mock","prompt":"x"}`+"\n").into(&dry)
	if !dry.DryRun || dry.Counts.Total != 1 || dry.Sample.CustomID != "1" {
		t.Errorf("%+v %+v", dry.Counts, dry.Sample)
	}
	f.get("/batches/" + dry.ID.String()).is(404)
	f.lines(202, head[:len(head)-3]+`,"on_invalid":"skip"}}`+"\n{}\n{\"nope\":1}\n{\"custom_id\":\"2\"}\n{\"payload\":{\"n\":2}}\n").into(&b)
	skipped := f.becomes(b.ID, work.BatchInProgress)
	if skipped.Counts.Total != 2 || skipped.Rejected != 2 || len(skipped.Problems) != 2 || skipped.Problems[0].Line != 3 ||
		skipped.Problems[1].CustomID != "2" {
		t.Errorf("%+v, rejected %d: %+v", skipped.Counts, skipped.Rejected, skipped.Problems)
	}
}

func TestBatchOfSources(t *testing.T) {
	t.Parallel()
	f, docs := newBatches(t)
	for name, text := range map[string]string{
		"in/a.txt": "a", "in/b/c.txt": "c", "in/.hidden.txt": "h", "in/d.png": "d", "in/large.txt": strings.Repeat("l", 2000),
		"rows.csv": "id,name\nk1,Ann\nk2,Bob\nk3,\"{x}\"\n", "doc.json": `{"rows":[{"name":"Ann"},{"name":"Bob"}]}`, "lines.jsonl": "{\"name\":\"Ann\"}\n{\"name\":1}\n",
		"bad.csv": "id,name\nk1,Ann\nk1,Bob\nk2\n",
	} {
		path := filepath.Join(docs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := f.upload("names.csv", "name\nAnn\n").ID.String()
	for source, want := range map[string]string{
		`{"type":"files","path":"docs:in","exclude":["large*"]}`:                                `a.txt: Hello a.txt, b/c.txt: Hello c.txt, d.png: Hello d.png`,
		`{"type":"files","path":"docs:in","hidden":true,"glob":["*.txt"],"exclude":["large*"]}`: `.hidden.txt: Hello .hidden.txt, a.txt: Hello a.txt`,
		`{"type":"files","path":"docs:in","limit":1}`:                                           `a.txt: Hello a.txt`,
		`{"type":"csv","path":"docs:rows.csv","custom_id":"id"}`:                                `k1: Hello Ann, k2: Hello Bob, k3: Hello {x}`,
		`{"type":"json","path":"docs:doc.json","items":"/rows"}`:                                `1: Hello Ann, 2: Hello Bob`,
		`{"type":"jsonl","path":"docs:lines.jsonl"}`:                                            `1: Hello Ann, 2: Hello 1`,
		`{"type":"csv","path":"bucket:rows.csv","limit":1}`:                                     `1: Hello Ann`,
		`{"type":"csv","path":"` + file + `"}`:                                                  `1: Hello Ann`,
	} {
		key := "name"
		if strings.Contains(source, "files") {
			key = "file_name"
		}
		b := f.batch(`{"unit":{"backend":"mock","prompt":"Hello {` + key + `}"},"source":` + source + `}`)
		f.becomes(b.ID, work.BatchInProgress)
		units, _, err := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: b.ID})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, u := range slices.Backward(units) {
			got = append(got, u.CustomID+": "+u.Title)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %v, want %s", source, got, want)
		}
	}
	b := f.batch(`{"unit":{"backend":"mock","prompt":"Hello {file_name}"},"on_invalid":"skip","source":{"type":"files","path":"bucket:in","suffix":[".txt"]}}`)
	if got := f.becomes(b.ID, work.BatchInProgress); got.Counts.Total != 2 || got.Rejected != 1 ||
		!strings.Contains(got.Problems[0].Detail, "larger") {
		t.Errorf("%+v, rejected %d: %+v", got.Counts, got.Rejected, got.Problems)
	}
	units, _, err := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: b.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range units { // each has its object as an uploaded file
		whole, err := f.Store.Units.Get(t.Context(), work.DefaultTenant, u.ID)
		if err != nil || len(whole.Uploads()) != 1 || !strings.Contains(string(whole.Payload), `"source":"bucket:in/`+u.CustomID+`"`) {
			t.Errorf("%s %v", whole.Payload, err)
			continue
		}
		if text := f.get("/files/" + whole.Uploads()[0].String() + "/content").is(200).body; len(text) != 1 {
			t.Errorf("%s has %s", u.CustomID, text)
		}
	}
	bad := `{"unit":{"backend":"mock","prompt":"Hello {name}"},"source":{"type":"csv","path":"docs:bad.csv","custom_id":"id"}`
	failed := f.becomes(f.batch(bad+`}`).ID, work.BatchFailed)
	if failed.Counts.Total != 0 || failed.Rejected != 2 || failed.Problems[0].Line != 3 || failed.Problems[1].Line != 4 {
		t.Errorf("%s %+v", failed.Why, failed.Problems)
	}
	skipped := f.becomes(f.batch(bad+`,"on_invalid":"skip"}`).ID, work.BatchInProgress)
	if skipped.Counts.Total != 1 || skipped.Rejected != 2 {
		t.Errorf("%+v, %d rejected", skipped.Counts, skipped.Rejected)
	}
	var dry submittedBatch
	f.post("/batches", bad+`,"on_invalid":"skip","dry_run":true}`).is(200).into(&dry)
	if dry.Counts.Total != 1 || dry.Rejected != 2 || !dry.DryRun || dry.Sample.Title != "Hello Ann" {
		t.Errorf("%+v %+v", dry.Counts, dry.Sample)
	}
	f.get("/batches/"+dry.ID.String()).refused(404, "", "")
}

func TestBatchIsTestedApprovedAndSummedUp(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	var units []string
	for i := range 12 {
		units = append(units, fmt.Sprintf(`{"payload":{"n":%d}}`, i))
	}
	b := f.batch(`{"unit":{"backend":"mock","prompt":"Do {n}"},"units":[` + strings.Join(units, ",") + `],"test_first":3,
		"synthesis":{"unit":{"prompt":"{succeeded} of {total}; {failed} failed"},"despite_failures":true}}`)
	f.becomes(b.ID, work.BatchTesting)
	if n := f.works(b.ID, nil); n != 3 {
		t.Fatalf("%d units ran in the test", n)
	}
	asked := f.becomes(b.ID, work.BatchAwaitingApproval)
	if p := asked.Forecast; p == nil || p.Trial != 3 || p.Left != 9 || p.CostUSD.Mean != 2.25 || p.CostUSD.Low != 2.25 ||
		p.Elapsed.Mean > p.RunTime.Mean {
		t.Errorf("%+v", p)
	}
	f.post("/batches/"+b.ID.String()+"/pause", `{}`).refused(409, "", "awaiting_approval")
	var unit struct{ Reasons []ops.Reason }
	held, _, _ := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: b.ID,
		States: []work.State{work.Queued}})
	f.get("/work-units/" + held[0].ID.String() + "/explain").is(200).into(&unit)
	if len(unit.Reasons) != 1 || unit.Reasons[0].Code != "batch_awaits_approval" ||
		!strings.Contains(unit.Reasons[0].Detail, "piecework batch approve "+b.ID.String()) {
		t.Errorf("%+v", unit)
	}
	f.post("/batches/"+b.ID.String()+"/approve", `{"concurrency":4}`).is(200)
	f.post("/batches/"+b.ID.String()+"/approve", ``).refused(409, "", "in_progress")
	if n := f.works(b.ID, nil); n != 4 {
		t.Errorf("%d units were let go of a concurrency of 4", n)
	}
	f.post("/batches/"+b.ID.String()+"/pause", `{"by":"ann","why":"lunch"}`).is(200)
	if n := f.works(b.ID, nil); n != 0 {
		t.Errorf("%d units of a paused batch ran", n)
	}
	if p := f.readBatch(b.ID).Paused; p == nil || p.By != "ann" || p.Why != "lunch" {
		t.Errorf("%+v", p)
	}
	f.post("/batches/"+b.ID.String()+"/resume", `{"concurrency":100}`).is(200)
	f.works(b.ID, func(u work.Unit) bool { return u.CustomID == "12" })
	f.becomes(b.ID, work.BatchFinalizing)
	var last BatchView
	testkit.Eventually(t, "there is a synthesis", func() bool { last = f.readBatch(b.ID); return last.SynthesisUnit != nil })
	u, err := f.Store.Units.Get(t.Context(), work.DefaultTenant, *last.SynthesisUnit)
	if err != nil || u.Title != "11 of 12; 1 failed" || u.Backend != "mock" || len(u.Files) != 1 {
		t.Fatalf("%+v %v", u, err)
	}
	content := string(f.get("/files/" + u.Files[0] + "/content").is(200).body)
	if strings.Count(content, "\n") != 12 || !strings.Contains(content, "no, thank you") {
		t.Errorf("the synthesis is given %s", content)
	}
	f.finish(f.claim(u.ID), "in short")
	f.advance(b.ID)
	f.becomes(b.ID, work.BatchCompletedWithFailures)

	f.post("/batches/"+b.ID.String()+"/retry", `{"status":["timed_out"]}`).refused(409, "", "no unit to run again")
	f.post("/batches/"+b.ID.String()+"/retry", ``).is(200)
	f.works(b.ID, nil)
	testkit.Eventually(t, "there is another synthesis", func() bool {
		last = f.readBatch(b.ID)
		return last.SynthesisUnit != nil && *last.SynthesisUnit != u.ID
	})
	f.post("/batches/"+b.ID.String()+"/cancel", `{"why":"enough"}`).is(200)
	ended := f.becomes(b.ID, work.BatchCancelled)
	if again, err := f.Store.Units.Get(t.Context(), work.DefaultTenant, *last.SynthesisUnit); err != nil ||
		again.State != work.Cancelled || ended.Counts.Succeeded != 12 {
		t.Errorf("%v %v %+v", again.State, err, ended.Counts)
	}
}

// Another process goes on with what a dead one has begun, where it was.
func TestBatchOfADeadProcessIsFilled(t *testing.T) {
	t.Parallel()
	f := newFront(t) // makes no units yet
	b := f.batch(`{"unit":{"backend":"mock","prompt":"Do it"},"units":[{},{},{}]}`)
	dead := uuid.New()
	filling, err := f.Store.Batches.ClaimEnumeration(t.Context(), dead)
	if err != nil || filling == nil {
		t.Fatal(err)
	}
	if err := f.Store.Batches.LeaveEnumeration(t.Context(), b.ID, dead, 0); err != nil { // as its lease would end
		t.Fatal(err)
	}
	f.watchFor(time.Second)
	if c := f.becomes(b.ID, work.BatchInProgress).Counts; c.Total != 3 {
		t.Errorf("%+v", c)
	}
}

// However units of a batch are retried, no more of them begin than the batch
// lets, and they begin without the reconciler.
func TestRetriesGoThroughTheWindow(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	b := f.batch(`{"concurrency":2,"unit":{"backend":"mock","prompt":"p"},"units":[{},{},{},{},{},{}]}`)
	f.becomes(b.ID, work.BatchInProgress)
	bad := func(work.Unit) bool { return true }
	for f.works(b.ID, bad) > 0 {
	}
	ways := []func(id uuid.UUID){
		func(id uuid.UUID) { f.post("/batches/"+id.String()+"/retry", "").is(200) },
		func(id uuid.UUID) { f.post("/work-units/retry?batch="+id.String(), "").is(200) },
		func(id uuid.UUID) {
			units, _, err := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: id})
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range units {
				f.post("/work-units/"+u.ID.String()+"/retry", "").is(202)
			}
		},
	}
	for i, retry := range ways {
		f.becomes(b.ID, work.BatchCompletedWithFailures)
		retry(b.ID)
		units, _, err := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: b.ID,
			States: []work.State{work.Queued}})
		if err != nil {
			t.Fatal(err)
		}
		begin := slices.DeleteFunc(slices.Clone(units), func(u work.Unit) bool { return u.Held })
		if len(units) != 6 || len(begin) != 2 {
			t.Errorf("way %d: %d of %d queued units may begin; the batch has a concurrency of 2", i, len(begin), len(units))
		}
		for f.works(b.ID, bad) > 0 {
		}
	}
}

// A limit on costs that nobody can keep is refused.
func TestLimitsWithoutPrices(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	f := openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) {
		var err error
		if o.Prices, err = backend.ReadPrices(nil); err != nil {
			t.Fatal(err)
		}
		if o.Roots, err = o.Roots.With("docs", docs); err != nil {
			t.Fatal(err)
		}
	})
	const unit = `{"backend":"anthropic","model":"nobody-knows","prompt":"x"}`
	f.post("/work-units", `{"backend":"anthropic","model":"nobody-knows","prompt":"x","max_cost_usd":1}`).refused(422, "#/max_cost_usd", "--unknown-price")
	f.post("/work-units", unit).is(202)
	f.post("/batches", `{"max_cost_usd":1,"units":[`+unit+`]}`).refused(400, "#/units/0/model", "max_cost_usd cannot be kept: the price of model nobody-knows is not known")
	f.post("/batches", `{"stop_when":{"mean_cost_usd":1},"units":[`+unit+`]}`).refused(400, "#/units/0/model", "or leave mean_cost_usd in stop_when out")
	if err := os.WriteFile(filepath.Join(docs, "lines.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.post("/batches", `{"max_cost_usd":1,"unit":`+unit+`,"source":{"type":"jsonl","path":"docs:lines.jsonl"}}`).refused(400, "#/source/items/1/model", "cannot be kept")
	for _, body := range []string{
		`{"units":[` + unit + `]}`,
		`{"max_cost_usd":1,"units":[{"backend":"claude","model":"nobody-knows","prompt":"x"}]}`, // it tells what it costs
		`{"max_cost_usd":1,"units":[{"backend":"anthropic","prompt":"x"}]}`,                     // the worker process names the model
	} {
		f.post("/batches", body).is(202)
	}
}

// A batch that a limit on costs has stopped says so, and its forecast is null.
func TestBatchOfUnknownCost(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	b := f.batch(`{"test_first":1,"unit":{"backend":"mock","prompt":"p"},"units":[{},{},{}]}`)
	f.becomes(b.ID, work.BatchTesting)
	f.advance(b.ID)
	units, _, err := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: b.ID})
	if err != nil {
		t.Fatal(err)
	}
	c := f.claim(units[2].ID)
	if _, err := f.Store.Runs.Finish(t.Context(), store.Finish{UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount,
		Status: work.RunSucceeded, Next: work.Succeeded}); err != nil {
		t.Fatal(err)
	}
	f.advance(b.ID)
	a := f.get("/batches/" + b.ID.String()).is(200)
	if b := f.becomes(b.ID, work.BatchAwaitingApproval); b.Forecast == nil || b.Forecast.CostUSD != nil || b.Forecast.Left != 2 {
		t.Errorf("%s", a.body)
	}
	if err := f.misfit("BatchDetail", a.body); err != nil || !strings.Contains(string(a.body), `"cost_usd":null,"run_time"`) {
		t.Errorf("%v: %s", err, a.body)
	}
}

// Lines that begin alike are let go together, however they were mixed.
func TestMixedLinesAreSorted(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	lines := "{\"batch\":{\"concurrency\":2,\"unit\":{\"backend\":\"mock\"}}}\n"
	for i, system := range []string{"a", "b", "a", "b"} {
		lines += fmt.Sprintf(`{"custom_id":"%d","prompt":"x%d","system_prompt":%q}`+"\n", i, i, strings.Repeat(system, 4096))
	}
	var b BatchView
	f.lines(202, lines).into(&b)
	f.becomes(b.ID, work.BatchInProgress)
	f.advance(b.ID)
	units, _, err := f.Store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: b.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		if u.Held == (u.CustomID == "0" || u.CustomID == "2") {
			t.Errorf("unit %s: held: %t", u.CustomID, u.Held)
		}
	}
}
