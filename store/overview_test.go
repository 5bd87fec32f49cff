package store

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

func window(t *testing.T, name string) work.Window {
	t.Helper()
	w, ok := work.WindowOf(name)
	if !ok {
		t.Fatal(name)
	}
	return w
}

// happened enters a unit that was accepted at a time, waited, and whose runs
// ended one after the other in the given ways. A status may carry an error
// class behind a colon.
func (l *fixture) happened(at time.Time, backend string, wait, each time.Duration, cost float64, statuses ...string) {
	l.t.Helper()
	id := uuid.Must(uuid.NewV7())
	started := at.Add(wait)
	last, class, _ := strings.Cut(statuses[len(statuses)-1], ":")
	l.exec(`INSERT INTO work_units (id, tenant, state, title, backend, worker, queue, priority, prompt, payload, missing_key, timeout, idle_timeout,
			check_at, created_at, started_at, finished_at, error_class)
		VALUES ($1, 'default', $2, 'x', $3, 'reader', 'default', 5, 'x', '{}', 'fail', 60, 60, $4, $4, $5, $6, nullif($7, ''))`,
		id, last, backend, at, started, started.Add(each*time.Duration(len(statuses))), class)
	for i, status := range statuses {
		name, class, _ := strings.Cut(status, ":")
		begun := started.Add(each * time.Duration(i))
		l.exec(`INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, model, error_class, total_cost_usd, started_at, completed_at)
			VALUES ($1, 'default', $2, $3, $4, $5, 'small', nullif($6, ''), $7, $8, $9)`,
			uuid.Must(uuid.NewV7()), id, i+1, backend, name, class, cost, begun, begun.Add(each))
	}
}

func (l *fixture) tallyAll() {
	l.t.Helper()
	for more := true; more; {
		var err error
		more, err = l.Overview.Tally(l.t.Context(), work.DefaultTenant)
		l.must(err)
	}
}

// However many units there were, figures read what was counted of them, and of them
// only those of the last minutes.
func TestFiguresReadTallies(t *testing.T) {
	t.Parallel()
	l, spy := newTap(t, testkit.DB(t, migrate))
	l.fill()
	// Some time in the two hours up to three hours ago.
	shifted := func(id string) string {
		return ` = now() - interval '3 hours' - (('x' || left(replace(` + id + `::text, '-', ''), 12))::bit(48)::bigint % 7000) * interval '1 second'`
	}
	for table, columns := range map[string][]string{"work_units": {"created_at", "started_at", "finished_at"},
		"worker_runs": {"started_at", "completed_at"}} {
		for _, column := range columns {
			l.exec(`UPDATE ` + table + ` SET ` + column + shifted("id"))
		}
	}
	l.exec(`UPDATE unit_search SET created_at` + shifted("unit_id"))
	l.exec(`ANALYZE work_units, worker_runs, unit_search`)
	l.tallyAll()
	l.exec(`ANALYZE tallies`)
	for _, w := range work.Windows {
		spy.hear()
		f, err := l.Overview.Figures(t.Context(), work.DefaultTenant, w, time.Now())
		l.must(err)
		if f.Untallied != 0 || w.Length > 6*time.Hour && f.Accepted != many {
			t.Errorf("%s: %d accepted, %d events not tallied", w.Name, f.Accepted, f.Untallied)
		}
		for _, s := range spy.hear() {
			s.query = "EXPLAIN (ANALYZE, FORMAT JSON) " + s.query
			for _, node := range explain(t, l.db.DB, s) {
				if node.Relation != "" && node.Rows+node.Removed > many/10 {
					t.Errorf("%s: %s reads %g rows of %s", w.Name, node.Type, node.Rows+node.Removed, node.Relation)
				}
			}
		}
	}
}

