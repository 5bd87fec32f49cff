package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"piecework/internal/work"
	"piecework/store/pg"

	"github.com/google/uuid"
	"github.com/lib/pq"
)

// overUnit holds for a unit u that is over, and that no batch of a provider will
// be read for again.
const overUnit = `u.state IN ('succeeded', 'failed', 'cancelled', 'timed_out')
	AND NOT EXISTS (SELECT FROM provider_batches b WHERE b.id = u.provider_batch AND b.finished_at IS NULL)`

// unusedAnswer holds for an answer a of unit u that no run has been given: what it
// has cost stands nowhere. A run that was released has used nothing up.
const unusedAnswer = `NOT EXISTS (SELECT FROM worker_runs r WHERE r.unit_id = a.unit_id AND r.started_at >= a.answered_at AND r.status <> 'released')`

// answerKept is how long a worker process has to tell what an unused answer has
// cost. Then its cost counts as unknown.
const answerKept = 7 * 24 * time.Hour

// UnusedAnswer is an answer of a unit that was over before a run could use it.
type UnusedAnswer struct {
	ProviderAnswer
	Backend string          `db:"backend"`
	Model   string          `db:"model"`
	Request json.RawMessage `db:"request"` // of the unit; null: it has a prompt
}

// UnusedAnswers returns such answers, whose cost is to be noted.
func (s *ProviderBatches) UnusedAnswers(ctx context.Context, backends []string, most int) (rows []UnusedAnswer, err error) {
	err = s.db.SelectContext(ctx, &rows, `SELECT a.unit_id, a.status, a.request_id, a.body, u.backend, u.model, coalesce(u.request, 'null') AS request
		FROM provider_answers a JOIN work_units u ON u.id = a.unit_id
		WHERE u.backend = ANY($1) AND `+overUnit+` AND `+unusedAnswer+` ORDER BY a.unit_id LIMIT $2`, pq.Array(backends), most)
	return rows, pg.Translate(pg.Wrap("find answers that no run will use", err))
}

// ChargeAnswer removes an unused answer and adds its cost to its unit, and to the
// counts of a batch that is over; nil: nobody can tell it. An answer is charged
// once, however often and by however many this is called.
func (s *ProviderBatches) ChargeAnswer(ctx context.Context, unit uuid.UUID, cost *float64) error {
	_, err := s.db.ExecContext(ctx, `WITH over AS (
			SELECT u.id, u.batch_id FROM work_units u WHERE u.id = $1 AND `+overUnit+` FOR UPDATE
		), gone AS (
			DELETE FROM provider_answers a USING over WHERE a.unit_id = over.id AND `+unusedAnswer+` RETURNING over.id, over.batch_id
		), charged AS (
			UPDATE work_units u SET cost_usd = u.cost_usd + coalesce($2::double precision, 0), unpriced_runs = u.unpriced_runs + ($2::double precision IS NULL)::int
			FROM gone WHERE u.id = gone.id
		) `+recount, unit, cost)
	return pg.Translate(pg.Wrap(fmt.Sprintf("charge unit %s for an answer", unit), err))
}

// recount adds a cost to the counts that a batch which is over keeps. As everywhere
// in JSON, a cost is null when nothing of it is known.
const recount = `UPDATE batches b SET counts = b.counts || jsonb_build_object('unpriced_runs', sums.unpriced,
		'cost_usd', CASE WHEN sums.unpriced > 0 THEN nullif(sums.known, 0) ELSE sums.known END)
	FROM gone, LATERAL (SELECT coalesce((c.counts->>'cost_usd')::double precision, 0) + coalesce($2::double precision, 0) AS known,
		coalesce((c.counts->>'unpriced_runs')::bigint, 0) + ($2::double precision IS NULL)::int AS unpriced
		FROM batches c WHERE c.id = gone.batch_id) AS sums
	WHERE b.id = gone.batch_id AND b.counts IS NOT NULL`

// ProviderAnswer is what a provider's batch answered a unit.
type ProviderAnswer struct {
	UnitID    uuid.UUID `db:"unit_id"`
	Status    int       `db:"status"` // of HTTP, or what it would have been
	RequestID string    `db:"request_id"`
	Body      []byte    `db:"body"`
}

// AddAnswers keeps answers and puts their units into the queue, whose runs
// find them. What a unit was answered first counts; an answer for one that is over
// and has not run since is kept for its cost. What else comes is let go.
func (s *ProviderBatches) AddAnswers(ctx context.Context, batch uuid.UUID, answers []ProviderAnswer) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	if len(answers) == 0 {
		return nil
	}
	ids, statuses, requests, lengths := make([]string, len(answers)), make([]int64, len(answers)), make([]string, len(answers)),
		make([]int64, len(answers))
	var bodies bytes.Buffer
	for i, a := range answers {
		ids[i], statuses[i], requests[i], lengths[i] = a.UnitID.String(), int64(a.Status), work.Clean(a.RequestID), int64(len(a.Body))
		bodies.Write(a.Body)
	}
	_, err := s.db.ExecContext(ctx, `WITH r AS (
			SELECT DISTINCT ON (unit_id) * FROM (SELECT *, sum(length) OVER (ORDER BY n) - length + 1 AS begins
				FROM unnest($2::uuid[], $3::smallint[], $4::text[], $5::int[]) WITH ORDINALITY AS r(unit_id, status, request_id, length, n)) AS r ORDER BY unit_id, n
		), unfinished AS (
			SELECT created_at FROM provider_batches WHERE id = $1 AND finished_at IS NULL FOR UPDATE
		), chosen AS (
			SELECT u.id, u.state FROM work_units u JOIN r ON r.unit_id = u.id
			WHERE u.provider_batch = $1 AND (u.state = 'waiting' OR u.state = 'queued' AND u.run_count = 0 OR u.state IN ('failed', 'cancelled', 'timed_out')
				AND EXISTS (SELECT FROM unfinished b WHERE NOT EXISTS (SELECT FROM worker_runs w WHERE w.unit_id = u.id AND w.started_at >= b.created_at)))
			ORDER BY u.id FOR UPDATE OF u
		), kept AS (
			INSERT INTO provider_answers (unit_id, status, request_id, body, answered_at)
			SELECT r.unit_id, r.status, r.request_id, substr($6::bytea, r.begins::int, r.length), clock_timestamp()
			FROM r JOIN chosen ON chosen.id = r.unit_id ON CONFLICT (unit_id) DO NOTHING RETURNING unit_id
		), counted AS (
			UPDATE provider_batches SET answered = answered + (SELECT count(*) FROM kept) WHERE id = $1
		) `+takeAnswer, batch, pq.Array(ids), pq.Array(statuses), pq.Array(requests), pq.Array(lengths), bodies.Bytes())
	return pg.Translate(pg.Wrap("keep the answers of a provider's batch", err))
}

// Answer returns what a provider's batch answered a unit; nil: nothing that was
// not used.
func (s *ProviderBatches) Answer(ctx context.Context, unit uuid.UUID) (*ProviderAnswer, error) {
	var rows []ProviderAnswer
	if err := s.db.SelectContext(ctx, &rows, `SELECT unit_id, status, request_id, body FROM provider_answers WHERE unit_id = $1`, unit); err != nil || len(rows) == 0 {
		return nil, pg.Translate(pg.Wrap("read a provider's answer", err))
	}
	return &rows[0], nil
}

// ForgetAnswer removes an answer that a run has used.
func (s *ProviderBatches) ForgetAnswer(ctx context.Context, unit uuid.UUID) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM provider_answers WHERE unit_id = $1`, unit)
	return pg.Translate(pg.Wrap("forget a provider's answer", err))
}
