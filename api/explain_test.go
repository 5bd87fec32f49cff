package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/api/ops"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
)

func (f *front) explained(id uuid.UUID) ops.Explanation {
	f.t.Helper()
	var e ops.Explanation
	if err := json.Unmarshal(f.get("/work-units/"+id.String()+"/explain").body, &e); err != nil {
		f.t.Fatal(err)
	}
	return e
}

func TestExplain(t *testing.T) {
	t.Parallel()
	redis := testkit.Redis(t)
	f := openFront(t, testkit.DB(t, migrate), redis, nil)
	first, id := f.submit(mock("")), f.submit(mock(`,"labels":{}`))
	if e := f.explained(id); e.Reasons[0].Code != "no_worker_process" || *e.Ahead != 1 {
		t.Errorf("%+v", e)
	}
	f.crew(work.Offer{Name: "mock", Available: true})
	if e := f.explained(id); e.Reasons[0].Code != "next" || !strings.Contains(e.Reasons[0].Detail, "1 units go before") {
		t.Errorf("%+v", e)
	}
	f.Wait()
	message := "asynq:{" + f.Queue.QueueName("default", "mock", work.DefaultPriority) + "}:t:" + queue.TaskID(id, 1)
	if err := f.Queue.Redis().HSet(t.Context(), message, "state", "active").Err(); err != nil {
		t.Fatal(err)
	}
	if e := f.explained(id); e.Reasons[0].Code != "taken" {
		t.Errorf("%+v", e)
	}
	if err := f.Queue.Redis().Del(t.Context(), message).Err(); err != nil {
		t.Fatal(err)
	}
	key := "asynq:{" + f.Queue.QueueName("default", "mock", work.DefaultPriority) + "}:paused"
	if err := f.Queue.Redis().Set(t.Context(), key, 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if e := f.explained(id); e.Reasons[0].Code != "queue_paused" {
		t.Errorf("%+v", e)
	}
	scheduled := f.submit(mock(`,"delay":"1h"`))
	if e := f.explained(scheduled); e.Reasons[0].Code != "scheduled" || e.Reasons[0].Until == nil {
		t.Errorf("%+v", e)
	}
	f.claim(first)
	if e := f.explained(first); e.Reasons[0].Code != "running" || e.Ahead != nil {
		t.Errorf("%+v", e)
	}
	f.post("/work-units/"+id.String()+"/cancel", "")
	if e := f.explained(id); e.Reasons[0].Code != "ended" || !strings.Contains(e.Reasons[0].Detail, "been cancelled") {
		t.Errorf("%+v", e)
	}
	f.get("/work-units/"+uuid.NewString()+"/explain").refused(404, "", "")
}

func TestBackends(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.crew(work.Offer{Name: "mock", Available: true, Version: "1"},
		work.Offer{Name: "claude", Detail: "not installed"},
		work.Offer{Name: "codex", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: "401"}})
	f.crew(work.Offer{Name: "claude", Available: true, Paused: &work.Pause{Class: work.ClassBilling}})
	var got struct{ Items []ops.BackendView }
	if err := json.Unmarshal(f.get("/backends").body, &got); err != nil {
		t.Fatal(err)
	}
	statuses := map[string]string{}
	for _, b := range got.Items {
		statuses[b.Name] = b.Status
		if b.Name == "mock" && (b.Slots != 8 || len(b.Processes) != 1 || b.Processes[0].Version != "1" || len(b.Capabilities) == 0) {
			t.Errorf("mock %+v", b)
		}
	}
	if len(got.Items) != 8 || statuses["mock"] != "available" || statuses["claude"] != "paused" || statuses["codex"] != "paused" ||
		statuses["gemini"] != "unknown" {
		t.Errorf("%v", statuses)
	}
}
