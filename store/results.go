package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Title returns the title of a batch, also of a deleted one, whose units
// are still there; it does not look at them.
func (s *Batches) Title(ctx context.Context, tenant string, id uuid.UUID) (string, error) {
	var title string
	if err := s.db.GetContext(ctx, &title, `SELECT title FROM batches WHERE id = $1 AND tenant = $2`, id, tenant); err != nil {
		return "", pg.Translate(fmt.Errorf("read the title of batch %s: %w", id, err))
	}
	return title, nil
}

// Count tells how many of the newest batches of a filter, most at most,
// are in each status.
func (s *Batches) Count(ctx context.Context, f BatchFilter, most int) (map[work.BatchStatus]int, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	w := f.where()
	var rows []struct {
		Status work.BatchStatus `db:"status"`
		Count  int              `db:"count"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT status, count(*) FROM (SELECT status FROM batches WHERE `+w.Text()+
		` ORDER BY id DESC LIMIT `+w.Arg(most)+`) AS newest GROUP BY status`, w.Args...)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("count batches: %w", err))
	}
	counts := make(map[work.BatchStatus]int, len(rows))
	for _, r := range rows {
		counts[r.Status] = r.Count
	}
	return counts, nil
}

// Heads tells of the batches of all tenants that are not over, or have been
// for less than a minute, what changes whenever their row does.
func (s *Batches) Heads(ctx context.Context) (map[uuid.UUID]string, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var rows []struct {
		ID   uuid.UUID `db:"id"`
		Head string    `db:"head"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT id, xmin::text AS head FROM batches WHERE finished_at IS NULL
		UNION ALL SELECT id, xmin::text FROM (SELECT id, xmin, finished_at FROM batches ORDER BY id DESC LIMIT 1000) AS newest
			WHERE finished_at > clock_timestamp() - interval '1 minute'`)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("look for changes of batches: %w", err))
	}
	heads := make(map[uuid.UUID]string, len(rows))
	for _, r := range rows {
		heads[r.ID] = r.Head
	}
	return heads, nil
}

// BatchFailure is how many units of a batch ended with an error of one class.
type BatchFailure struct {
	Class   work.Class `db:"class"`
	Count   int        `db:"count"`
	Cost    work.Cost  `db:"-"`
	Message string     `db:"message"` // of one of them, cut
}

