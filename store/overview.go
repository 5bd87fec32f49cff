package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Overview counts what happened in an hour, a day, a month.
type Overview struct{ db *pg.DB }

// How the database counts for the overview. Minutes that are over are counted
// once, into tallies, hours from their minutes and days from their hours.
// Figures are those and what came since.
const (
	tallyMinute = int64(time.Minute / time.Second)
	tallyHour   = 60 * tallyMinute
	tallyDay    = 24 * tallyHour
	// tallyLate is how long after a minute's end its last rows may be committed:
	// a grouped write of many bytes takes that long.
	tallyLate = int64(pg.LongLimit / time.Second)
	// Each is kept for the longest window that is shown by it, and longer.
	minutesKept = 3 * tallyHour
	hoursKept   = 8 * tallyDay
	daysKept    = 32 * tallyDay
)

// counts selects what happened between the seconds $2 and $3 to tenant $1, by
// buckets of $4 seconds. Every row says when its bucket begins. Text of
// callers is cut: it is a name here.
var counts = `
SELECT 'accepted' AS what, at, '' AS backend, '' AS worker, '' AS model, '' AS outcome, '' AS class, 0 AS bin,
    count(*) AS count, 0::bigint AS unpriced, 0::double precision AS cost_usd
FROM (SELECT ` + bucketOf("created_at") + ` AS at FROM unit_search WHERE tenant = $1 AND ` + between("created_at") + `) AS u GROUP BY at
UNION ALL
SELECT 'finished', at, '', '', '', state, '', 0, count(*), 0, 0
FROM (SELECT ` + bucketOf("finished_at") + ` AS at, state FROM work_units WHERE tenant = $1 AND ` + between("finished_at") + `) AS u GROUP BY at, state
UNION ALL
SELECT 'wait', at, '', '', '', '', '', bin, count(*), 0, 0
FROM (SELECT ` + bucketOf("started_at") + ` AS at, ` + binOf(`started_at -
        CASE WHEN not_before BETWEEN created_at AND started_at THEN not_before ELSE created_at END`) + ` AS bin
    FROM work_units WHERE tenant = $1 AND ` + between("started_at") + `) AS u GROUP BY at, bin
UNION ALL
SELECT 'run', at, backend, worker, left(model, 200), status, coalesce(error_class, ''), 0, count(*),
    count(*) FILTER (WHERE unpriced), coalesce(sum(cost), 0)
FROM (SELECT ` + bucketOf("completed_at") + ` AS at, r.worker_type AS backend, u.worker, coalesce(r.model, '') AS model, r.status, r.error_class,
        ` + unpriced("r") + ` AS unpriced, r.total_cost_usd AS cost
    FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.tenant = $1 AND ` + between("completed_at") + `) AS r
GROUP BY at, backend, worker, model, status, error_class
UNION ALL
SELECT 'took', at, worker_type, '', '', '', '', bin, count(*), 0, 0
FROM (SELECT ` + bucketOf("completed_at") + ` AS at, worker_type, ` + binOf("completed_at - r.started_at") + ` AS bin
    FROM worker_runs r WHERE r.tenant = $1 AND ` + between("completed_at") + ` AND status NOT IN ('lost', 'fenced', 'released')) AS r
GROUP BY at, worker_type, bin`

func between(column string) string {
	return fmt.Sprintf("%[1]s >= to_timestamp($2) AND %[1]s < to_timestamp($3)", column)
}

func bucketOf(column string) string {
	return fmt.Sprintf("(floor(date_part('epoch', %s) / $4) * $4)::bigint", column)
}

func binOf(interval string) string {
	return fmt.Sprintf("floor(ln(greatest(date_part('epoch', %s), %g)) / %.17g)::int", interval, work.LatencyLeast, math.Log(work.LatencyFactor))
}

// Tally counts what happened in minutes that are over and were not counted
// yet, an hour of them at most, or a day of hours when they are long over. It
// tells whether more is left, and notes that a reconciler was here.
func (s *Overview) Tally(ctx context.Context, tenant string) (bool, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return false, pg.Translate(fmt.Errorf("tally: %w", err))
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	var now, until int64
	err = tx.QueryRowxContext(ctx, `INSERT INTO settings (name, value) VALUES ($1, '0')
		ON CONFLICT (name) DO UPDATE SET value = settings.value RETURNING value::bigint, date_part('epoch', now())::bigint`,
		tallied+tenant).Scan(&until, &now)
	if err != nil {
		return false, pg.Translate(fmt.Errorf("tally: %w", err))
	}
	over := floor(now-tallyLate, tallyMinute)
	from, to, length := tallyStep(until, over)
	_, err = tx.ExecContext(ctx, `INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`,
		seenAt, strconv.FormatInt(now, 10))
	if err == nil && from < to {
		err = tallyInto(ctx, tx, tenant, from, to, length)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return false, pg.Translate(fmt.Errorf("tally: %w", err))
	}
	return to < over, nil
}

