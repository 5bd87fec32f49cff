package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Events tell what has changed.
type Events struct{ db *pg.DB }

// LiveUnit is a unit as lists show it, with what its newest run does.
type LiveUnit struct {
	work.Unit
	LiveStatus *string
	ToolCalls  int
	// Changed is the transaction that changed the row last, above 0; RunChanged
	// that of the newest run's row, 0 without one. A row that changes gets another.
	Changed    int64
	RunChanged int64
}

// LiveRun is a run as lists show it.
type LiveRun struct {
	work.Run
	Changed int64
	Rev     *int // of its transcript; nil: an older version wrote it, and did not count
}

type liveUnitRow struct {
	unitRow
	LiveStatus *string `db:"live_status"`
	ToolCalls  int     `db:"tool_calls"`
	Changed    int64   `db:"changed"`
	RunChanged int64   `db:"run_changed"`
	Moment     string  `db:"moment"`
}

func (r liveUnitRow) live() LiveUnit {
	return LiveUnit{Unit: r.unit(), LiveStatus: r.LiveStatus, ToolCalls: r.ToolCalls, Changed: r.Changed, RunChanged: r.RunChanged}
}

var liveUnits = `SELECT u.*, r.live_status, coalesce(r.tool_calls, 0) AS tool_calls,
		coalesce(r.changed::text::bigint, 0) AS run_changed, pg_current_snapshot()::text AS moment
	FROM (SELECT ` + listColumns + `, changed::text::bigint AS changed FROM work_units WHERE %s) AS u
	LEFT JOIN worker_runs r ON r.unit_id = u.id AND r.attempt = u.run_count`

// Unit returns a unit of any tenant and its runs from the given attempt on,
// oldest first; attempt 0, and one that has not begun, ask for the newest run.
// Whatever the unit's row says, the runs say too, or more.
func (s *Events) Unit(ctx context.Context, id uuid.UUID, attempt int) (LiveUnit, []LiveRun, error) {
	var row liveUnitRow
	if err := s.db.GetContext(ctx, &row, fmt.Sprintf(liveUnits, "id = $1"), id); err != nil {
		return LiveUnit{}, nil, pg.Translate(fmt.Errorf("read unit %s: %w", id, err))
	}
	if attempt == 0 || attempt > row.RunCount {
		attempt = row.RunCount
	}
	var rows []struct {
		runRow
		Changed int64 `db:"changed"`
		Rev     *int  `db:"rev"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT `+runColumns+`, r.changed::text::bigint AS changed, r.rev
		FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.unit_id = $1 AND r.attempt >= $2 ORDER BY r.attempt`, id, attempt)
	if err != nil {
		return LiveUnit{}, nil, pg.Translate(fmt.Errorf("read runs of unit %s: %w", id, err))
	}
	runs := make([]LiveRun, len(rows))
	for i, r := range rows {
		run, err := r.run()
		if err != nil {
			return LiveUnit{}, nil, err
		}
		runs[i] = LiveRun{Run: run, Changed: r.Changed, Rev: r.Rev}
	}
	return row.live(), runs, nil
}

// Head tells whether a unit or its newest run has changed.
type Head struct {
	ID         uuid.UUID `db:"id"`
	Changed    int64     `db:"changed"`
	RunChanged int64     `db:"run_changed"`
}

// Heads returns the heads of those of the units that there are.
func (s *Events) Heads(ctx context.Context, units []uuid.UUID) ([]Head, error) {
	var heads []Head
	err := s.db.SelectContext(ctx, &heads, `SELECT u.id, u.changed::text::bigint AS changed, coalesce(r.changed::text::bigint, 0) AS run_changed
		FROM work_units u LEFT JOIN worker_runs r ON r.unit_id = u.id AND r.attempt = u.run_count WHERE u.id = ANY($1::uuid[])`, pg.UUIDs(units))
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("look for changes of units: %w", err))
	}
	return heads, nil
}

// Moment is a point in the history of the database: which transactions were over
// by then. Numbers of transactions alone would not tell, as they do not end in
// the order of their numbers.
type Moment struct {
	text      string
	low, high int64   // all below low are over; from high on none has begun
	open      []int64 // those between that were not over
}

var errMoment = errors.New("this is no moment of a database")

// ParseMoment reads what String wrote.
func ParseMoment(text string) (Moment, error) {
	m := Moment{text: text}
	low, rest, _ := strings.Cut(text, ":")
	high, open, two := strings.Cut(rest, ":")
	var err1, err2 error
	m.low, err1 = strconv.ParseInt(low, 10, 64)
	m.high, err2 = strconv.ParseInt(high, 10, 64)
	if err1 != nil || err2 != nil || !two || m.low < 1 || m.high < m.low {
		return Moment{}, errMoment
	}
	last := m.low - 1
	for part := range strings.SplitSeq(open, ",") {
		if part == "" && open == "" {
			break
		}
		id, err := strconv.ParseInt(part, 10, 64)
		if err != nil || id <= last || id >= m.high {
			return Moment{}, errMoment
		}
		last = id
		m.open = append(m.open, id)
	}
	return m, nil
}

func (m Moment) String() string { return m.text }

// Saw tells whether a transaction was over by then.
func (m Moment) Saw(transaction int64) bool {
	if transaction < m.low || transaction >= m.high {
		return transaction < m.low
	}
	_, open := slices.BinarySearch(m.open, transaction)
	return !open
}

// Before tells whether a later moment can be one of the same database. It cannot
// when m knows transactions that had not begun by then: the database was restored
// from a dump. The zero moment is before none.
func (m Moment) Before(later Moment) bool { return m.low > 0 && m.high <= later.high }

// Now returns the present moment.
func (s *Events) Now(ctx context.Context) (Moment, error) {
	var text string
	if err := s.db.GetContext(ctx, &text, `SELECT pg_current_snapshot()::text`); err != nil {
		return Moment{}, pg.Translate(fmt.Errorf("read the present moment: %w", err))
	}
	return ParseMoment(text)
}

// Changed returns units of all tenants that have changed, or whose running
// run has, since a moment, and the moment up to which this is complete: since
// itself when there are none. There may be more when there are limit of them;
// which ones are missing is not known.
func (s *Events) Changed(ctx context.Context, since Moment, limit int) ([]LiveUnit, Moment, error) {
	var rows []liveUnitRow
	err := s.db.SelectContext(ctx, &rows, fmt.Sprintf(liveUnits, `id IN (
			SELECT id FROM work_units WHERE changed >= pg_snapshot_xmin($1::pg_snapshot) AND NOT pg_visible_in_snapshot(changed, $1::pg_snapshot)
			UNION SELECT unit_id FROM worker_runs WHERE status = 'running' AND NOT pg_visible_in_snapshot(changed, $1::pg_snapshot)
			LIMIT $2)`)+` ORDER BY u.id`, since.text, limit)
	if err != nil {
		return nil, since, pg.Translate(fmt.Errorf("look for changed units: %w", err))
	}
	if len(rows) == 0 {
		return nil, since, nil
	}
	units := make([]LiveUnit, len(rows))
	for i, r := range rows {
		units[i] = r.live()
	}
	now, err := ParseMoment(rows[0].Moment)
	return units, now, err
}