// Failures groups the failed and timed-out units of a batch by the class of
// their error, the largest group first; it looks at most of them at most.
func (s *Batches) Failures(ctx context.Context, batch uuid.UUID, most int) ([]BatchFailure, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var rows []struct {
		BatchFailure
		costRow
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT coalesce(error_class, '') AS class, count(*), `+sumOfCosts+`,
			coalesce(left(min(error_message), 500), '') AS message
		FROM (SELECT error_class, error_message, cost_usd, unpriced_runs FROM work_units WHERE batch_id = $1 AND state IN ('failed', 'timed_out') LIMIT $2) AS u
		GROUP BY error_class ORDER BY count DESC, class`, batch, most)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("group failures of batch %s: %w", batch, err))
	}
	groups := make([]BatchFailure, len(rows))
	for i, r := range rows {
		groups[i] = r.BatchFailure
		groups[i].Cost = r.cost()
	}
	return groups, nil
}

// BatchPace is how fast the units of a batch have ended lately.
type BatchPace struct {
	Finished int
	Seconds  float64 // in which they did
}

// Pace looks back for so long, but not beyond the moment at which the batch
// was last let go on.
func (s *Batches) Pace(ctx context.Context, tenant string, batch uuid.UUID, back time.Duration) (BatchPace, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var p BatchPace
	var since time.Time
	err := s.db.QueryRowxContext(ctx, `SELECT at, date_part('epoch', clock_timestamp() - at) FROM (
			SELECT greatest(clock_timestamp() - $3 * interval '1 second', enumerated_at, approved_at, resumed_at) AS at
			FROM batches WHERE id = $1 AND tenant = $2) AS since`, batch, tenant, back.Seconds()).Scan(&since, &p.Seconds)
	if err == nil { // in a statement of its own: only one that knows the time can tell how little that is
		err = s.db.GetContext(ctx, &p.Finished, `SELECT count(*) FROM work_units WHERE tenant = $2 AND finished_at > $3 AND batch_id = $1`, batch, tenant, since)
	}
	if err != nil {
		return p, pg.Translate(fmt.Errorf("measure batch %s: %w", batch, err))
	}
	return p, nil
}

// BatchResult is one unit of a batch with its whole output.
type BatchResult struct {
	work.Unit
	FinalRun *uuid.UUID `db:"final_run"`
	work.Usage
	NumTurns  int    `db:"num_turns"`
	SessionID string `db:"session_id"`
	RunModel  string `db:"run_model"`
	// Of the API's answer to a call.
	HTTPStatus int    `db:"http_status"`
	RequestID  string `db:"request_id"`
}

// resultColumns are those of a unit without its call, whose body may be large:
// of interest is only whether there is one.
func resultColumns() string {
	return strings.Replace(unitColumns, "coalesce(request, 'null')", "CASE WHEN request IS NULL THEN 'null'::json ELSE '{}' END", 1)
}

// resultsPage is how many results are read at once, outputs and all.
const resultsPage = 100

// Results gives the units of a batch that are in one of the states to f,
// in the order in which they were submitted, as they stand when it begins.
// Memory holds their ids and a page of them.
func (s *Batches) Results(ctx context.Context, batch uuid.UUID, states []work.State, f func(BatchResult) error) error {
	return s.ResultsAfter(ctx, batch, states, uuid.Nil, 0, f)
}

// ResultsAfter does so with the units that come after one, limit of them
// at most unless that is 0.
func (s *Batches) ResultsAfter(ctx context.Context, batch uuid.UUID, states []work.State, after uuid.UUID, limit int,
	f func(BatchResult) error) error {
	var ids []uuid.UUID
	if err := s.db.SelectContext(ctx, &ids, `SELECT id FROM work_units WHERE batch_id = $1 AND state = ANY($2) AND id > $3 ORDER BY id LIMIT nullif($4, 0)`,
		batch, pg.TextArray(states), after, limit); err != nil {
		return pg.Translate(fmt.Errorf("list results of batch %s: %w", batch, err))
	}
	for len(ids) > 0 {
		page := ids[:min(resultsPage, len(ids))]
		ids = ids[len(page):]
		var rows []struct {
			unitRow
			FinalRun *uuid.UUID `db:"final_run"`
			work.Usage
			NumTurns   int    `db:"num_turns"`
			SessionID  string `db:"session_id"`
			RunModel   string `db:"run_model"`
			HTTPStatus int    `db:"http_status"`
			RequestID  string `db:"request_id"`
		}
		err := s.db.SelectContext(ctx, &rows, `SELECT u.*, r.result AS output, coalesce(r.input_tokens, 0) AS input_tokens, coalesce(r.output_tokens, 0) AS output_tokens,
				coalesce(r.cache_read_tokens, 0) AS cache_read_tokens, coalesce(r.cache_creation_tokens, 0) AS cache_creation_tokens,
				coalesce(r.num_turns, 0) AS num_turns, coalesce(r.session_id, '') AS session_id, coalesce(r.model, '') AS run_model,
				coalesce(r.http_status, 0) AS http_status, coalesce(r.request_id, '') AS request_id
			FROM (SELECT `+resultColumns()+`, final_run FROM work_units WHERE id = ANY($1::uuid[])) AS u LEFT JOIN worker_runs r ON r.id = u.final_run
			ORDER BY u.id`, pg.UUIDs(page))
		if err != nil {
			return pg.Translate(fmt.Errorf("read results of batch %s: %w", batch, err))
		}
		for _, r := range rows {
			out := BatchResult{Unit: r.unit(), FinalRun: r.FinalRun, Usage: r.Usage, NumTurns: r.NumTurns, SessionID: r.SessionID,
				RunModel:   r.RunModel,
				HTTPStatus: r.HTTPStatus, RequestID: r.RequestID}
			if err := f(out); err != nil {
				return err
			}
		}
	}
	return nil
}