// The settings of the tallies: until when, by tenant, and when the reconciler
// was last there.
const (
	tallied = "tallied_until:"
	seenAt  = "reconciler_seen_at"
)

// tallyStep chooses what to count next and by what. It never goes beyond the
// end of what its parts make up: of an hour by minutes, of a day by hours.
// Minutes that no window shows any more are not worth a row.
func tallyStep(until, over int64) (from, to, length int64) {
	from = max(until, floor(over-daysKept+tallyDay, tallyDay))
	if hours := floor(over, tallyHour) - 2*tallyHour; from%tallyHour == 0 && from < hours {
		return from, min(floor(from, tallyDay)+tallyDay, hours), tallyHour
	}
	return from, min(floor(from, tallyHour)+tallyHour, over), tallyMinute
}

// floor is the begin of the minute, hour or day that a second lies in, in UTC.
func floor(second, length int64) int64 { return second / length * length }

const tallyColumns = `what, backend, worker, model, outcome, class, bin`

func tallyInto(ctx context.Context, tx *sqlx.Tx, tenant string, from, to, length int64) error {
	exec := func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}
	err := exec(`INSERT INTO tallies (tenant, seconds, since, `+tallyColumns+`, count, unpriced, cost_usd)
		SELECT $1, $4, to_timestamp(at), `+tallyColumns+`, count, unpriced, cost_usd FROM (`+counts+`) AS c`, tenant, from, to, length)
	for _, sum := range []struct{ whole, part int64 }{{tallyHour, tallyMinute}, {tallyDay, tallyHour}} {
		if err == nil && to%sum.whole == 0 && length <= sum.part {
			err = exec(`INSERT INTO tallies (tenant, seconds, since, `+tallyColumns+`, count, unpriced, cost_usd)
				SELECT tenant, $4, to_timestamp($2), `+tallyColumns+`, sum(count), sum(unpriced), sum(cost_usd)
				FROM tallies WHERE tenant = $1 AND seconds = $5 AND `+between("since")+` GROUP BY tenant, `+tallyColumns,
				tenant, to-sum.whole, to, sum.whole, sum.part)
		}
	}
	if err == nil {
		err = exec(`DELETE FROM tallies WHERE tenant = $1 AND (seconds = 60 AND since < to_timestamp($2)
			OR seconds = 3600 AND since < to_timestamp($3) OR seconds = 86400 AND since < to_timestamp($4))`,
			tenant, to-minutesKept, to-hoursKept, to-daysKept)
	}
	if err == nil {
		err = exec(`UPDATE settings SET value = $2 WHERE name = $1`, tallied+tenant, strconv.FormatInt(to, 10))
	}
	return err
}

// ReconcilerSeen returns how long ago a reconciler last did its slow duties,
// nil when none ever has.
func (s *Overview) ReconcilerSeen(ctx context.Context) (*time.Duration, error) {
	var seconds float64
	err := s.db.GetContext(ctx, &seconds, `SELECT date_part('epoch', clock_timestamp()) - value::bigint FROM settings WHERE name = $1`, seenAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("look for the reconciler: %w", err))
	}
	ago := max(work.Seconds(seconds).Duration(), 0)
	return &ago, nil
}

type count struct {
	What     string  `db:"what"`
	At       int64   `db:"at"`
	Backend  string  `db:"backend"`
	Worker   string  `db:"worker"`
	Model    string  `db:"model"`
	Outcome  string  `db:"outcome"`
	Class    string  `db:"class"`
	Bin      int     `db:"bin"`
	Count    int64   `db:"count"`
	Unpriced int64   `db:"unpriced"`
	Cost     float64 `db:"cost_usd"`
}

// Figures returns what happened in a window up to now.
func (s *Overview) Figures(ctx context.Context, tenant string, w work.Window, now time.Time) (work.Figures, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	from, to := w.Since(now).Unix(), now.Unix()+1
	bucket := int64(w.Bucket.Seconds())
	var until int64
	err := s.db.GetContext(ctx, &until, `SELECT coalesce((SELECT value::bigint FROM settings WHERE name = $1), 0)`, tallied+tenant)
	if err != nil {
		return work.Figures{}, pg.Translate(fmt.Errorf("read figures: %w", err))
	}
	// Days are read as days where the window is shown by them, and hours as
	// hours. How long things took is wanted of the whole window only.
	until = min(max(until, from), floor(to, tallyMinute))
	days, hours := from, from
	if w.Length > 24*time.Hour {
		days = max(floor(until, tallyDay), from)
	}
	if bucket >= tallyHour {
		hours = max(floor(until, tallyHour), from)
	}
	var old, fresh []count
	err = s.db.SelectContext(ctx, &old, `SELECT what, CASE WHEN what IN ('wait', 'took') THEN 0 ELSE `+bucketOf("since")+` END AS at,
			backend, worker, model, outcome, class, bin, sum(count)::bigint AS count, sum(unpriced)::bigint AS unpriced, sum(cost_usd) AS cost_usd
		FROM tallies WHERE tenant = $1 AND (
			seconds = 86400 AND `+between("since")+` AND since < to_timestamp($5) AND ($4 >= 86400 OR what IN ('wait', 'took'))
			OR seconds = 3600 AND `+between("since")+` AND since < to_timestamp($6) AND (since >= to_timestamp($5) OR $4 < 86400 AND what NOT IN ('wait', 'took'))
			OR seconds = 60 AND `+between("since")+` AND since >= to_timestamp($6))
		GROUP BY 1, 2, 3, 4, 5, 6, 7, 8`, tenant, from, until, bucket, days, hours)
	if err == nil {
		err = s.db.SelectContext(ctx, &fresh, counts, tenant, until, to, bucket)
	}
	if err != nil {
		return work.Figures{}, pg.Translate(fmt.Errorf("read figures: %w", err))
	}
	f := newFigures(w, now)
	f.addAll(slices.Concat(old, fresh))
	for _, c := range fresh {
		f.Untallied += c.Count
	}
	return f.done(), nil
}