func TestFiguresAreTheSameFromTallies(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	now := time.Now().UTC()
	for hours := range 24 * 32 {
		at := now.Add(-time.Duration(hours)*time.Hour - 7*time.Minute)
		l.happened(at, "claude", 2*time.Second, 30*time.Second, 0.25, "succeeded")
		if hours%11 == 0 {
			l.happened(at, "mock", time.Minute, 3*time.Second, 0.5, "failed:infra", "lost:infra", "timed_out:timeout")
		}
	}
	for _, w := range work.Windows {
		before, err := l.Overview.Figures(t.Context(), work.DefaultTenant, w, now)
		l.must(err)
		l.tallyAll()
		var rows int
		l.must(l.db.Get(&rows, `SELECT count(*) FROM tallies`))
		if rows == 0 {
			t.Fatal("nothing was counted")
		}
		after, err := l.Overview.Figures(t.Context(), work.DefaultTenant, w, now)
		l.must(err)
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-6 })
		alike := cmp.Transformer("known", func(c work.Cost) []any { return []any{c.Known(), c.CostUnknown(), c.Unpriced} })
		before.Untallied, after.Untallied = 0, 0
		if diff := cmp.Diff(before, after, near, alike); diff != "" {
			t.Errorf("%s (-units and runs +tallies):\n%s", w.Name, diff)
		}
		l.exec(`DELETE FROM tallies`)
		l.exec(`DELETE FROM settings`)
	}
}

func TestFiguresAddUp(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	now := time.Now().UTC()
	recent := now.Add(-5 * time.Minute)
	for range 9 {
		l.happened(recent, "claude", 2*time.Second, 30*time.Second, 0.25, "succeeded")
	}
	l.happened(recent, "mock", 50*time.Second, 3*time.Second, 0.5, "failed:infra", "released", "cancelled")
	l.happened(now.Add(-90*time.Minute), "mock", 0, time.Second, 7, "failed:auth")
	f, err := l.Overview.Figures(t.Context(), work.DefaultTenant, window(t, "1h"), now)
	l.must(err)
	if f.Accepted != 10 || f.Finished[work.Succeeded] != 9 || f.Finished[work.Cancelled] != 1 || len(f.Series) != 60 {
		t.Errorf("%+v", f)
	}
	var accepted, ended int64
	for _, i := range f.Series {
		accepted, ended = accepted+i.Accepted, ended+i.Cost.Runs
	}
	if accepted != 10 || ended != 12 {
		t.Errorf("the series has %d units and %d runs", accepted, ended)
	}
	text, _ := json.Marshal([]any{f.Cost, f.Models, f.Backends, f.Workers, f.Runs})
	want := `[{"runs":12,"cost_usd":3.75,"unpriced_runs":0,"wasted":{"cost_usd":0.5,"unpriced_runs":0}},` +
		`[{"name":"small","runs":12,"cost_usd":3.75,"unpriced_runs":0,"wasted":{"cost_usd":0.5,"unpriced_runs":0}}],` +
		`[{"name":"claude","runs":9,"cost_usd":2.25,"unpriced_runs":0,"wasted":{"cost_usd":0,"unpriced_runs":0}},{"name":"mock","runs":3,"cost_usd":1.5,"unpriced_runs":0,"wasted":{"cost_usd":0.5,"unpriced_runs":0}}],` +
		`[{"name":"reader","runs":12,"cost_usd":3.75,"unpriced_runs":0,"wasted":{"cost_usd":0.5,"unpriced_runs":0}}],` +
		`[{"status":"succeeded","count":9,"cost_usd":2.25,"unpriced_runs":0},{"status":"cancelled","count":1,"cost_usd":0.5,"unpriced_runs":0},` +
		`{"status":"failed","class":"infra","count":1,"cost_usd":0.5,"unpriced_runs":0},{"status":"released","count":1,"cost_usd":0.5,"unpriced_runs":0}]]`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
	about := func(got work.Seconds, want float64) bool { return math.Abs(float64(got)-want) <= want/10 }
	if !about(f.Wait.P50, 2) || !about(f.Wait.P90, 2) || !about(f.Wait.P99, 50) || f.Wait.Count != 10 {
		t.Errorf("waits %+v", f.Wait)
	}
	if len(f.Run) != 2 || f.Run[0].Name != "claude" || !about(f.Run[0].P99, 30) || f.Run[1].Count != 2 {
		t.Errorf("runs %+v", f.Run)
	}
}

