package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// patient is a backend that only doctor looks at.
type patient struct {
	missing error
	version string
}

func (patient) Name() string                              { return "claude" }
func (p patient) Available(context.Context) error         { return p.missing }
func (p patient) Version(context.Context) (string, error) { return p.version, nil }
func (patient) Execute(context.Context, backend.Request, *transcript.Writer) (backend.Result, error) {
	return backend.Result{}, errors.New("not for running")
}

func found(findings ...work.Finding) func(context.Context) []work.Finding {
	return func(context.Context) []work.Finding { return findings }
}

func silentServer() Remote {
	server := httptest.NewServer(nil)
	server.Close()
	return Remote{Server: server.URL}
}

func TestDoctorShowsWhatItFindsAndHowToMendIt(t *testing.T) {
	s := newStage(t)
	command := DoctorCommand{
		Remote: silentServer(),
		checks: []func(context.Context) []work.Finding{found(
			work.Finding{Name: "redis: version", Status: work.FindingOK, Detail: "7.0.15"},
			work.Finding{Name: "redis: maxmemory-policy", Status: work.FindingFail, Detail: "allkeys-lru", Mend: "CONFIG SET maxmemory-policy noeviction\nand in redis.conf"},
		)},
		backends: []backend.Backend{patient{version: "2.1.329"}, patient{missing: errors.New("no claude on PATH")}},
	}
	if err := command.Run(s.App); exitCode(err) != exitUnsuccessful {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	for _, want := range []string{
		"fail  redis: maxmemory-policy", "fail redis: maxmemory-policy\n  CONFIG SET maxmemory-policy noeviction\n  and in redis.conf\n",
		"version 2.1.329", "no claude on PATH", "no answer",
	} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, s.out.String())
		}
	}
}

func TestDoctorIsContentWithWarnings(t *testing.T) {
	s := newStage(t)
	command := DoctorCommand{Remote: silentServer()}
	command.JSON = true
	if err := command.Run(s.App); err != nil {
		t.Error(err)
	}
	var findings []work.Finding
	if err := json.Unmarshal(s.out.Bytes(), &findings); err != nil || len(findings) != 2+len(backend.Names) ||
		findings[len(findings)-1].Status != work.FindingWarn {
		t.Errorf("%v: %s", err, s.out.String())
	} else if f := findings[0]; f.Name != "containment" || f.Status != work.FindingWarn || f.Mend == "" { // without a supervisor
		t.Errorf("%+v", f)
	}
}

func TestDoctorAsksTheServer(t *testing.T) {
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /readyz": func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 503, `{"status":"not ready","checks":{"postgres":{"ok":false,"detail":"refused"},"redis":{"ok":true,"detail":"pong"}}}`)
	}})
	s := newStage(t)
	if err := (&DoctorCommand{Remote: remote}).Run(s.App); exitCode(err) != exitUnsuccessful {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	for _, want := range []string{"not ready", "fail  server: postgres", "ok    server: redis"} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, s.out.String())
		}
	}
}
