package api

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
)

func (f *front) explained(id uuid.UUID) explanation {
	f.t.Helper()
	var e explanation
	if err := json.Unmarshal(f.get("/work-units/"+id.String()+"/explain").body, &e); err != nil {
		f.t.Fatal(err)
	}
	return e
}

// Why a queued unit waits, for everything that worker processes can say.
func TestExplainQueued(t *testing.T) {
	t.Parallel()
	later, soon := time.Now().Add(time.Hour), time.Now().Add(time.Minute)
	paused := func(p work.Pause) work.Offer {
		return work.Offer{Name: "claude", Available: true, Paused: &p}
	}
	auth := paused(work.Pause{Class: work.ClassAuth, Message: "401", Since: time.Now()})
	full := work.Offer{Name: "claude", Available: true}
	shut := func(model string) work.Offer {
		return work.Offer{Name: "claude", Available: true, Limits: []work.ModelLimit{{Model: model, Until: &soon, Message: "429"}}}
	}
	for _, test := range []struct {
		code, words string
		processes   []work.Process
	}{
		{"no_worker_process", "start `piecework worker`", nil},
		{"no_worker_process", "is alive", []work.Process{{Queues: []string{"default"}, Backends: []work.Offer{full}}}},
		{"queue_not_served", "PIECEWORK_QUEUES", []work.Process{{Live: true, Queues: []string{"other"}, Backends: []work.Offer{full}}}},
		{"no_sign_of_life", "lost Postgres", []work.Process{{Live: true, Quiet: true, Queues: []string{"default"}, Backends: []work.Offer{full}}}},
		{"backend_unavailable", "has the backend claude", []work.Process{{Live: true, Queues: []string{"default"}}}},
		{"backend_unavailable", "not installed", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{{Name: "claude", Detail: "not installed"}}}}},
		{"backend_paused", "auth: 401", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{auth}}}},
		{"rate_limited", "sooner", []work.Process{
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{paused(work.Pause{Class: work.ClassRateLimit, Until: &later})}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{paused(work.Pause{Class: work.ClassRateLimit, Until: &soon, Message: "sooner"})}},
		}},
		{"rate_limited", "for opus was met", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{shut("opus")}}}},
		{"", "", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{shut("haiku")}}}},
		{"", "", []work.Process{
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{shut("opus")}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{full}},
		}},
		{"", "", []work.Process{
			{Live: true, Quiet: true, Queues: []string{"default"}, Backends: []work.Offer{auth}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{auth}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{full}},
		}},
	} {
		got := whyNowhere(work.Unit{Spec: work.Spec{Backend: "claude", Model: "opus", Queue: "default"}}, test.processes)
		if test.code == "" {
			if len(got) != 0 {
				t.Errorf("%+v", got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != test.code || !strings.Contains(got[0].Detail, test.words) {
			t.Errorf("want %s %q, got %+v", test.code, test.words, got)
		}
	}
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
	var got struct{ Items []backendView }
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
	if len(got.Items) != 8 || statuses["mock"] != "available" || statuses["claude"] != "paused" || statuses["codex"] != "paused" || statuses["gemini"] != "unknown" {
		t.Errorf("%v", statuses)
	}
}
