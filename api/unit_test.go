package api

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

type listAnswer struct {
	Items []map[string]any `json:"items"`
	Next  *string          `json:"next"`
}

// listed reads the ids of one page.
func (f *front) listed(path string) []string {
	f.t.Helper()
	var list listAnswer
	f.get(path).is(200).into(&list)
	ids := []string{}
	for _, item := range list.Items {
		ids = append(ids, item["id"].(string))
	}
	return ids
}

func TestUnitIsReadBackAsItWasSubmitted(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(`,"payload":{"a":"b"},"labels":{"team":"legal"},"timeout":"90s","priority":7,"max_turns":3,"queue":"slow"`))
	u := f.get("/work-units/" + id.String()).is(200).fields()
	for name, want := range map[string]any{
		"id": id.String(), "status": "queued", "backend": "mock", "title": "Count the words", "timeout": 90.0, "priority": 7.0,
		"max_turns": 3.0, "queue": "slow", "run_count": 0.0, "cost_usd": 0.0, "output": nil, "error": nil, "started_at": nil, "finished_at": nil,
	} {
		if got, ok := u[name]; !ok || got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if diff := cmp.Diff(map[string]any{"team": "legal"}, u["labels"]); diff != "" {
		t.Error(diff)
	}
	if runs, ok := u["runs"].([]any); !ok || len(runs) != 0 {
		t.Errorf("runs: %v", u["runs"])
	}
}

