package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"time"
)

// leadLimit is how long one round of a leader may last. leadIdle is how long
// Postgres keeps the lead for one that says nothing, which may be frozen, or out of
// reach, for hours; so a leader at work says something more often. leadTerm is how
// long one transaction holds the lead, which then is anybody's.
const (
	leadLimit = 30 * time.Second
	leadIdle  = 3 * time.Second
	leadTerm  = time.Minute
)

// Lead runs round if no other process holds an advisory lock just now, and again at every tick
// until the lead is lost, a minute is over or ctx ends. It tells whether it led.
// Before each round but the first Postgres confirms the lead: a process that was
// frozen does nothing in the belief that it leads still.
func (db *DB) Lead(ctx context.Context, lock int64, tick <-chan time.Time, round func(context.Context)) (bool, error) {
	return db.hold(ctx, lock, func(conn *sql.Conn) error {
		for end := time.Now().Add(leadTerm); ; {
			_ = db.round(ctx, conn, func(ctx context.Context) error { round(ctx); return nil })
			select {
			case <-ctx.Done():
				return nil
			case <-tick:
			}
			if time.Now().After(end) || db.speak(ctx, conn) != nil {
				return nil
			}
		}
	})
}

// LeadOnce runs f once while it holds an advisory lock, and tells whether it got it.
func (db *DB) LeadOnce(ctx context.Context, lock int64, f func(context.Context) error) (bool, error) {
	return db.hold(ctx, lock, func(conn *sql.Conn) error { return db.round(ctx, conn, f) })
}

// hold runs f while a transaction of conn holds an advisory lock, and tells whether
// it got it.
func (db *DB) hold(ctx context.Context, lock int64, f func(conn *sql.Conn) error) (bool, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, Translate(fmt.Errorf("lead: %w", err))
	}
	defer func() { _ = conn.Close() }()
	// The transaction is idle while f works elsewhere, and its end by either
	// side is the end of the lock. It has no snapshot, so it holds up no vacuum.
	begin := fmt.Sprintf(`BEGIN; SET LOCAL idle_in_transaction_session_timeout = %d`, db.leadIdle.Milliseconds())
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return false, Translate(fmt.Errorf("lead: %w", err))
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeAfter)
		defer cancel()
		if _, err := conn.ExecContext(end, `ROLLBACK`); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // it is closed, and its lock with it
		}
	}()
	var lead bool
	if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_xact_lock($1)`, lock).Scan(&lead); err != nil {
		return false, Translate(fmt.Errorf("lead: %w", err))
	}
	if !lead {
		return false, nil
	}
	return true, f(conn)
}

// round runs f once, for a time that is limited, as the holder of conn's lock. When f
// does not end in time the leader falls silent, and Postgres takes the lead.
func (db *DB) round(ctx context.Context, conn *sql.Conn, f func(context.Context) error) error {
	round, cancel := context.WithTimeout(Allow(ctx, db.leadLimit), db.leadLimit)
	var speaking sync.WaitGroup
	defer speaking.Wait()
	defer cancel()
	speaking.Go(func() { db.keepLead(round, cancel, conn) })
	return f(round)
}

// keepLead says something on the leader's connection until the round is over, and
// ends the round when the lead is lost.
func (db *DB) keepLead(ctx context.Context, lost func(), conn *sql.Conn) {
	tick := time.NewTicker(db.leadIdle / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if db.speak(ctx, conn) != nil {
			lost()
			return
		}
	}
}

func (db *DB) speak(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(Allow(ctx, db.leadIdle), `SELECT 1`)
	return err
}