// A caller's delay is no wait, nor is the pause before a retry.
func TestWaitBeginsWhenAUnitIsDue(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	now := time.Now().UTC()
	l.happened(now.Add(-30*time.Minute), "mock", 20*time.Minute, time.Second, 0, "succeeded")
	l.exec(`UPDATE work_units SET not_before = started_at - interval '4 seconds'`)
	f, err := l.Overview.Figures(t.Context(), work.DefaultTenant, window(t, "1h"), now)
	l.must(err)
	if f.Wait.P50 < 3.6 || f.Wait.P50 > 4.4 {
		t.Errorf("%+v", f.Wait)
	}
	l.exec(`UPDATE work_units SET not_before = started_at + interval '4 seconds'`)
	if f, err = l.Overview.Figures(t.Context(), work.DefaultTenant, window(t, "1h"), now); err != nil || f.Wait.P50 < 1080 {
		t.Errorf("%+v, %v", f.Wait, err)
	}
}

func TestTallyCountsAnHourOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	if ago, err := l.Overview.ReconcilerSeen(t.Context()); ago != nil || err != nil {
		t.Errorf("%v, %v", ago, err)
	}
	now := time.Now().UTC()
	l.happened(now.Add(-5*time.Hour), "mock", 0, time.Second, 1, "succeeded")
	l.happened(now.Add(-40*24*time.Hour), "mock", 0, time.Second, 1, "succeeded") // too old for any window
	l.happened(now, "mock", 0, 0, 1, "succeeded")                                 // of an hour that is not over
	errs := make(chan error)
	for range 4 {
		go func() {
			for {
				more, err := l.Overview.Tally(t.Context(), work.DefaultTenant)
				if err != nil || !more {
					errs <- err
					return
				}
			}
		}()
	}
	for range 4 {
		l.must(<-errs)
	}
	var got int
	l.must(l.db.Get(&got, `SELECT sum(count) FROM tallies WHERE what = 'run' AND seconds = 3600`))
	if got != 1 {
		t.Errorf("%d runs", got)
	}
	if ago, err := l.Overview.ReconcilerSeen(t.Context()); ago == nil || *ago > time.Minute || err != nil {
		t.Errorf("%v, %v", ago, err)
	}
	l.exec(`INSERT INTO tallies SELECT tenant, seconds, since - interval '60 days', what, backend, worker, model, outcome, class, bin, count, unpriced, cost_usd FROM tallies`)
	l.exec(`UPDATE settings SET value = (value::bigint - 60)::text WHERE name LIKE 'tallied%'`)
	l.tallyAll()
	l.must(l.db.Get(&got, `SELECT count(*) FROM tallies WHERE since < now() - interval '34 days'`))
	if got != 0 {
		t.Errorf("%d rows are too old", got)
	}
}

// Steps follow each other without a gap, and the hour or the day that one ends
// with is made up of whole parts.
func TestTallyStepsMeet(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 44, 0, 0, time.UTC).Unix()
	for _, until := range []int64{0, now - 40*tallyDay, now - 3*tallyDay - 17*60, now - 5*tallyHour, now - 150*60, now - 60, now} {
		at, steps, minutes := until, 0, int64(0)
		for at < now {
			from, to, length := tallyStep(at, now)
			if from != at && steps > 0 || to <= from || from%length != 0 || to%length != 0 {
				t.Fatalf("from %d to %d by %d after %d", from-now, to-now, length, at-now)
			}
			whole := tallyHour
			if length == tallyHour {
				whole = tallyDay
			} else {
				minutes += to - from
			}
			if floor(from, whole) != floor(to-1, whole) {
				t.Errorf("from %d to %d by %d crosses an end", from-now, to-now, length)
			}
			at, steps = to, steps+1
		}
		if steps > 40 || minutes > 4*tallyHour || now-until > tallyHour && minutes < tallyHour {
			t.Errorf("since %d: %d steps, %d minutes", until-now, steps, minutes/60)
		}
	}
}
