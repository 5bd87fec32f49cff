package api

import (
	"testing"

	"github.com/google/uuid"

	"piecework/api/view"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// fail ends a run of a new unit with an error of the class.
func (f *front) fail(body string, class work.Class) uuid.UUID {
	f.t.Helper()
	c, cost := f.claim(f.submit(body)), 0.5
	blob, err := f.Store.Transcripts.Encode(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.Store.Runs.Finish(f.t.Context(), store.Finish{UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, Blob: blob,
		Status: work.RunFailed, Next: work.Failed, Error: work.Fail(class, "no"), TotalCostUSD: &cost}); err != nil {
		f.t.Fatal(err)
	}
	return c.ID
}

func (f *front) bulk(path, body string) bulkResult {
	f.t.Helper()
	var v bulkResult
	a := f.post(path, body).is(200)
	a.into(&v)
	if err := f.misfit("BulkResult", a.body); err != nil {
		f.t.Errorf("%s: %v", path, err)
	}
	return v
}

func (f *front) state(id uuid.UUID) work.State {
	f.t.Helper()
	u, err := f.Store.Units.Get(f.t.Context(), work.DefaultTenant, id)
	if err != nil {
		f.t.Fatal(err)
	}
	return u.State
}

func TestBulkRetry(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
	refused, legal := f.fail(mock(""), work.ClassRefusal), f.fail(mock(`,"labels":{"team":"legal"}`), work.ClassInfra)
	gone := f.submit(mock(""))
	f.post("/work-units/"+gone.String()+"/cancel", "").is(202)

	const byClass = "/work-units/retry?class=refusal"
	if v := f.bulk(byClass+"&dry_run=true", ""); !v.DryRun || v.Count != 1 || v.Known() != 0.5 || len(v.Items) != 1 || v.Items[0].ID != refused {
		t.Errorf("preview %+v", v)
	}
	if f.state(refused) != work.Failed {
		t.Error("the preview changed something")
	}
	if v := f.bulk(byClass, `{"model":"better","max_turns":7}`); v.DryRun || v.Count != 1 || v.More || v.Known() != 0.5 {
		t.Errorf("retried %+v", v)
	}
	u, err := f.Store.Units.Get(t.Context(), work.DefaultTenant, refused)
	if err != nil || u.State != work.Queued || u.Model != "better" || u.MaxTurns != 7 {
		t.Errorf("unit %+v, error %v", u, err)
	}
	key := "asynq:{" + f.Queue.QueueName("default", "mock", work.DefaultPriority) + "}:t:" + queue.TaskID(u.ID, u.Dispatch)
	if n, err := f.Queue.Redis().Exists(t.Context(), key).Result(); n != 1 || err != nil {
		t.Errorf("%d bells for it, error %v", n, err)
	}
	// What was cancelled is retried when it is named.
	if v := f.bulk("/work-units/retry?all=true", ""); v.Count != 1 || f.state(legal) != work.Queued || f.state(gone) != work.Cancelled {
		t.Errorf("all: %+v", v)
	}
	if v := f.bulk("/work-units/retry?status=cancelled", ""); v.Count != 1 || f.state(gone) != work.Queued {
		t.Errorf("cancelled ones: %+v", v)
	}
}

func TestBulkCancel(t *testing.T) {
	t.Parallel()
	f := newFront(t) // without Redis
	running, queued, other := f.submit(mock("")), f.submit(mock("")), f.submit(mock(`,"labels":{"team":"legal"}`))
	f.claim(running)
	if v := f.bulk("/work-units/cancel?label=team:legal", ""); v.Count != 1 || v.Stopped != 0 || f.state(other) != work.Cancelled {
		t.Errorf("by label: %+v", v)
	}
	if v := f.bulk("/work-units/cancel?backend=mock&dry_run=true", ""); v.Count != 2 || f.state(queued) != work.Queued {
		t.Errorf("preview: %+v", v)
	}
	if v := f.bulk("/work-units/cancel?all=true", ""); v.Count != 2 || v.Stopped != 1 || v.More || f.state(queued) != work.Cancelled ||
		f.state(running) != work.Running {
		t.Errorf("all: %+v", v)
	}
}

func TestBulkRefuses(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	for path, want := range map[string][2]string{
		"/work-units/cancel":                           {"all", "every unit would be cancelled"},
		"/work-units/retry":                            {"all", "every unit would be retried"},
		"/work-units/cancel?dry_run=true":              {"all", "all=true"},
		"/work-units/cancel?all=false":                 {"all", "all=true"},
		"/work-units/cancel?status=queued&backend=":    {"backend", "is empty"},
		"/work-units/cancel?status=queued&dry_run=":    {"dry_run", "is empty"},
		"/work-units/cancel?status=queued&label=":      {"label", "is empty"},
		"/work-units/cancel?status=succeeded":          {"status", "cannot be cancelled"},
		"/work-units/retry?status=failed,running":      {"status", "cannot be retried"},
		"/work-units/retry?status=nonsense":            {"status", "there is no status"},
		"/work-units/retry?class=nonsense":             {"class", "there is no class"},
		"/work-units/retry?all=true&limit=5":           {"limit", "no query parameter"},
		"/work-units/cancel?all=perhaps":               {"all", ""},
		"/work-units/cancel?status=queued&backend=%00": {"backend", "NUL"},
	} {
		a := f.post(path, "")
		status := 422
		if want[1] == "NUL" {
			status = 400
		}
		a.refused(status, want[0], want[1])
	}
	f.post("/work-units/retry?all=true", `{"prompt":" "}`).refused(422, "#/prompt", "blanks")
	f.post("/work-units/retry?all=true", `{"promt":"x"}`).refused(422, "#/promt", "no field")
	if f.state(id) != work.Queued {
		t.Error("something was changed all the same")
	}
	f.get("/work-units?class=nonsense").refused(422, "class", "there is no class")
	failed := f.fail(mock(""), work.ClassRefusal)
	var list struct{ Items []view.UnitItem }
	f.get("/work-units?class=refusal").is(200).into(&list)
	if len(list.Items) != 1 || list.Items[0].ID != failed {
		t.Errorf("by class: %+v", list)
	}
}
