package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A stream that breaks off is taken up behind its last whole event.
func TestWatchGoesOnWhereItWas(t *testing.T) {
	s := newStage(t)
	const run = `{"id":"` + idB + `","attempt":1,"status":"running"}`
	step := func(id, more string) string {
		return "id: 1.1.1." + id + "\nevent: step\ndata: " + `{"run_id":"` + idB + `","attempt":1,"time":"2026-01-02T03:04:05Z",` + more + "}\n\n"
	}
	parts := []string{
		"retry: 1000\n\n: ping\n\nid: 1.1.1.0\nevent: run\ndata: " + run + "\n\n" +
			step("1", `"number":1,"rev":1,"type":"reasoning","text":"hm"`) +
			step("2", `"number":2,"rev":2,"type":"action","content":[{"type":"text","text":"I look\u001b[2J"}]`) +
			"id: 1.1.1.3\nevent: step\ndata: {\"half",
		step("3", `"number":1,"rev":3,"type":"reasoning","text":"hm, yes"`) +
			step("4", `"number":2,"rev":4,"type":"action","content":[{"type":"text","text":"I look\u001b[2J"},{"type":"tool_call","name":"read"}]`) +
			"event: lagged\ndata: {}\n\n" +
			"id: 2.1.2.4\nevent: run\ndata: " + strings.Replace(run, "running", "failed", 1) + "\n\n" +
			"id: 3.1.2.4\nevent: unit\ndata: {\"status\":\"failed\"}\n\n" +
			"id: 3.1.2.4.end\nevent: end\ndata: {\"status\":\"failed\"}\n\n",
	}
	var ids []string
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /work-units/" + idA + "/events": func(w http.ResponseWriter, r *http.Request) {
		ids = append(ids, r.Header.Get("Last-Event-ID"))
		_, _ = fmt.Fprint(w, parts[len(ids)-1])
	}})
	if err := (&WatchCommand{Remote: remote, ID: idA}).Run(s.App); exitCode(err) != exitUnsuccessful {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	if got := strings.Join(ids, ","); got != ",1.1.1.2" {
		t.Errorf("asked for what comes after %s", got)
	}
	const want = `● run 1 running
── 1 03:04:05 reasoning
hm
── 2 03:04:05 action
I look␛[2J
── 1 03:04:05 reasoning
, yes
── 2 03:04:05 action
▶ read 
● run 1 failed
● unit failed
`
	if s.out.String() != want {
		t.Errorf("got\n%s", s.out.String())
	}
}

func TestWatchOfWhatIsNotThere(t *testing.T) {
	s := newStage(t)
	if err := (&WatchCommand{Remote: serveRoutes(t, nil), ID: idA}).Run(s.App); exitCode(err) != exitNotFound {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}
