package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// A check of the result is looked at when the unit is submitted, by every way
// that units come in.
func TestAcceptanceCheck(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, test := range []struct{ fields, pointer, words string }{
		{`,"accept":{}`, "#/accept", "checks nothing"},
		{`,"accept":{"expression":"json.a ="}`, "#/accept/expression", ""},
		{`,"accept":{"output_matches":"("}`, "#/accept/output_matches", "RE2"},
		{`,"accept":{"file_exists":"/etc/passwd"}`, "#/accept/file_exists", "inside the unit's directory"},
		{`,"accept":{"command":"true"}`, "#/accept/command", "PIECEWORK_ACCEPT_COMMANDS"},
	} {
		f.post("/work-units", mock(test.fields)).refused(422, test.pointer, test.words)
	}
	f.post("/work-units", `{"backend":"openai","prompt":"x","accept":{"file_exists":"a"}}`).refused(422, "#/accept/file_exists", "writes no files")
	f.post("/work-units", `{"backend":"openai","request":{"endpoint":"/v1/chat/completions","body":{"model":"m"}},"accept":{"file_exists":"a"}}`).refused(422, "#/accept", "has no directory")
	id := f.submit(mock(`,"accept":{"expression":"json.ok","file_exists":"out/*.md"}`))
	var u map[string]json.RawMessage
	if err := json.Unmarshal(f.get("/work-units/"+id.String()).body, &u); err != nil || string(u["accept"]) != `{"expression":"json.ok","file_exists":"out/*.md"}` {
		t.Errorf("the unit has %s, error %v", u["accept"], err)
	}
	if list := string(f.get("/work-units").body); strings.Contains(list, "json.ok") {
		t.Error("lists have the check, and could be long")
	}
	allowed := openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) { o.AcceptCommands = true })
	allowed.submit(mock(`,"accept":{"command":["make","test"],"timeout":"10m"}`))
}

// Schedules and triggers look at the check when they are put, and their units
// have it.
func TestAcceptanceCheckOfSchedulesAndTriggers(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	const check, bad = `{"expression":"json.ok"}`, `{"output_matches":"("}`
	secrets := `"preset":"github","secrets":["` + goodSecret + `"],`
	batch := func(unit string) string {
		return `{` + secrets + `"batch":{"items":"body.docs","unit":{"backend":"mock","prompt":"x","accept":` + unit + `}}}`
	}
	f.do("PUT", "/schedules/s", `{"cron":"@daily","unit":`+mock(`,"accept":`+bad)+`}`).refused(422, "#/unit/accept/output_matches", "RE2")
	f.do("PUT", "/schedules/s", `{"cron":"@daily","unit":`+mock(`,"accept":{"command":"true"}`)+`}`).refused(422, "#/unit/accept/command", "PIECEWORK_ACCEPT_COMMANDS")
	f.do("PUT", "/triggers/t", `{`+secrets+`"unit":`+mock(`,"accept":`+bad)+`}`).refused(422, "#/unit/accept/output_matches", "RE2")
	f.do("PUT", "/triggers/b", batch(bad)).refused(422, "#/batch/unit/accept/output_matches", "RE2")

	f.do("PUT", "/schedules/s", `{"cron":"@daily","unit":`+mock(`,"accept":`+check)+`}`).is(200)
	unit, err := json.Marshal(f.get("/schedules/s").is(200).fields()["unit"])
	if err != nil {
		t.Fatal(err)
	}
	f.do("PUT", "/schedules/s", `{"cron":"@daily","unit":`+string(unit)+`}`).is(200) // as it was read
	var scheduled work.Unit
	f.do("POST", "/schedules/s/run", "").is(202).into(&scheduled)
	f.checked(scheduled.ID, check)

	var trigger work.Trigger
	f.do("PUT", "/triggers/t", `{`+secrets+`"unit":`+mock(`,"accept":`+check)+`}`).is(200).into(&trigger)
	s := f.sender(trigger)
	f.checked(*s.receipt(s.send("push", "d-1", `{}`), 202, "accepted").UnitID, check)

	f.do("PUT", "/triggers/b", batch(check)).is(200).into(&trigger)
	s = f.sender(trigger)
	id := s.made(s.send("push", "d-2", `{"docs":[{"n":1},{"n":2}]}`), 202, "accepted")
	f.becomes(id, work.BatchInProgress)
	f.allChecked(id, 2, func(string) string { return check })
}

// A batch gives its units the check of its unit, unless an item has another. Units
// that were not accepted have failed, also for stop_when.
func TestAcceptanceCheckOfBatches(t *testing.T) {
	t.Parallel()
	f, docs := newBatches(t)
	const ours, own, bad = `{"expression":"json.ok"}`, `{"output_matches":"^ok"}`, `{"file_exists":"../x"}`
	const mine = `"unit":{"backend":"mock","prompt":"x","accept":` + ours + `}`
	write := `{"n":1}` + "\n" + `{"n":2}` + "\n"
	if err := os.WriteFile(filepath.Join(docs, "rows.jsonl"), []byte(write), 0o600); err != nil {
		t.Fatal(err)
	}
	f.post("/batches", `{`+mine+`,"units":[{},{"accept":`+bad+`}]}`).refused(400, "#/units/1/accept/file_exists", "inside the unit's directory")
	f.post("/batches", `{`+mine+`,"units":[{"accept":{"command":"true"}}]}`).refused(400, "#/units/0/accept/command", "PIECEWORK_ACCEPT_COMMANDS")
	f.lines(400, `{"batch":{`+mine+`}}`+"\n"+`{"custom_id":"a","accept":`+bad+`}`+"\n")
	f.post("/batches", `{`+mine+`,"units":[{}],"stop_when":{"accept":0.5}}`).refused(422, "#/stop_when/accept", "")

	id := f.batch(`{` + mine + `,"units":[{"custom_id":"a"},{"custom_id":"b","accept":` + own + `}]}`).ID
	f.becomes(id, work.BatchInProgress)
	f.allChecked(id, 2, func(name string) string { return map[string]string{"a": ours, "b": own}[name] })
	id = f.batch(`{` + mine + `,"source":{"type":"jsonl","path":"docs:rows.jsonl"},"concurrency":1,"stop_when":{"window":1,"failure_rate":0.5}}`).ID
	f.becomes(id, work.BatchInProgress)
	f.allChecked(id, 2, func(string) string { return ours })
	f.worksAs(id, work.ClassNotAccepted, func(work.Unit) bool { return true })
	if b := f.readBatch(id); b.Paused == nil || !strings.Contains(b.Paused.Why, "1 of the last 1 units failed") {
		t.Errorf("paused %+v", b.Paused)
	}
}

// checked looks whether a unit has a check.
func (f *front) checked(id uuid.UUID, check string) {
	f.t.Helper()
	if u, err := f.Store.Units.Get(f.t.Context(), work.DefaultTenant, id); err != nil || string(u.Accept) != check {
		f.t.Errorf("the unit has the check %s, want %s; error %v", u.Accept, check, err)
	}
}

// allChecked looks whether all n units of a batch have their checks, by custom_id.
func (f *front) allChecked(batch uuid.UUID, n int, check func(name string) string) {
	f.t.Helper()
	units, _, err := f.Store.Units.List(f.t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Batch: batch})
	if err != nil || len(units) != n {
		f.t.Errorf("the batch has %d units, want %d; error %v", len(units), n, err)
	}
	for _, u := range units {
		f.checked(u.ID, check(u.CustomID))
	}
}
