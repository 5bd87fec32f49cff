package chaos

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
)

// Ledger is what the tables say in the end, and what triggers of our own have
// noted of the way there.
type Ledger struct {
	Units    []Unit
	Runs     []Run
	Moves    []Move    // of units
	RunMoves []RunMove // of runs
	Leaks    []string  // where a secret is

	Batches    []Batch
	Deliveries []Delivery
}

// Unit is a row of work_units.
type Unit struct {
	ID, State, Request, Key                              string
	RunCount, Failures, Losses, Waits, Crashes, Dispatch int
	FinalRun, ErrorClass                                 string
	Cost                                                 float64
	Created                                              time.Time
	NotBefore, CancelAsked, Finished                     *time.Time
	Batch                                                string // empty: none
	CachedFrom                                           string // the run whose result was reused; empty: none
}

// Batch is a row of batches with the counts that it ended with.
type Batch struct {
	ID, Request, Key, Status                     string
	Total, Succeeded, Failed, Cancelled, Expired int // -1: it has not ended
	CancelAsked, Finished                        *time.Time
	Concurrency                                  int     // 0: no limit
	MaxCost                                      float64 // 0: no limit
}

// Delivery is a row of webhook_deliveries.
type Delivery struct {
	Message, Of, Type, State string // Of is a unit or a batch
	Attempts                 int
}

// Run is a row of worker_runs with its transcript.
type Run struct {
	ID, Unit, Status, ErrorClass string
	Attempt, PID                 int // of the worker process
	Cost                         float64
	Result                       *string
	Started                      time.Time
	Begun                        bool // it has said what it does
	Steps                        int  // that the transcript says it has; -1: there is none
	Readable                     int  // that can be read in it
}

// Move is a change of a unit.
type Move struct {
	At               time.Time
	Unit, From, To   string // From is empty for a new unit
	Dispatch         int
	FinalRun, Before string // the run whose result is the unit's, now and before
	Cancel           bool   // it was asked to stop
	Due              *time.Time
}

// RunMove is a change of a run's status.
type RunMove struct {
	At                  time.Time
	Run, Unit, From, To string // From is empty for a new run
	Attempt             int
}

// Triggers see every change, also one that is taken back before anybody looks.
const triggers = `
CREATE TABLE chaos_moves (seq bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT clock_timestamp(), unit uuid,
	was text, now text, dispatch integer, final_run uuid, final_run_before uuid, cancel boolean DEFAULT false, due timestamptz);
CREATE TABLE chaos_run_moves (seq bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT clock_timestamp(), run uuid,
	unit uuid, attempt integer, was text, now text);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_OP = 'INSERT' THEN
		INSERT INTO chaos_moves (unit, was, now, dispatch, due) VALUES (NEW.id, '', NEW.state, NEW.dispatch, NEW.not_before);
	ELSIF (OLD.state, OLD.dispatch, OLD.final_run, OLD.finished_at, OLD.cancel_requested_at)
		IS DISTINCT FROM (NEW.state, NEW.dispatch, NEW.final_run, NEW.finished_at, NEW.cancel_requested_at) THEN
		INSERT INTO chaos_moves (unit, was, now, dispatch, final_run, final_run_before, cancel)
		VALUES (NEW.id, OLD.state, NEW.state, NEW.dispatch, NEW.final_run, OLD.final_run,
			OLD.cancel_requested_at IS NULL AND NEW.cancel_requested_at IS NOT NULL);
	END IF;
	RETURN NULL;
END $$;
CREATE FUNCTION chaos_note_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_OP = 'INSERT' THEN
		INSERT INTO chaos_run_moves (run, unit, attempt, was, now) VALUES (NEW.id, NEW.unit_id, NEW.attempt, '', NEW.status);
	ELSIF OLD.status IS DISTINCT FROM NEW.status THEN
		INSERT INTO chaos_run_moves (run, unit, attempt, was, now) VALUES (NEW.id, NEW.unit_id, NEW.attempt, OLD.status, NEW.status);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER chaos AFTER INSERT OR UPDATE ON work_units FOR EACH ROW EXECUTE FUNCTION chaos_note();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE ON worker_runs FOR EACH ROW EXECUTE FUNCTION chaos_note_run();`

