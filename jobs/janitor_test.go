package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"database/sql"

	"piecework/internal/blob"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// ages is a database full of old rows, one or more in each table.
type ages struct {
	*fixture
	db    *sql.DB
	files *blob.Store
}

func newAges(t *testing.T) *ages {
	t.Helper()
	url := testkit.DB(t, migrate)
	s, err := store.Open(t.Context(), url, 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	files, err := blob.Open(t.Context(), blob.Local(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return &ages{fixture: &fixture{t: t, store: s, queue: connect(t, testkit.StartRedis(t).URL)}, db: db, files: files}
}

func (a *ages) exec(query string, args ...any) {
	a.t.Helper()
	if _, err := a.db.ExecContext(a.t.Context(), query, args...); err != nil {
		a.t.Fatalf("%s: %v", query, err)
	}
}

func (a *ages) count(query string, args ...any) (n int) {
	a.t.Helper()
	if err := a.db.QueryRowContext(a.t.Context(), query, args...).Scan(&n); err != nil {
		a.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// clean runs a janitor with such a retention until it finds nothing.
func (a *ages) clean(keep Retention) {
	a.t.Helper()
	j := &Janitor{Store: a.store, Files: a.files, Log: slog.New(slog.DiscardHandler), Keep: keep}
	for removed := true; removed; {
		removed = false
		_, err := j.Once(a.t.Context(), func(string, int) { removed = true })
		a.must(err)
	}
}

const (
	oldUnit = `INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, prompt, payload, missing_key, timeout, idle_timeout, check_at,
		created_at, started_at, finished_at, idempotency_key, body_hash, batch_id, custom_id)
		SELECT id::uuid, 'default', 'succeeded', 't', 'mock', 'default', 5, 'p', '{}', 'fail', 60, 60, now(), now() - interval '400 days', now() - interval '400 days',
			now() - interval '400 days', id, '\x00', batch::uuid, batch FROM (VALUES ($1, $2)) AS v(id, batch)`
	unitA, unitB, unitC  = "00000000-0000-7000-8000-00000000000a", "00000000-0000-7000-8000-00000000000b", "00000000-0000-7000-8000-00000000000c"
	runA, runB           = "00000000-0000-7000-8000-0000000000a1", "00000000-0000-7000-8000-0000000000b1"
	fileA, upload, input = "00000000-0000-7000-8000-0000000000a2", "00000000-0000-7000-8000-0000000000a3", "00000000-0000-7000-8000-0000000000a4"
	batchB               = "00000000-0000-7000-8000-0000000000b0"
)

// fill makes old rows in every table. Unit a is on its own, b is of a batch whose
// synthesis is c.
func (a *ages) fill() {
	a.t.Helper()
	for _, query := range []string{
		`INSERT INTO files (id, tenant, filename, bytes, media_type, sha256, created_at, purpose) SELECT id::uuid, 'default', 'f', 1, 'text/plain', sha256(''), now() - interval '400 days', ''
			FROM unnest(ARRAY['` + upload + `', '` + input + `']) AS u(id)`,
		`INSERT INTO batches (id, tenant, title, status, protocol, source, unit, created_at, finished_at, idempotency_key, body_hash, synthesis_unit, input_file)
			VALUES ('` + batchB + `', 'default', 't', 'completed', 'native', '{}', '{}', now() - interval '400 days', now() - interval '400 days', 'k', '\x00', '` + unitC + `', '` + input + `')`,
	} {
		a.exec(query)
	}
	a.exec(oldUnit, unitA, nil)
	a.exec(oldUnit, unitB, batchB)
	a.exec(oldUnit, unitC, nil)
	for _, query := range []string{
		`INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, started_at, completed_at)
			VALUES ('` + runA + `', 'default', '` + unitA + `', 1, 'mock', 'succeeded', now() - interval '400 days', now() - interval '400 days'),
			('` + runB + `', 'default', '` + unitB + `', 1, 'mock', 'succeeded', now() - interval '400 days', now() - interval '400 days')`,
		`INSERT INTO transcripts (run_id, steps, blob) VALUES ('` + runA + `', 1, 'x'), ('` + runB + `', 1, 'x')`,
		`INSERT INTO transcript_chunks (run_id, body) VALUES ('` + runA + `', '{}')`,
		`INSERT INTO files (id, tenant, run_id, filename, bytes, media_type, sha256, created_at) VALUES ('` + fileA + `', 'default', '` + runA + `', 'f', 1, 'text/plain', sha256(''), now() - interval '400 days')`,
		`INSERT INTO unit_files VALUES ('` + unitA + `', '` + upload + `')`,
		`INSERT INTO provider_answers VALUES ('` + unitA + `', 200, '', '', now() - interval '400 days')`,
		`INSERT INTO provider_batches (id, backend, created_at, finished_at, look_at) VALUES (gen_random_uuid(), 'openai', now() - interval '400 days', now() - interval '400 days', now())`,
		`INSERT INTO result_cache VALUES ('default', sha256('a'), '` + runA + `', now() - interval '400 days')`,
		`INSERT INTO webhook_deliveries (id, tenant, receiver, url, event_type, body, state, next_at, check_at, created_at)
			VALUES ('00000000-0000-7000-8000-000000000001', 'default', gen_random_uuid(), 'u', 'e', '', 'dead', now(), now(), now() - interval '400 days')`,
		`INSERT INTO trigger_deliveries (id, tenant, trigger, delivery, event, outcome, received_at) VALUES (gen_random_uuid(), 'default', 't', 'd', '', 'filtered', now() - interval '400 days')`,
		`INSERT INTO worker_processes (id, hostname, pid, version, slots, queues, backends, started_at, beat_at, lease_until, stopped_at)
			VALUES (gen_random_uuid(), 'h', 1, '', 1, '{}', '[]', now(), now(), now(), now() - interval '2 hours')`,
		`INSERT INTO pauses (kind, name, since, resumed_at) VALUES ('queue', 'q', NULL, now() - interval '400 days')`,
		`INSERT INTO tallies SELECT 'default', s, now() - interval '400 days', 'run', '', '', '', '', '', 0, 1, 0, 0 FROM unnest(ARRAY[60, 3600, 86400]) AS s`,
		`INSERT INTO stray_blobs VALUES (gen_random_uuid(), now())`,
	} {
		a.exec(query)
	}
}

var tableLine = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (.+?) \\| (.*?) ?\\|")

// Every table of the schema has somebody who removes its rows: docs/retention.md
// names them, and rows that are old are gone when the janitor and the reconciler
// have done their rounds.
func TestEveryTableHasARemover(t *testing.T) {
	t.Parallel()
	a := newAges(t)
	text, err := os.ReadFile("../docs/retention.md")
	a.must(err)
	_, text2, _ := strings.Cut(string(text), "## Every table")
	removers, withUnits := map[string]string{}, map[string]bool{} // the second: not while units are kept for ever
	for _, line := range tableLine.FindAllStringSubmatch(text2, -1) {
		removers[line[1]] = line[2]
		withUnits[line[1]] = strings.HasPrefix(line[2], "with their ") || line[3] == "`PIECEWORK_KEEP`" && !strings.HasPrefix(line[2], "janitor after")
	}
	rows, err := a.db.QueryContext(t.Context(), `SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'goose_db_version'`)
	a.must(err)
	defer func() { _ = rows.Close() }()
	var tables []string
	for rows.Next() {
		var name string
		a.must(rows.Scan(&name))
		tables = append(tables, name)
		if removers[name] == "" {
			t.Errorf("nobody removes rows of the table %s: docs/retention.md does not name it", name)
		}
	}
	a.must(rows.Err())
	for name := range removers {
		if !slices.Contains(tables, name) {
			t.Errorf("docs/retention.md names the table %s, which is not there", name)
		}
	}
	a.fill()
	inHands := regexp.MustCompile("^`DELETE /|^nobody:") // by people, or bounded
	for _, name := range tables {
		if n := a.count(`SELECT count(*) FROM ` + name); n == 0 && !inHands.MatchString(removers[name]) {
			t.Errorf("the test makes no old row in %s", name)
		}
	}
	keep := Retention{Transcripts: time.Hour, Keys: time.Hour, Deliveries: time.Hour} // units for ever
	for _, keep.Units = range []time.Duration{0, 365 * 24 * time.Hour} {
		a.clean(keep)
		rec := &Reconciler{Store: a.store, Queue: a.queue, Log: slog.New(slog.DiscardHandler)}
		a.must(rec.Once(t.Context()))
		for _, name := range tables {
			if inHands.MatchString(removers[name]) || keep.Units == 0 && withUnits[name] {
				continue
			}
			if n := a.count(`SELECT count(*) FROM ` + name); n > 0 {
				t.Errorf("%d old rows are left in %s (%s), units are kept for %v", n, name, removers[name], keep.Units)
			}
		}
	}
}

// By default nothing goes that was paid for.
func TestDefaultRetentionKeepsResults(t *testing.T) {
	t.Parallel()
	a := newAges(t)
	a.fill()
	a.clean(DefaultRetention)
	for query, want := range map[string]int{
		`SELECT count(*) FROM work_units`:                                   3,
		`SELECT count(*) FROM batches WHERE deleted_at IS NULL`:             1,
		`SELECT count(*) FROM files`:                                        3,
		`SELECT count(*) FROM transcripts WHERE removed_at IS NULL`:         2,
		`SELECT count(*) FROM work_units WHERE idempotency_key IS NOT NULL`: 0,
		`SELECT count(*) FROM batches WHERE idempotency_key IS NOT NULL`:    0,
		`SELECT count(*) FROM webhook_deliveries`:                           0,
		`SELECT count(*) FROM worker_processes`:                             0,
		`SELECT count(*) FROM stray_blobs WHERE remove_at < now()`:          0,
	} {
		if got := a.count(query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

// A transcript goes before its run, which then says so.
func TestTranscriptsGoBeforeTheirRuns(t *testing.T) {
	t.Parallel()
	a := newAges(t)
	a.fill()
	a.exec(`DELETE FROM transcript_chunks`)
	id := work.DefaultTenant
	runs := func() work.Run {
		list, _, err := a.store.Runs.List(t.Context(), store.RunFilter{Tenant: id, Limit: 10})
		a.must(err)
		return list[0]
	}
	if r := runs(); !r.HasTranscript || r.TranscriptGone != nil {
		t.Errorf("before: %+v", r)
	}
	a.clean(Retention{Transcripts: 500 * 24 * time.Hour})
	if r := runs(); !r.HasTranscript {
		t.Errorf("too young: %+v", r)
	}
	a.clean(Retention{Transcripts: time.Hour})
	r := runs()
	if r.HasTranscript || r.TranscriptGone == nil || a.count(`SELECT count(*) FROM transcripts WHERE octet_length(blob) > 0`) > 0 {
		t.Errorf("after: %+v", r)
	}
	if _, err := a.store.Transcripts.Open(t.Context(), id, r.ID); !errors.As(err, new(*work.RemovedError)) {
		t.Errorf("read of a transcript that was removed: %v", err)
	}
}

// What goes wrong with one duty, or takes too long, is nothing to the others.
func TestDutiesDoNotStopEachOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broken := errors.New("broken")
	var done []string
	note := func(name string, n int, err error) func(context.Context) (int, error) {
		return func(context.Context) (int, error) { done = append(done, name); return n, err }
	}
	patience, end := context.WithTimeout(t.Context(), testkit.Patience)
	defer end()
	hang := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-patience.Done(): // then its budget was no bound
		}
		return ctx.Err()
	}
	left := 3
	f.rec.table = []duty{
		{name: "fails", budget: time.Hour, do: note("fails", 0, broken)},
		{name: "hangs", budget: time.Millisecond, do: func(ctx context.Context) (int, error) { return 0, hang(ctx) }},
		{name: "postgres takes too long", budget: time.Millisecond, do: func(ctx context.Context) (int, error) {
			return 0, &work.Unavailable{What: "postgres", Err: hang(ctx)}
		}},
		{name: "pieces", budget: time.Hour, piece: pieceRows, do: func(context.Context) (int, error) {
			if left--; left > 0 {
				return pieceRows, nil
			}
			return 1, nil
		}},
		{name: "last", budget: time.Hour, do: note("last", 0, nil)},
	}
	err := f.rec.Once(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(fmt.Sprint(err), "hangs: it took longer than 1ms") || errors.As(err, new(*work.Unavailable)) {
		t.Errorf("error %v", err)
	}
	if !slices.Equal(done, []string{"fails", "last"}) || left != 0 {
		t.Errorf("done %v, %d pieces left", done, left)
	}
}

// Units that are overdue are ended in pieces; a paused batch is not looked at each
// second.
func TestRoundsAreBounded(t *testing.T) {
	t.Parallel()
	a := newAges(t)
	a.exec(`INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, prompt, payload, missing_key, timeout, idle_timeout, check_at, created_at, deadline)
		SELECT gen_random_uuid(), 'default', 'queued', 't', 'mock', 'default', 5, 'p', '{}', 'fail', 60, 60, now(), now(), now() - interval '1 second' FROM generate_series(1, 2500)`)
	for _, want := range []int64{pieceRows, pieceRows, 500, 0} {
		if n, err := a.store.Units.ExpireDeadlines(t.Context()); err != nil || n != want {
			t.Fatalf("%d ended, want %d; error %v", n, want, err)
		}
	}
	a.exec(`INSERT INTO batches (id, tenant, title, status, protocol, source, unit, created_at, paused_at)
		SELECT gen_random_uuid(), 'default', 't', s, 'native', '{}', '{}', now(), CASE WHEN paused THEN now() END
		FROM unnest(ARRAY['in_progress', 'testing', 'cancelling', 'finalizing']) AS s, (VALUES (true), (false)) AS p(paused)`)
	each, err := a.store.Batches.Live(t.Context(), false)
	a.must(err)
	idle, err := a.store.Batches.Live(t.Context(), true)
	if a.must(err); len(each) != 6 || len(idle) != 2 {
		t.Errorf("%d batches are looked at each second, %d now and then", len(each), len(idle))
	}
}
