package store

import (
	"context"
	"fmt"
	"time"

	"piecework/store/pg"
)

// Reconciler is what one process at a time finds to do.
type Reconciler struct{ db *pg.DB }

// leadLock is the advisory lock of whoever reconciles.
const leadLock = 0x7069656365 // "piece"

// Lead runs round if no other process reconciles just now, and again at every tick
// until the lead is lost, a minute is over or ctx ends. It tells whether it led.
func (s *Reconciler) Lead(ctx context.Context, tick <-chan time.Time, round func(context.Context)) (bool, error) {
	return s.db.Lead(ctx, leadLock, tick, round)
}

// Pending tells what the reconciler would find something for.
type Pending struct {
	Lost       bool   `db:"lost"`       // runs of worker processes whose lease has ended
	Overdue    bool   `db:"overdue"`    // units past their deadline or their time to start
	Late       bool   `db:"late"`       // units of the batch lane that must run live
	Undone     bool   `db:"undone"`     // deliveries of worker processes that are late or dead
	Schedules  bool   `db:"schedules"`  // schedules whose time has come
	Batches    bool   `db:"batches"`    // batches that go on
	Unchecked  bool   `db:"unchecked"`  // units after the cursor whose bells are in doubt
	Unheard    bool   `db:"unheard"`    // deliveries that need a bell
	RedisEpoch string `db:"redisepoch"` // as Epoch has it; empty: none yet
}

// Pending looks for everything that is asked for in each round, in one statement. It
// locks nothing, and what it finds may be gone a moment later. The first row of an
// index answers most of it; the rest counts what is at work just now.
func (s *Reconciler) Pending(ctx context.Context, after CheckCursor) (p Pending, err error) {
	err = s.db.GetContext(ctx, &p, `SELECT
		(SELECT count(*) FROM worker_runs r LEFT JOIN worker_processes p ON p.id = r.worker_process
			WHERE r.status = 'running' AND (p.id IS NULL OR NOT (`+alive+`))) > 0 AS lost,
		coalesce((SELECT deadline FROM work_units WHERE deadline IS NOT NULL AND state IN ('queued', 'waiting') ORDER BY deadline LIMIT 1) <= now(), false)
			OR coalesce((SELECT expires_at FROM work_units WHERE expires_at IS NOT NULL AND state = 'queued' AND started_at IS NULL
				ORDER BY expires_at LIMIT 1) <= now(), false) AS overdue,
		coalesce((SELECT lane_ends(created_at, deadline, expires_at) FROM work_units WHERE state = 'waiting' AND lane = 'batch'
			ORDER BY lane_ends(created_at, deadline, expires_at) LIMIT 1) <= now(), false) AS late,
		(SELECT count(*) FROM webhook_deliveries d WHERE `+undone+`) > 0 AS undone,
		coalesce((SELECT next_at FROM schedules WHERE NOT paused ORDER BY next_at LIMIT 1) <= clock_timestamp(), false) AS schedules,
		(SELECT count(*) FROM batches WHERE finished_at IS NULL AND `+goesOn+` = false) > 0 AS batches,
		(SELECT id FROM work_units WHERE state = 'queued' AND check_at <= now() AND (check_at, id) > ($1, $2)
			ORDER BY check_at, id LIMIT 1) IS NOT NULL AS unchecked,
		EXISTS (WITH `+pendingReceivers+` SELECT FROM receivers r WHERE EXISTS (SELECT FROM webhook_deliveries
			WHERE receiver = r.receiver AND `+unheard+`)) AS unheard,
		coalesce((SELECT value FROM settings WHERE name = 'redis_epoch'), '') AS redisepoch`, after.at, after.id)
	if err != nil {
		return p, pg.Translate(fmt.Errorf("look for what is due: %w", err))
	}
	return p, nil
}