// migrate lets the program under test make its tables.
func migrate(binary string) func(context.Context, string) error {
	return func(ctx context.Context, url string) error {
		cmd := exec.CommandContext(ctx, binary, "migrate")
		cmd.Env = []string{"DATABASE_URL=" + url}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// watch notes every change from now on, says by which secret messages are
// signed, and returns the data directory of the server.
func watch(ctx context.Context, url, secret string) (data string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err = conn.Exec(ctx, triggers); err == nil {
		_, err = conn.Exec(ctx, `INSERT INTO callback_secrets (tenant, secret) VALUES ('default', $1)`, secret)
	}
	if err == nil {
		err = conn.QueryRow(ctx, `SHOW data_directory`).Scan(&data)
	}
	return data, err
}

// awaitFinal waits until no unit has work left, no batch goes on and no message
// is to be sent, and returns what is left when the time is up.
func awaitFinal(ctx context.Context, url string, until time.Time) ([]string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	for {
		found, err := conn.Query(ctx, `SELECT id::text FROM work_units WHERE finished_at IS NULL
			UNION ALL SELECT id::text FROM batches WHERE finished_at IS NULL
			UNION ALL SELECT id::text FROM webhook_deliveries WHERE state = 'pending'`)
		if err != nil {
			return nil, err
		}
		open, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil || len(open) == 0 || time.Now().After(until) {
			return open, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func readLedger(ctx context.Context, url string) (l Ledger, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return l, err
	}
	defer func() { _ = conn.Close(ctx) }()
	l.Units, err = rows[Unit](ctx, conn, `SELECT id::text, state, coalesce(labels->>'chaos', ''), coalesce(idempotency_key, ''),
		run_count, failures, losses, waits, crashes, dispatch, coalesce(final_run::text, ''), coalesce(error_class, ''), cost_usd,
		created_at, not_before, cancel_requested_at, finished_at, coalesce(batch_id::text, ''), coalesce(cached_from::text, '') FROM work_units ORDER BY id`)
	if err != nil {
		return l, err
	}
	count := func(name string) string { return `coalesce((counts->>'` + name + `')::int, -1), ` }
	l.Batches, err = rows[Batch](ctx, conn, `SELECT id::text, title, coalesce(idempotency_key, ''), status, `+count("total")+count("succeeded")+
		count("failed")+count("cancelled")+count("expired")+`cancelled_at, finished_at, coalesce(concurrency, 0), coalesce(max_cost_usd, 0) FROM batches ORDER BY id`)
	if err != nil {
		return l, err
	}
	l.Deliveries, err = rows[Delivery](ctx, conn, `SELECT 'msg_' || replace(id::text, '-', ''), coalesce(unit_id, batch_id)::text, event_type, state, attempts
		FROM webhook_deliveries ORDER BY id`)
	if err != nil {
		return l, err
	}
	l.Moves, err = rows[Move](ctx, conn, `SELECT at, unit::text, was, now, dispatch, coalesce(final_run::text, ''),
		coalesce(final_run_before::text, ''), cancel, due FROM chaos_moves ORDER BY seq`)
	if err != nil {
		return l, err
	}
	l.RunMoves, err = rows[RunMove](ctx, conn, `SELECT at, run::text, unit::text, was, now, attempt FROM chaos_run_moves ORDER BY seq`)
	if err != nil {
		return l, err
	}
	found, err := conn.Query(ctx, `SELECT r.id::text, unit_id::text, status, coalesce(error_class, ''), attempt, coalesce(p.pid, 0),
		coalesce(total_cost_usd, 0), result, r.started_at, live_status IS NOT NULL,
		coalesce(t.steps, -1), t.blob FROM worker_runs r
		LEFT JOIN worker_processes p ON p.id = r.worker_process LEFT JOIN transcripts t ON t.run_id = r.id ORDER BY unit_id, attempt`)
	if err != nil {
		return l, err
	}
	l.Runs, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (r Run, err error) {
		var blob []byte
		err = row.Scan(&r.ID, &r.Unit, &r.Status, &r.ErrorClass, &r.Attempt, &r.PID, &r.Cost, &r.Result, &r.Started, &r.Begun, &r.Steps, &blob)
		text := unzip(blob)
		r.Readable = stepsIn(text)
		if bytes.Contains(text, []byte(apiKey)) {
			l.Leaks = append(l.Leaks, "the transcript of run "+r.ID)
		}
		return r, err
	})
	if err != nil {
		return l, err
	}
	leaks, err := leakyTables(ctx, conn)
	l.Leaks = append(l.Leaks, leaks...)
	return l, err
}

// save keeps the ledger for whoever looks into a run that failed.
func save(path string, l Ledger) error {
	text, err := json.MarshalIndent(l, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

func rows[T any](ctx context.Context, conn *pgx.Conn, query string) ([]T, error) {
	found, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[T])
}

// stepsIn counts the steps that can be read in a stored transcript; -1 when it
// cannot be read.
func stepsIn(text []byte) int {
	var steps []json.RawMessage
	if json.Unmarshal(text, &steps) != nil {
		return -1
	}
	return len(steps)
}

// unzip returns nil for what cannot be read to its end.
func unzip(blob []byte) []byte {
	zip, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		return nil
	}
	return text
}