// figures are work.Figures while they are added up.
type figures struct {
	work.Figures
	bucket                    int64
	outcomes                  map[work.Outcome]*work.Outcome // by what is not counted
	models, backends, workers map[string]*work.Spent
	wait                      map[int]int64
	took                      map[string]map[int]int64
}

func newFigures(w work.Window, now time.Time) *figures {
	f := &figures{
		Figures: work.Figures{Window: w.Name, From: w.Since(now), To: now.UTC(), Bucket: work.Seconds(w.Bucket.Seconds()),
			Finished: map[work.State]int64{}},
		bucket: int64(w.Bucket.Seconds()), outcomes: map[work.Outcome]*work.Outcome{},
		models: map[string]*work.Spent{}, backends: map[string]*work.Spent{}, workers: map[string]*work.Spent{},
		wait: map[int]int64{}, took: map[string]map[int]int64{},
	}
	for at := f.From; !at.After(now); at = at.Add(w.Bucket) {
		f.Series = append(f.Series, work.Interval{From: at, Finished: map[work.State]int64{}})
	}
	return f
}

func (f *figures) addAll(counts []count) {
	for _, c := range counts {
		switch c.What {
		case "accepted":
			f.Accepted += c.Count
			f.interval(c).Accepted += c.Count
		case "finished":
			f.Finished[work.State(c.Outcome)] += c.Count
			f.interval(c).Finished[work.State(c.Outcome)] += c.Count
		case "wait":
			f.wait[c.Bin] += c.Count
		case "took":
			if f.took[c.Backend] == nil {
				f.took[c.Backend] = map[int]int64{}
			}
			f.took[c.Backend][c.Bin] += c.Count
		case "run":
			f.addRuns(c)
		}
	}
}

// interval is the bucket of c; what lies outside of the series is counted at
// its end.
func (f *figures) interval(c count) *work.Interval {
	i := (c.At - f.From.Unix()) / f.bucket
	return &f.Series[max(min(i, int64(len(f.Series))-1), 0)]
}

func (f *figures) addRuns(c count) {
	key := work.Outcome{Status: work.RunStatus(c.Outcome), Class: work.Class(c.Class)}
	if f.outcomes[key] == nil {
		o := key
		f.outcomes[key] = &o
	}
	f.outcomes[key].Count += c.Count
	spent := work.Spent{Runs: c.Count, Cost: work.NewCost(c.Cost, c.Unpriced)}
	f.outcomes[key].Cost = f.outcomes[key].Plus(spent.Cost)
	if key.Status.Wasted() {
		spent.Wasted = spent.Cost
	}
	f.Cost.Add(spent)
	f.interval(c).Cost.Add(spent)
	spend(f.models, c.Model, spent)
	spend(f.backends, c.Backend, spent)
	if c.Worker != "" {
		spend(f.workers, c.Worker, spent)
	}
}

func spend(by map[string]*work.Spent, name string, spent work.Spent) {
	if by[name] == nil {
		by[name] = &work.Spent{Name: name}
	}
	by[name].Add(spent)
}

func (f *figures) done() work.Figures {
	for _, o := range f.outcomes {
		f.Runs = append(f.Runs, *o)
	}
	slices.SortFunc(f.Runs, func(a, b work.Outcome) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Status, b.Status), cmp.Compare(a.Class, b.Class))
	})
	f.Models, f.Backends, f.Workers = dearest(f.models), dearest(f.backends), dearest(f.workers)
	f.Wait = work.NewLatency("", f.wait)
	for name, bins := range f.took {
		f.Run = append(f.Run, work.NewLatency(name, bins))
	}
	slices.SortFunc(f.Run, func(a, b work.Latency) int { return cmp.Compare(a.Name, b.Name) })
	return f.Figures
}

func dearest(by map[string]*work.Spent) []work.Spent {
	all := make([]work.Spent, 0, len(by))
	for _, s := range by {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b work.Spent) int {
		return cmp.Or(cmp.Compare(b.Known(), a.Known()), cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Name, b.Name))
	})
	return all
}
