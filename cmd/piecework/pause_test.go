package main

import (
	"net/http"
	"strings"
	"testing"
)

func TestQueueAndBackendCommands(t *testing.T) {
	var asks []string
	const paused = `{"name":"slow","paused":{"since":"2026-01-02T03:04:05Z","by":"ann","why":"an outage\u001b[2J"}}`
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"POST /queues/slow/pause":      asked(&asks, paused),
		"POST /queues/slow/resume":     asked(&asks, `{"name":"slow","paused":null}`),
		"POST /backends/claude/pause":  asked(&asks, paused),
		"POST /backends/claude/resume": asked(&asks, `{"name":"claude","paused":null}`),
		"GET /queues": answer(`{"items":[{"name":"default","queued":5,"due":3,"oldest_wait":90.5,"running":2,"paused":null},
			{"name":"slow","queued":1,"due":0,"oldest_wait":null,"running":0,"paused":{"since":"2026-01-02T03:04:05Z","why":"later"}}]}`),
		"GET /backends": answer(`{"items":[{"name":"claude","status":"paused","slots":0,"paused":null,"processes":[
			{"available":false,"detail":"not installed"},{"available":true,"paused":{"class":"auth","message":"401"}}]},
			{"name":"mock","status":"available","slots":8,"paused":null,"processes":[{"available":false,"detail":"gone"},{"available":true}]}]}`),
	})
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"queue", "pause", "slow", "--by", "ann", "--why", "an outage"}, []string{"slow is paused since", "by ann: an outage␛[2J"}},
		{[]string{"queue", "resume", "slow"}, []string{"slow goes on"}},
		{[]string{"backend", "pause", "claude", "--by="}, []string{"claude is paused since"}},
		{[]string{"backend", "resume", "claude", "--json"}, []string{`"name": "claude"`}},
		{[]string{"queue", "ls"}, []string{"default  5       3    1 m 30 s  2", "since 2026-01-02", ": later"}},
		{[]string{"queue", "ls", "--json"}, []string{`"oldest_wait": 90.5`}},
		{[]string{"backend", "ls"}, []string{"claude   paused     0      auth: 401", "mock     available  8"}},
	} {
		s := newStage(t)
		if code := run(s.App, append(test.args, "--server", remote.Server)); code != 0 {
			t.Errorf("%q: exit code %d: %s", test.args, code, s.errs.String())
		}
		for _, words := range test.want {
			if !strings.Contains(s.out.String(), words) {
				t.Errorf("%q lacks %q:\n%s", test.args, words, s.out.String())
			}
		}
		if strings.Contains(s.out.String(), "gone") {
			t.Errorf("trouble of what works:\n%s", s.out.String())
		}
	}
	if want := []string{` {"by":"ann","why":"an outage"}`, " ", " {}", " "}; strings.Join(asks, "|") != strings.Join(want, "|") {
		t.Errorf("asked %q", asks)
	}
	s := newStage(t)
	if code := run(s.App, []string{"backend", "pause", "nope", "--server", remote.Server}); code != exitNotFound {
		t.Errorf("exit code %d: %s", code, s.errs.String())
	}
}
