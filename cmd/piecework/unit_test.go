package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

const failedUnit = `{"id":"` + idB + `","status":"failed","backend":"claude","title":"T","queue":"default","priority":5,
	"labels":{"team":"a"},"timeout":3600,"created_at":"2026-01-02T03:04:05Z","started_at":"2026-01-02T03:04:06Z",
	"finished_at":"2026-01-02T03:04:08Z","run_count":300,"cost_usd":0.25,"output":null,"error":{"class":"max_turns","message":"stopped \u001b[2J"},
	"runs":[{"id":"` + idA + `","attempt":1,"status":"failed","num_turns":4,"tool_calls":2,"total_cost_usd":0.25,
	"started_at":"2026-01-02T03:04:06Z","completed_at":"2026-01-02T03:04:08Z","error":{"class":"max_turns","message":"stopped"}}]}`

const goodUnit = `{"id":"` + idA + `","status":"succeeded","backend":"mock","title":"Good","output":"line one\nline two",
	"created_at":"2026-01-02T03:04:05Z","runs":[]}`

func TestGetShowsErrorAdviceAndRuns(t *testing.T) {
	s := newStage(t)
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /work-units/" + idB: answer(failedUnit)})
	if err := (&GetCommand{Remote: remote, ID: idB}).Run(s.App); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed", "max_turns: stopped ␛[2J", "Retry with a larger max_turns", "2.0 s", "$0.25", idA,
		`{"team":"a"}`, "the newest 1 of 300 runs"} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, s.out.String())
		}
	}
}

func TestGetAsJSONIsTheServersDocument(t *testing.T) {
	s := newStage(t)
	document := `{"id":"` + idA + `","status":"queued","field_of_tomorrow":1}`
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /work-units/" + idA: answer(document)})
	remote.JSON = true
	if err := (&GetCommand{Remote: remote, ID: idA}).Run(s.App); err != nil {
		t.Fatal(err)
	}
	if normal(t, s.out.String()) != normal(t, document) {
		t.Errorf("got %s", s.out.String())
	}
}

func TestGetOfAnIDThatIsAPath(t *testing.T) {
	s := newStage(t)
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /readyz": answer(goodUnit)})
	if err := (&GetCommand{Remote: remote, ID: "../readyz"}).Run(s.App); exitCode(err) != exitNotFound {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

func TestWaitExitCodes(t *testing.T) {
	polls := 0
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"GET /work-units/" + idA: func(w http.ResponseWriter, _ *http.Request) {
			if polls++; polls < 3 {
				_, _ = io.WriteString(w, `{"id":"`+idA+`","status":"running"}`)
				return
			}
			_, _ = io.WriteString(w, goodUnit)
		},
		"GET /work-units/" + idB: answer(failedUnit),
	})
	s := newStage(t)
	if err := (&WaitCommand{Remote: remote, IDs: []string{idA}}).Run(s.App); err != nil || polls != 3 {
		t.Errorf("%d polls, %v", polls, err)
	}
	err := (&WaitCommand{Remote: remote, IDs: []string{idA, idB}}).Run(s.App)
	if exitCode(err) != exitUnsuccessful || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	if err := (&WaitCommand{Remote: remote, IDs: []string{"none"}}).Run(s.App); exitCode(err) != exitNotFound {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

func TestWaitIsPatientWithARestart(t *testing.T) {
	polls := 0
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /work-units/" + idA: func(w http.ResponseWriter, _ *http.Request) {
		switch polls++; polls {
		case 1:
			_, _ = io.WriteString(w, `{"id":"`+idA+`","status":"running"}`)
		case 2:
			refuse(w, 502, "")
		default:
			_, _ = io.WriteString(w, goodUnit)
		}
	}})
	s := newStage(t)
	if err := (&WaitCommand{Remote: remote, IDs: []string{idA}}).Run(s.App); err != nil {
		t.Error(err)
	}
}

