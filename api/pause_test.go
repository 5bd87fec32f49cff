package api

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/api/ops"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// tryClaim asks for a unit as a worker process would, and tells whether it got
// it.
func (f *front) tryClaim(unit, process uuid.UUID) bool {
	f.t.Helper()
	claimed, err := f.Store.Runs.Claim(f.t.Context(), store.Claim{
		UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: process, SessionID: "session", Backends: []string{"mock"},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return claimed != nil
}

func codes(e ops.Explanation) (list []string) {
	for _, r := range e.Reasons {
		list = append(list, r.Code)
	}
	return list
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ path, code, resume string }{
		{"/queues/default", "queue_paused", "piecework queue resume default"},
		{"/backends/mock", "backend_paused", "piecework backend resume mock"},
	} {
		t.Run(test.code, func(t *testing.T) {
			t.Parallel()
			f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
			news := make(chan queue.Notice, 10)
			go f.Queue.Listen(t.Context(), func(n queue.Notice) { news <- n }, queue.NoticePause)
			process := f.crew(work.Offer{Name: "mock", Available: true})
			id := f.submit(mock(""))
			var first, again ops.PauseState
			f.post(test.path+"/pause", `{"by":"ann","why":"an outage"}`).is(200).into(&first)
			f.post(test.path+"/pause", "").is(200).into(&again)
			if first.Paused == nil || again.Paused == nil || *again.Paused != *first.Paused || first.Paused.By != "ann" {
				t.Errorf("paused %+v, then %+v", first.Paused, again.Paused)
			}
			if f.tryClaim(id, process) {
				t.Error("a paused unit was claimed")
			}
			if e := f.explained(id); e.Reasons[0].Code != test.code || len(e.Reasons) != 1 ||
				!strings.Contains(e.Reasons[0].Detail, "by ann: an outage") || !strings.Contains(e.Reasons[0].Detail, test.resume) {
				t.Errorf("%+v", e)
			}
			testkit.Eventually(t, "worker processes are told", func() bool {
				f.post(test.path+"/resume", "").is(200)
				return len(news) > 0
			})
			if e := f.explained(id); e.Reasons[0].Code != "next" || !f.tryClaim(id, process) {
				t.Errorf("after the resume: %v", codes(e))
			}
		})
	}
}

func TestPauseRefuses(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/backends/nope/pause", "").refused(404, "", "there is no backend")
	f.post("/backends/nope/resume", "").refused(404, "", "there are claude")
	f.post("/queues/No%20Queue/pause", "").refused(422, "name", "")
	f.post("/queues/default/pause", `{"because":"x"}`).refused(422, "#/because", "no field")
	f.post("/queues/default/pause", `{"why":5}`).refused(422, "#/why", "")
}

func TestQueues(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.submit(mock(`,"queue":"slow"`))
	f.submit(mock(`,"queue":"slow","delay":60`))
	f.claim(f.submit(mock(""))) // its worker process serves the default queue
	f.post("/queues/idle/pause", `{"why":"later"}`).is(200)
	f.post("/queues/default/pause", "").is(200)
	f.post("/queues/default/resume", "").is(200)
	f.post("/backends/mock/pause", `{"why":"the key is being changed"}`).is(200)
	var got struct{ Items []ops.QueueView }
	f.get("/queues").is(200).into(&got)
	if len(got.Items) != 3 {
		t.Fatalf("%+v", got.Items)
	}
	if q := got.Items[0]; q.Name != "default" || q.Running != 1 || q.Processes != 1 || q.Paused != nil || q.OldestWait != nil {
		t.Errorf("default %+v", q)
	}
	if q := got.Items[1]; q.Name != "idle" || q.Paused == nil || q.Paused.Why != "later" {
		t.Errorf("idle %+v", q)
	}
	if q := got.Items[2]; q.Name != "slow" || q.Queued != 2 || q.Due != 1 || q.OldestWait == nil || q.Processes != 0 {
		t.Errorf("slow %+v", q)
	}
	var backends struct{ Items []ops.BackendView }
	f.get("/backends").is(200).into(&backends)
	for _, b := range backends.Items {
		if b.Name == "mock" && (b.Status != "paused" || b.Paused == nil || b.Slots != 0) || b.Name != "mock" && b.Paused != nil {
			t.Errorf("%+v", b)
		}
	}
}
