package api

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// untilWatched returns when a request waits for the unit.
func (f *front) untilWatched(id uuid.UUID) {
	f.t.Helper()
	testkit.Eventually(f.t, "somebody waits for the unit", func() bool { return f.live.Watched(id) })
}

// held sends a request that will wait and returns its coming answer.
func (f *front) held(method, path, body string) <-chan *answer {
	answers := make(chan *answer, 1)
	go func() {
		a, err := f.try(method, path, body)
		if err != nil {
			f.t.Error(err)
		}
		answers <- a
	}()
	return answers
}

func TestWaitEndsWithTheNoticeThatTheUnitIsFinal(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
	f.lookAgain = time.Hour // only a notice can help
	go f.Watch(t.Context())
	answers := f.held("POST", "/work-units?wait=60s", mock(""))
	var id uuid.UUID
	testkit.Eventually(t, "the unit is there", func() bool {
		ids := f.listed("/work-units")
		if len(ids) == 1 {
			id = uuid.MustParse(ids[0])
		}
		return len(ids) == 1
	})
	f.untilWatched(id)
	f.run(id, "done")
	var a *answer
	testkit.Eventually(t, "the held answer comes", func() bool {
		if err := f.Queue.Changed(t.Context(), id); err != nil { // the API may not have subscribed yet
			t.Log(err)
		}
		select {
		case a = <-answers:
			return true
		default:
			return false
		}
	})
	u := a.is(200).fields()
	if u["status"] != "succeeded" || u["output"] != "done" || len(u["runs"].([]any)) != 1 {
		t.Errorf("%s", a.body)
	}
}

func TestWaitWorksWithoutRedis(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.lookAgain = 5 * time.Millisecond
	id := f.submit(mock(""))
	answers := f.held("GET", "/work-units/"+id.String()+"?wait=60s", "")
	f.untilWatched(id)
	f.run(id, "done")
	select {
	case a := <-answers:
		if u := a.is(200).fields(); u["status"] != "succeeded" {
			t.Errorf("%v", u)
		}
	case <-time.After(testkit.Patience):
		t.Error("nobody looked")
	}
}

func TestWaitTimesOut(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	a := f.post("/work-units?wait=20ms", mock("")).is(202)
	if u := a.fields(); u["status"] != "queued" || a.header.Get("Location") != "/work-units/"+u["id"].(string) {
		t.Errorf("%v %s", a.header, a.body)
	}
	f.get("/work-units/" + a.fields()["id"].(string) + "?wait=20ms").is(200)
}

// The deadline for sending a body must not end an answer that is held for
// longer: neither guard's nor the one that huma sets by itself.
func TestWaitOutlivesTheBodyDeadline(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.bodies.Time, f.lookAgain = 50*time.Millisecond, 5*time.Millisecond
	f.post("/work-units?wait=500ms", mock("")).is(202)
	for path, item := range f.huma.OpenAPI().Paths {
		if item.Post != nil && item.Post.BodyReadTimeout >= 0 {
			t.Errorf("POST %s: huma cuts connections after %s", path, item.Post.BodyReadTimeout)
		}
	}
}

func TestWaitForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "2": 2 * time.Second, "2.5": 2500 * time.Millisecond, "30s": 30 * time.Second, "1m30s": 90 * time.Second,
		"500ms": 500 * time.Millisecond, "10h": 5 * time.Minute, "1e30": 5 * time.Minute,
	} {
		if got, err := parseWait(text); err != nil || time.Duration(got) != want {
			t.Errorf("%q: %s, %v; want %s", text, time.Duration(got), err, want)
		}
	}
	f := newFront(t)
	for _, text := range []string{"-1", "-1s", "soon", "NaN", "Inf", "-Inf", "1e999x", "30+s"} {
		f.post("/work-units?wait="+text, mock("")).refused(422, "wait", "write a length of time")
	}
	if ids := f.listed("/work-units"); len(ids) != 0 {
		t.Errorf("refused, yet accepted: %v", ids)
	}
}

func TestWaitForAFinalUnitDoesNotWait(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.lookAgain = time.Hour
	id := f.submit(mock(""))
	f.run(id, "done")
	if u := f.get("/work-units/" + id.String() + "?wait=5m").is(200).fields(); u["status"] != "succeeded" {
		t.Errorf("%v", u)
	}
	f.get("/work-units/"+uuid.NewString()+"?wait=5m").refused(404, "", "check the id")
}

func TestRedisAway(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	f := openFront(t, testkit.DB(t, migrate), redis.URL, nil)
	f.submit(mock(""))
	redis.Stop()
	for range 3 {
		if u, err := f.Store.Units.Get(t.Context(), work.DefaultTenant, f.submit(mock(""))); err != nil || u.State != work.Queued {
			t.Errorf("%v, %v", u.State, err)
		}
	}
	id := f.submit(mock(""))
	f.post("/work-units/"+id.String()+"/cancel", "").is(202)
	f.post("/work-units/"+id.String()+"/retry", "").is(202)
}