func TestLsFollowsPages(t *testing.T) {
	var queries []string
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /work-units": func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.URL.RawQuery)
		if r.URL.Query().Get("after") == "" {
			_, _ = io.WriteString(w, `{"items":[`+goodUnit+`],"next":"c1"}`)
			return
		}
		_, _ = io.WriteString(w, `{"items":[`+failedUnit+`],"next":null}`)
	}})
	s := newStage(t)
	command := LsCommand{Remote: remote, Filter: Filter{Status: new("failed"), Backend: new("mock"), Label: []string{"team=a"},
		Query: new("x y")}, Limit: 1}
	if err := command.Run(s.App); err != nil {
		t.Fatal(err)
	}
	if want := "backend=mock&label=team%3Aa&limit=1&q=x+y&status=failed"; queries[0] != want {
		t.Errorf("query %s, want %s", queries[0], want)
	}
	if !strings.Contains(s.errs.String(), "--after c1") || strings.Contains(s.out.String(), idB) {
		t.Errorf("one page:\n%s%s", s.out.String(), s.errs.String())
	}
	s = newStage(t)
	all := LsCommand{Remote: remote, Limit: 1, All: true}
	all.JSON = true
	if err := all.Run(s.App); err != nil {
		t.Fatal(err)
	}
	var list itemList
	if err := json.Unmarshal(s.out.Bytes(), &list); err != nil || len(list.Items) != 2 || list.Next != nil {
		t.Errorf("%v: %s", err, s.out.String())
	}
}

func TestCancelGoesOnAfterAFailure(t *testing.T) {
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"POST /work-units/" + idB + "/cancel": func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 409, `{"title":"Conflict","detail":"the unit has failed"}`)
		},
		"POST /work-units/" + idA + "/cancel": answer(goodUnit),
	})
	s := newStage(t)
	err := (&CancelCommand{Remote: remote, Choice: Choice{IDs: []string{idB, idA}}}).Run(s.App)
	if exitCode(err) != exitConflict {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	if !strings.Contains(s.out.String(), idA) {
		t.Errorf("the second unit is missing:\n%s", s.out.String())
	}
}

func TestRetrySendsTheChanges(t *testing.T) {
	var body string
	remote := serveRoutes(t, map[string]http.HandlerFunc{"POST /work-units/" + idA + "/retry": func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		body = string(data)
		_, _ = io.WriteString(w, goodUnit)
	}})
	for _, test := range []struct{ flag, value, want string }{{"--max-turns", "9", `{"max_turns":9}`}, {"--on-denied", "note", `{"on_denied":"note"}`}} {
		s := newStage(t)
		if code := run(s.App, []string{"retry", idA, test.flag, test.value, "--server", remote.Server}); code != 0 || body != test.want {
			t.Errorf("%s: exit code %d, sent %s: %s", test.flag, code, body, s.errs.String())
		}
	}
	s := newStage(t)
	if code := run(s.App, []string{"retry", idA, "--on-denied", "ignore", "--server", remote.Server}); code != exitUsage ||
		!strings.Contains(s.errs.String(), "--on-denied") {
		t.Errorf("exit code %d: %s", code, s.errs.String())
	}
}

func TestTranscriptOfARunOrAUnit(t *testing.T) {
	steps := `[{"number":1,"time":"2026-01-02T03:04:05Z","type":"user_text","text":"hi \u001b[31m"}]`
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"GET /runs/" + idA + "/transcript": answer(steps),
		"GET /work-units/" + idB:           answer(failedUnit),
	})
	for _, id := range []string{idA, idB} {
		for format, want := range map[string]string{"text": "hi ␛[31m", "jsonl": `{"number":1,`, "json": "[\n"} {
			s := newStage(t)
			if err := (&TranscriptCommand{Remote: remote, ID: id, Format: format}).Run(s.App); err != nil {
				t.Fatalf("%s as %s: %v", id, format, err)
			}
			if !strings.Contains(s.out.String(), want) || strings.Contains(s.out.String(), "\x1b") {
				t.Errorf("%s as %s:\n%s", id, format, s.out.String())
			}
		}
	}
	s := newStage(t)
	if err := (&TranscriptCommand{Remote: remote, ID: "none", Format: "text"}).Run(s.App); exitCode(err) != exitNotFound {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}