func TestIDThatIsNoUUIDOrNotThere(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, id := range []string{"7", "nope", "%00", "..%2f..%2fetc", strings.Repeat("a", 5000), uuid.NewString(), uuid.Nil.String()} {
		f.get("/work-units/"+id).refused(404, "", "")
		f.post("/work-units/"+id+"/cancel", "").refused(404, "", "")
		f.post("/work-units/"+id+"/retry", "").refused(404, "", "")
		f.get("/runs/"+id).refused(404, "", "")
		f.get("/runs/"+id+"/transcript").refused(404, "", "")
		f.get("/units/"+id).refused(404, "", "")
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	plain := f.submit(mock("")).String()
	labelled := f.submit(mock(`,"labels":{"team":"legal","app.io/name":"x:y"}`)).String()
	cancelled := f.submit(mock("")).String()
	f.post("/work-units/"+cancelled+"/cancel", "").is(202)
	odd := f.submit(`{"backend":"mock","prompt":"100% of_it\\"}`).String()
	for query, want := range map[string][]string{
		"":                              {odd, cancelled, labelled, plain},
		"status=cancelled":              {cancelled},
		"status=queued,cancelled":       {odd, cancelled, labelled, plain},
		"status=running":                {},
		"backend=mock":                  {odd, cancelled, labelled, plain},
		"backend=claude":                {},
		"worker=w":                      {},
		"label=team:legal":              {labelled},
		"label=app.io/name:x:y":         {labelled},
		"label=team:sales":              {},
		"label=team:legal&label=a:b":    {},
		"q=100%25":                      {odd},
		"q=OF_":                         {odd},
		"q=%5c":                         {odd},
		"q=ofxit":                       {},
		"q=words&status=queued":         {labelled, plain},
		"limit=2":                       {odd, cancelled},
		"after=" + cancelled:            {labelled, plain},
		"after=" + plain:                {},
		"after=" + odd + "&q=words":     {cancelled, labelled, plain},
		"after=" + uuid.Max.String():    {odd, cancelled, labelled, plain},
		"after=" + plain + "&limit=500": {},
	} {
		if diff := cmp.Diff(want, f.listed("/work-units?"+query)); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
}

func TestListPaging(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	var want []string
	for range 7 {
		want = append(want, f.submit(mock("")).String())
	}
	slices.Reverse(want)
	var got []string
	after := ""
	for {
		var page listAnswer
		f.get("/work-units?limit=3" + after).is(200).into(&page)
		for _, item := range page.Items {
			got = append(got, item["id"].(string))
		}
		if page.Next == nil {
			break
		}
		after = "&after=" + *page.Next
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A page that ends exactly at the end has no next.
	var page listAnswer
	if f.get("/work-units?limit=7").into(&page); page.Next != nil || len(page.Items) != 7 {
		t.Errorf("%d items, next %v", len(page.Items), page.Next)
	}
}

func TestUsageIsThatOfAllRuns(t *testing.T) {
	t.Parallel()
	got := newUnitView(work.Unit{}, []work.Run{
		{Usage: work.Usage{InputTokens: 10, OutputTokens: 5, CacheCreationTokens: 20}},
		{Usage: work.Usage{InputTokens: 10, OutputTokens: 6, CacheReadTokens: 60}},
	}).Usage
	want := unitUsage{work.Usage{InputTokens: 20, OutputTokens: 11, CacheReadTokens: 60, CacheCreationTokens: 20}, 0.6}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Losses and waits use up no retry: what a unit has done for weeks must not
// come in one answer, and must be counted all the same.
func TestUnitOfManyRuns(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	f.run(id, "done")
	db, err := sql.Open("postgres", f.database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `WITH last AS (UPDATE worker_runs SET attempt = 3001, input_tokens = 0 RETURNING *), made AS (
			INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, error_class, error_message, started_at, completed_at, input_tokens)
			SELECT gen_random_uuid(), tenant, unit_id, n, worker_type, 'lost', 'infra', 'x', started_at, started_at, 1 FROM last, generate_series(1, 3000) n)
		UPDATE work_units SET run_count = 3001`); err != nil {
		t.Fatal(err)
	}
	u := f.get("/work-units/" + id.String()).is(200).fields()
	runs := u["runs"].([]any)
	if len(runs) != store.MaxUnitRuns || u["run_count"] != 3001.0 || u["usage"].(map[string]any)["input_tokens"] != 3000.0 || u["output"] != "done" {
		t.Errorf("%d of %v runs, usage %v", len(runs), u["run_count"], u["usage"])
	}
	if first, last := runs[0].(map[string]any), runs[len(runs)-1].(map[string]any); first["attempt"] != 2902.0 ||
		last["attempt"] != 3001.0 || last["result"] != "done" {
		t.Errorf("first %v, last %v", first, last)
	}
}

func TestListsLeaveOutWhatMayBeLarge(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	large := strings.Repeat("needle ", 1000)
	body := fmt.Sprintf(`{"backend":"mock","prompt":"Look: %s","payload":{"text":"%s"},"system_prompt":"%s"}`, large, large, large)
	f.run(f.submit(body), large, step(1, "system_text", large))
	for _, path := range []string{"/work-units", "/runs"} {
		a := f.get(path).is(200)
		if len(a.body) > 4000 {
			t.Errorf("%s: %d bytes", path, len(a.body))
		}
		var list listAnswer
		a.into(&list)
		for _, name := range []string{"payload", "output", "system_prompt", "result", "rendered_prompt", "transcript", "runs"} {
			if _, there := list.Items[0][name]; there {
				t.Errorf("%s: an item has %s", path, name)
			}
		}
	}
}

func TestCancelQueuedUnit(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	a := f.post("/work-units/"+id.String()+"/cancel", "").is(202)
	if u := a.fields(); u["status"] != "cancelled" || u["finished_at"] == nil || a.header.Get("Location") != "/work-units/"+id.String() {
		t.Errorf("%v %s", a.header, a.body)
	}
	f.do("POST", "/work-units/"+id.String()+"/cancel", "").is(202) // again: it is what was asked for
}

func TestCancelRunningUnit(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	f.claim(id)
	u := f.post("/work-units/"+id.String()+"/cancel", "").is(202).fields()
	if u["status"] != "running" || u["cancel_requested_at"] == nil {
		t.Errorf("%v", u)
	}
}

func TestCancelFinishedUnit(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	f.run(id, "done")
	f.post("/work-units/"+id.String()+"/cancel", "").refused(409, "", "succeeded already")
}

func TestRetry(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(`,"model":"small"`))
	path := "/work-units/" + id.String()
	f.post(path+"/retry", "").refused(409, "", "is queued")
	f.post(path+"/cancel", "").is(202)
	f.post(path+"/retry", `{"timeout":5}`).refused(422, "#/timeout", "no field")
	f.post(path+"/retry", `{"max_turns":0}`).refused(422, "#/max_turns", ">= 1")
	f.post(path+"/retry", `{"prompt":"  "}`).refused(422, "#/prompt", "blanks")
	f.post(path+"/retry", `{"model":"`+strings.Repeat("x", 201)+`"}`).refused(422, "#/model", "")
	f.post(path+"/retry", `[]`).refused(422, "#", "expected object")
	f.post(path+"/retry", `nope`).refused(400, "#", "not JSON")
	u := f.post(path+"/retry", `{"model":"large","max_turns":9,"prompt":null}`).is(202).fields()
	if u["status"] != "queued" || u["model"] != "large" || u["max_turns"] != 9.0 || u["prompt"] != "Count the words" {
		t.Errorf("%v", u)
	}
	f.run(id, "done")
	f.do("POST", path+"/retry", "").refused(409, "", "is succeeded")
}

// A title is told to webhooks, lists and logs: no credential is in it.
func TestTitleHasNoSecrets(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	key := "ghp_" + strings.Repeat("Ab3", 12)
	for _, body := range []string{
		`{"backend":"mock","prompt":"use ` + key + ` to push"}`,
		`{"backend":"mock","prompt":"use {key} to push","payload":{"key":"` + key + `"}}`,
	} {
		got := string(f.get("/work-units/" + f.submit(body).String()).is(200).body)
		if !strings.Contains(got, `"title":"use [redacted] to push"`) {
			t.Errorf("%s", got)
		}
	}
}
