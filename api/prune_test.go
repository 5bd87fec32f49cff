package api

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// gone tells whether nothing of a unit, or of a batch, can be read any more.
func (f *front) gone(path string) bool {
	f.t.Helper()
	return f.get(path).status == http.StatusNotFound
}

// A unit that is over is deleted with its runs, transcripts and output files; one
// that is not, or that belongs to a batch, is a conflict which says what to do.
func TestDeleteUnit(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""), "Idempotency-Key", "k")
	path := "/work-units/" + id.String()
	f.do("DELETE", path, "").refused(409, "", "the unit is queued; cancel it first, or wait for it")
	c := f.run(id, "done", transcript.Step{Type: "action", Content: []transcript.Content{{Type: "text", Text: "hello"}}})
	other := f.submit(mock(""))
	f.do("DELETE", path, "").is(204)
	if !f.gone(path) || !f.gone("/runs/"+c.RunID.String()) || !f.gone("/runs/"+c.RunID.String()+"/transcript") || f.gone("/work-units/"+other.String()) {
		t.Error("not just the unit and what belongs to it is gone")
	}
	f.do("DELETE", path, "").refused(404, "", "")
	if again := f.submit(mock(""), "Idempotency-Key", "k"); again == id {
		t.Error("the key of a deleted unit finds it")
	}
}

func TestDeleteBatchWithItsUnits(t *testing.T) {
	t.Parallel()
	f, _ := newBatches(t)
	b := f.batch(`{"units":[{"backend":"mock","prompt":"a"},{"backend":"mock","prompt":"b"}]}`)
	path := "/batches/" + b.ID.String()
	f.becomes(b.ID, work.BatchInProgress)
	f.do("DELETE", path, "").refused(409, "", "the batch is in_progress; cancel it first")
	for f.works(b.ID, func(work.Unit) bool { return false }) > 0 {
	}
	f.becomes(b.ID, work.BatchCompleted)
	unit := f.listed("/work-units?batch=" + b.ID.String())[0]
	f.do("DELETE", "/work-units/"+unit, "").refused(409, "", fmt.Sprintf("the unit belongs to the batch %s; delete the batch", b.ID))
	f.do("DELETE", path, "").is(204)
	if !f.gone(path) || !f.gone("/work-units/"+unit) {
		t.Error("the batch, or a unit of it, is still there")
	}
	f.do("DELETE", path, "").refused(404, "", "")
}

// Prune removes what ended before a time, and nothing else; a dry run counts it.
func TestPrune(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	var over []uuid.UUID
	for range 3 {
		id := f.submit(mock(""))
		f.run(id, "done")
		over = append(over, id)
	}
	waits := f.submit(mock(""))
	prune := func(before time.Time, more string) (p struct {
		DryRun         bool `json:"dry_run"`
		Units, Batches int
		More           bool
	}) {
		f.post("/prune?before="+url.QueryEscape(before.UTC().Format(time.RFC3339))+more, "").is(200).into(&p)
		return p
	}
	hour := time.Now().Add(time.Hour)
	if p := prune(time.Now().Add(-time.Hour), ""); p.Units != 0 {
		t.Errorf("what is young: %+v", p)
	}
	if p := prune(hour, "&dry_run=true"); p.Units != 3 || !p.DryRun || f.gone("/work-units/"+over[0].String()) {
		t.Errorf("dry run: %+v", p)
	}
	if p := prune(hour, ""); p.Units != 3 || p.More || !f.gone("/work-units/"+over[0].String()) || f.gone("/work-units/"+waits.String()) {
		t.Errorf("%+v", p)
	}
	f.post("/prune", "").refused(422, "before", "")
	f.post("/prune?before=", "").refused(422, "before", "")
	f.post("/prune?before=yesterday", "").refused(422, "before", "")
}
