package handlers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/mock"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

// mocked runs units on the mock backend.
func mocked(o *Options) {
	o.Backends, o.AcceptCommands, o.CommandEnv = []backend.Backend{mock.Backend{}}, true, []string{"PATH=/usr/bin:/bin"}
}

// submitChecked submits a unit with a script for the mock backend and a check.
func (h *fixture) submitChecked(script, check string, change ...func(*work.Spec)) work.Unit {
	h.t.Helper()
	id := h.submit(func(s *work.Spec) {
		s.Payload, s.Accept = json.RawMessage(`{"mock":`+script+`}`), json.RawMessage(check)
		for _, c := range change {
			c(s)
		}
	})
	var u work.Unit
	testkit.Eventually(h.t, "the unit is final", func() bool {
		u = h.unit(id)
		return u.State.Final()
	})
	return u
}

// A result counts when it meets the unit's check. One that does not is asked for
// once more; then the unit has failed, and its output and its cost are kept.
func TestAcceptance(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(mocked)
	for _, test := range []struct {
		script, check string
		state         work.State
		output, said  string
		cost          float64
	}{
		{`{"output":"42"}`, `{"output_matches":"^42$"}`, work.Succeeded, "42", "", 0.5},
		{`{"output":"41","repaired":"42"}`, `{"output_matches":"^42$"}`, work.Succeeded, "42", "", 1},
		{`{"output":"41"}`, `{"output_matches":"^42$"}`, work.Failed, "41", "does not match", 1},
		{`{"output":"41","repaired":"40"}`, `{"expression":"json > 41"}`, work.Failed, "40", "json > 41 is false", 1},
		{`{"files":{"out/a.md":"x"}}`, `{"file_exists":"out/*.md"}`, work.Succeeded, "", "", 0.5},
		{`{"output":"done"}`, `{"file_exists":"report.md"}`, work.Failed, "done", "no file report.md", 1},
		{`{"files":{"a":"x"},"output":"done"}`, `{"command":"test -s a && grep -q done"}`, work.Succeeded, "done", "", 0.5},
		{`{"output":"done"}`, `{"command":"echo the test TestX fails; exit 4"}`, work.Failed, "done", "exit status 4\nthe test TestX fails", 1},
		{`{"output":"done"}`, `{"command":["no-such-program"]}`, work.Failed, "done", "not on the PATH", 0.5},
	} {
		script := strings.Replace(test.script, "{", `{"cost_usd":0.5,`, 1)
		u := h.submitChecked(script, test.check)
		run := h.runs(u.ID)[0]
		if u.State != test.state || u.RunCount != 1 || u.Known() != test.cost || test.output != "" &&
			(run.Result == nil || *run.Result != test.output) {
			t.Errorf("%s of %s: %s after %d runs, cost %v, result %v", test.check, test.script, u.State, u.RunCount, u.Known(), run.Result)
		}
		if test.said != "" && (u.Error == nil || u.Error.Class != work.ClassNotAccepted || !strings.Contains(u.Error.Message, test.said)) {
			t.Errorf("%s of %s: %v", test.check, test.script, u.Error)
		}
		if text := fmt.Sprint(h.steps(run.ID)); !strings.Contains(text, "accepted") {
			t.Errorf("%s: the transcript does not show the check: %s", test.check, text)
		}
	}
}

// A worker process that may not run commands for checks says so before it spends
// anything.
func TestAcceptCommandsMayBeOff(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(func(o *Options) { mocked(o); o.AcceptCommands = false })
	u := h.submitChecked(`{"cost_usd":0.5}`, `{"command":"true"}`)
	if u.State != work.Failed || u.Error.Class != work.ClassInvalidRequest || u.Known() != 0 || !strings.Contains(u.Error.Message, "PIECEWORK_ACCEPT_COMMANDS") {
		t.Errorf("%s at $%v: %v", u.State, u.Known(), u.Error)
	}
}

// A result from the cache has met the same check.
func TestAcceptanceIsPartOfTheCachesKey(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(mocked)
	kept := func(s *work.Spec) { s.CacheTTL = 3600 }
	for _, test := range []struct {
		check string
		came  work.Cache
		state work.State
	}{
		{``, work.CacheMiss, work.Succeeded},
		{``, work.CacheHit, work.Succeeded},
		{`{"output_matches":"41"}`, work.CacheMiss, work.Succeeded},
		{`{"output_matches":"41"}`, work.CacheHit, work.Succeeded},
		{`{"output_matches":"42"}`, work.CacheMiss, work.Failed},
		{`{"output_matches":"42"}`, work.CacheMiss, work.Failed},
	} {
		if u := h.submitChecked(`{"output":"41"}`, test.check, kept); u.Cache != test.came || u.State != test.state {
			t.Errorf("%q: %s, %s", test.check, u.State, u.Cache)
		}
	}
}

// A run that is cancelled while its check runs is cancelled; nobody knows
// whether its result would do.
func TestCancelDuringTheCheck(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(mocked)
	id := h.submit(func(s *work.Spec) {
		s.Payload, s.Accept = json.RawMessage(`{"mock":{"output":"x"}}`), json.RawMessage(`{"command":"sleep 1000"}`)
	})
	h.becomes(id, work.Running)
	testkit.Eventually(t, "the check runs", func() bool {
		steps := h.steps(h.runs(id)[0].ID)
		return len(steps) > 0 && strings.Contains(fmt.Sprint(steps), "x")
	})
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, id); err != nil {
		t.Fatal(err)
	}
	h.becomes(id, work.Cancelled)
}
