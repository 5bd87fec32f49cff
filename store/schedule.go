package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Schedules make units at set times.
type Schedules struct{ db *pg.DB }

const scheduleColumns = `tenant, name, cron, timezone, catch_up, paused, title, unit, next_at, last_at, last_unit, created_at`

type scheduleRow struct {
	work.Schedule
	Unit []byte    `db:"unit"`
	Now  time.Time `db:"now"`
}

func (r scheduleRow) schedule() (work.Schedule, error) {
	s := r.Schedule
	if err := json.Unmarshal(r.Unit, &s.Unit); err != nil {
		return s, fmt.Errorf("read the unit of schedule %s: %w", s.Name, err)
	}
	return s, nil
}

func schedulesOf(rows []scheduleRow) ([]work.Schedule, error) {
	list := make([]work.Schedule, 0, len(rows))
	for _, r := range rows {
		s, err := r.schedule()
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// Put makes a schedule or replaces the one of its name. What it has
// done so far stays known.
func (s *Schedules) Put(ctx context.Context, c work.Schedule) (work.Schedule, error) {
	unit, err := pg.Encode(c.Unit)
	if err != nil {
		return c, fmt.Errorf("encode the unit of schedule %s: %w", c.Name, err)
	}
	var row scheduleRow
	err = s.db.GetContext(ctx, &row, `INSERT INTO schedules
		(tenant, name, cron, timezone, catch_up, paused, title, unit, next_at, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp())
		ON CONFLICT (tenant, name) DO UPDATE SET cron = excluded.cron, timezone = excluded.timezone, catch_up = excluded.catch_up,
			paused = excluded.paused, title = excluded.title, unit = excluded.unit, next_at = excluded.next_at
		RETURNING `+scheduleColumns, c.Tenant, c.Name, c.Cron, c.Timezone, c.CatchUp, c.Paused, work.Clean(c.Title), unit, c.NextAt)
	if err != nil {
		return c, pg.Translate(fmt.Errorf("put schedule %s: %w", c.Name, err))
	}
	return row.schedule()
}

// Get returns one schedule.
func (s *Schedules) Get(ctx context.Context, tenant, name string) (work.Schedule, error) {
	var row scheduleRow
	err := s.db.GetContext(ctx, &row, `SELECT `+scheduleColumns+` FROM schedules WHERE tenant = $1 AND name = $2`, tenant, work.Clean(name))
	if err != nil {
		return work.Schedule{}, pg.Translate(fmt.Errorf("read schedule %s: %w", name, err))
	}
	return row.schedule()
}

// maxSchedules bounds a list: schedules are written by people.
const maxSchedules = 1000

// List returns every schedule by name.
func (s *Schedules) List(ctx context.Context, tenant string) ([]work.Schedule, error) {
	var rows []scheduleRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+scheduleColumns+` FROM schedules WHERE tenant = $1 ORDER BY name LIMIT $2`, tenant, maxSchedules)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("list schedules: %w", err))
	}
	return schedulesOf(rows)
}

// Delete removes a schedule; its units stay.
func (s *Schedules) Delete(ctx context.Context, tenant, name string) error {
	var gone string
	err := s.db.GetContext(ctx, &gone, `DELETE FROM schedules WHERE tenant = $1 AND name = $2 RETURNING name`, tenant, work.Clean(name))
	if err != nil {
		return pg.Translate(fmt.Errorf("delete schedule %s: %w", name, err))
	}
	return nil
}

// Due returns schedules whose next time has come, and Postgres's
// clock.
func (s *Schedules) Due(ctx context.Context, limit int) ([]work.Schedule, time.Time, error) {
	var rows []scheduleRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+scheduleColumns+`, clock_timestamp() AS now FROM schedules
		WHERE NOT paused AND next_at <= clock_timestamp() ORDER BY next_at LIMIT $1`, limit)
	if err != nil || len(rows) == 0 {
		return nil, time.Time{}, pg.Translate(err)
	}
	list, err := schedulesOf(rows)
	return list, rows[0].Now, err
}

// Advance notes the time that a schedule has made units up to, and the last
// of them, uuid.Nil if there was none. It changes nothing when the schedule was
// replaced meanwhile.
func (s *Schedules) Advance(ctx context.Context, c work.Schedule, next time.Time, last uuid.UUID) error {
	_, err := s.db.ExecContext(ctx, `UPDATE schedules SET next_at = $4,
		last_at = CASE WHEN $5::uuid IS NULL THEN last_at ELSE clock_timestamp() END, last_unit = coalesce($5, last_unit)
		WHERE tenant = $1 AND name = $2 AND next_at = $3`, c.Tenant, c.Name, c.NextAt, next, uuid.NullUUID{UUID: last, Valid: last != uuid.Nil})
	if err != nil {
		return pg.Translate(fmt.Errorf("advance schedule %s: %w", c.Name, err))
	}
	return nil
}
