package handlers

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"piecework/handlers/upkeep"
	"piecework/internal/backend"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// plant makes Postgres refuse to close runs that succeeded: the first times
// times, with an SQLSTATE.
func plant(t *testing.T, url, code string, times int) {
	t.Helper()
	testkit.Exec(t, url, fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS planted; SELECT setval('planted', 1, false);
		CREATE OR REPLACE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.status = 'succeeded' AND nextval('planted') <= %d THEN RAISE EXCEPTION 'planted' USING ERRCODE = '%s'; END IF;
			RETURN NEW; END $$;
		CREATE OR REPLACE TRIGGER planted BEFORE UPDATE ON worker_runs FOR EACH ROW EXECUTE FUNCTION planted()`, times, code))
}

// An error of Postgres that does not prove the result to be wrong costs time
// alone: the result is paid for.
func TestNoErrorThrowsAResultAway(t *testing.T) {
	t.Parallel()
	url := testkit.DB(t, migrate)
	h := newFixtureOn(t, url)
	w := h.start(nil)
	for _, code := range []string{"40P01", "40001", "55P03", "42703", "42601", "57014", "XX000", "ZZ999"} {
		plant(t, url, code, 3)
		id := h.submit(func(s *work.Spec) { s.MaxRetries = new(0) })
		run := h.begun()
		run.end <- succeed("paid for")
		u := h.becomes(id, work.Succeeded)
		if u.RunCount != 1 || u.Losses != 0 || u.Cost != work.NewCost(0.25, 0) || *u.Output != "paid for" || len(h.puppet.started) != 0 {
			t.Errorf("%s: %d runs, %d losses, cost %+v", code, u.RunCount, u.Losses, u.Cost)
		}
		testkit.Eventually(t, "the disk cleared", func() bool { return !exists(w.spool.Path(run.req.RunID)) })
	}
}

// A result that Postgres refuses for good is paid for once: the unit fails,
// with its cost, and what it came to stays on disk.
func TestRefusedResultIsWrittenBare(t *testing.T) {
	t.Parallel()
	url := testkit.DB(t, migrate)
	h := newFixtureOn(t, url)
	w := h.start(nil)
	for _, code := range []string{"22003", "23514"} {
		plant(t, url, code, 1_000_000)
		id := h.submit(nil)
		run := h.begun()
		run.end <- succeed("paid for")
		u := h.becomes(id, work.Failed)
		if u.RunCount != 1 || u.Cost != work.NewCost(0.25, 0) || u.Error.Class != work.ClassInfra ||
			!strings.Contains(u.Error.Message, "refused") || len(h.puppet.started) != 0 {
			t.Errorf("%s: %d runs, cost %+v, error %v", code, u.RunCount, u.Cost, u.Error)
		}
		path := w.spool.Path(run.req.RunID)
		if raw, err := os.ReadFile(path + ".refused"); err != nil || !strings.Contains(string(raw), "paid for") {
			t.Errorf("%s: %s %v", code, raw, err)
		}
		testkit.Eventually(t, "the spool is clear", func() bool { return !exists(path) })
	}
}

// A run whose end is in memory or on disk is handed in, and not given up. One that
// nobody knows of is given up at no cost, and counts its cost if it comes back.
func TestRunIsNotGivenUpWhileItsEndIsHere(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	another := upkeep.NewSpool(h.store, w.spool.Dir, nil, h.log)
	for name, test := range map[string]struct {
		leave func(store.Finish) error
		state work.State
		cost  work.Cost
	}{
		"on disk":             {func(f store.Finish) error { w.spool.Keep(f); return nil }, work.Succeeded, work.NewCost(0.25, 0)},
		"on disk, by another": {func(f store.Finish) error { another.Keep(f); return nil }, work.Succeeded, work.NewCost(0.25, 0)},
		"in memory": {func(f store.Finish) error {
			if err := errors.Join(os.RemoveAll(w.spool.Dir),
				os.WriteFile(w.spool.Dir, nil, 0o600)); err != nil { // nothing can be written there
				return err
			}
			w.spool.Keep(f)
			return os.Remove(w.spool.Dir)
		}, work.Succeeded, work.NewCost(0.25, 0)},
		"spoilt on disk": {func(f store.Finish) error {
			w.spool.Keep(f)
			return os.WriteFile(w.spool.Path(f.RunID), []byte("{"), 0o600)
		}, work.Queued, work.NewCost(0, 1)},
		"nowhere": {func(store.Finish) error { return nil }, work.Queued, work.Cost{}},
	} {
		id := h.submit(func(s *work.Spec) { s.Queue = "unheard" })
		c, err := w.claim(id, false)
		if err != nil || c == nil {
			t.Fatal(c, err)
		}
		cost := 0.25
		f := store.Finish{UnitID: id, RunID: c.RunID, Attempt: 1, Status: work.RunSucceeded, Next: work.Succeeded, Result: "paid for",
			TotalCostUSD: &cost}
		if err := test.leave(f); err != nil {
			t.Fatal(err)
		}
		w.runs.End(c.RunID)
		testkit.Eventually(t, name, func() bool { return w.heartbeat.Beat(t.Context()) == nil && h.unit(id).State == test.state })
		if u := h.unit(id); u.Cost != test.cost {
			t.Errorf("%s: cost %+v", name, u.Cost)
		}
		testkit.Eventually(t, name+": nothing is left on disk", func() bool { return !exists(w.spool.Path(c.RunID)) })
		if test.state == work.Succeeded {
			continue
		}
		if verdict, err := h.store.Runs.Finish(t.Context(), f); err != nil || verdict != store.Fenced {
			t.Errorf("%s: a late end is %s, %v", name, verdict, err)
		}
		if u := h.unit(id); u.Cost != work.NewCost(cost, 0) {
			t.Errorf("%s: after the late end it has cost %+v", name, u.Cost)
		}
	}
}

// Figures that cannot be true are left out where they come in, and named; what the
// run came to counts.
func TestFiguresOfABackendAreNotBelieved(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	for _, cost := range []float64{-0.0000225, 1e30, math.NaN(), math.Inf(1)} {
		id := h.submit(func(s *work.Spec) { s.MaxRetries = new(0) })
		h.begun().end <- backend.Result{Success: true, Output: "paid for", Metadata: backend.Metadata{NumTurns: 1 << 40, DurationMS: -1,
			Usage: work.Usage{OutputTokens: 9_200_000_000_000_000_000}, TotalCostUSD: &cost}}
		u := h.becomes(id, work.Succeeded)
		run := h.runs(id)[0]
		if u.RunCount != 1 || !u.CostUnknown() || run.NumTurns != 0 || run.Usage != (work.Usage{}) || fmt.Sprint(run.Implausible) != "[num_turns output_tokens total_cost_usd duration_ms]" {
			t.Errorf("%v: cost %+v, implausible %v", cost, u.Cost, run.Implausible)
		}
		if steps := h.steps(run.ID); len(steps) == 0 || !strings.Contains(steps[len(steps)-1].Text, "num_turns") {
			t.Errorf("the transcript does not show it: %+v", steps)
		}
	}
}

// A run that certainly reached no model has cost nothing, which is known.
func TestRunThatReachedNoModelCostsNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	claude := newPuppet("claude")
	h.start(func(o *Options) { o.Backends = []backend.Backend{claude} })
	id := h.submit(func(s *work.Spec) { s.Backend, s.Prompt = "claude", "{missing}" })
	if u := h.becomes(id, work.Failed); u.Cost != (work.Cost{}) || len(claude.started) != 0 {
		t.Errorf("cost %+v, error %v", u.Cost, u.Error)
	}
	silent := h.submit(func(s *work.Spec) { s.Backend = "claude" })
	h.begunOn(claude).end <- backend.Result{Success: true, Output: "done"}
	if u := h.becomes(silent, work.Succeeded); u.Cost != work.NewCost(0, 1) {
		t.Errorf("of a run that did not say: %+v", u.Cost)
	}
}
