package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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

// PruneAnswers removes answers whose units are over: the process that used one died
// before it could forget it, or nobody has told for a week what it has cost. It
// returns how many.
func (s *Retention) PruneAnswers(ctx context.Context, most int) (int, error) {
	return s.db.ExecCount(ctx, "remove answers that nobody needs", `WITH gone AS (
			SELECT a.unit_id, `+unusedAnswer+` AS unused FROM provider_answers a JOIN work_units u ON u.id = a.unit_id
			WHERE `+overUnit+` AND (a.answered_at < clock_timestamp() - $2 * interval '1 second' OR NOT `+unusedAnswer+`)
			ORDER BY a.unit_id LIMIT $1 FOR UPDATE OF u, a SKIP LOCKED
		), unknown AS (
			UPDATE work_units u SET unpriced_runs = unpriced_runs + 1 FROM gone WHERE u.id = gone.unit_id AND gone.unused
		) DELETE FROM provider_answers a USING gone WHERE a.unit_id = gone.unit_id`, most, answerKept.Seconds())
}
