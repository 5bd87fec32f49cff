package testkit

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"piecework/internal/transcript"
)

const (
	seedPiece = 20_000 // units that one statement makes
	seedBlobs = 32     // transcripts that differ
)

// seedUnits makes units that are over, evenly spread over 90 days up to now: those
// with the numbers from the first argument to the second, of so many as the third
// says. Of a hundred 93 have succeeded; the others failed, were cancelled or timed
// out. Every ten-thousandth title has the word zeppelin.
const seedUnits = `
WITH n AS MATERIALIZED (
    SELECT i, at,
        (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(i %% 4096), 3, '0') || '8' || lpad(to_hex(i), 15, '0'))::uuid AS id,
        CASE WHEN c < 93 THEN 'succeeded' WHEN c < 97 THEN 'failed' WHEN c = 97 THEN 'cancelled' ELSE 'timed_out' END AS state,
        CASE WHEN c IN (98, 99) THEN 'timeout' WHEN c IN (93, 94) THEN 'infra' WHEN c = 95 THEN 'schema_invalid' WHEN c = 96 THEN 'crash' END AS class,
        (ARRAY['mock', 'anthropic', 'openai', 'claude', 'mock', 'anthropic', 'openai', 'mock', 'codex', 'mock'])[1 + (hashint8(i + 5000000000) & 2147483647) %% 10] AS backend,
        format('Summarise the letter of %%s %%s about %%s %%s %%s in three sentences for the clerk who answers it; name amounts and dates, and say whether an answer is due.',
            w[1 + hashint8(i) & 31], initcap(left(md5(i::text), 6)), w[1 + (hashint8(i) >> 5) & 31], w[1 + (hashint8(i) >> 10) & 31],
            CASE WHEN i %% 10000 = 0 THEN 'zeppelin' ELSE w[1 + (hashint8(i) >> 15) & 31] END) AS prompt,
        jsonb_build_object('kind', 'letter', 'project', 'project-' || i %% 20, 'customer', 'c-' || i %% 997) AS labels,
        json_build_object('customer', i, 'text', repeat(md5(i::text) || ' ', 10)) AS payload
    FROM generate_series(%[1]d, %[2]d) AS i, LATERAL (SELECT now() - interval '90 days' * (1 - i / %[3]d::float8) AS at, (hashint8(i + 7000000000) & 2147483647) %% 100 AS c) AS a,
        (SELECT string_to_array('amber basalt cedar delta ember fjord garnet harbour indigo juniper kestrel larch meadow nettle orchard pebble quarry russet saddle thicket umber valley willow yarrow zephyr anchor beacon copper drift elder fern glacier', ' ') AS w) AS words
), units AS (
    INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, labels, prompt, payload, missing_key, timeout, idle_timeout,
        run_count, failures, check_at, summary, final_run, error_class, error_message, cost_usd, created_at, started_at, finished_at)
    SELECT id, 'default', state, prompt || left(payload->>'text', 40), backend, 'default', 4, labels, prompt, payload, 'fail', 3600, 600,
        1, (state = 'failed')::int, at, left(prompt, 100), id, class, 'seeded', 0.01, at, at + interval '20 ms', at + interval '1 s'
    FROM n
), search AS (
    INSERT INTO unit_search (unit_id, tenant, backend, created_at, title, labels)
    SELECT id, 'default', backend, at, prompt || left(payload->>'text', 40), labels FROM n
), runs AS (
    INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, model, rendered_prompt, result, error_class, error_message,
        num_turns, input_tokens, output_tokens, total_cost_usd, duration_ms, execution_time, started_at, completed_at, rev)
    SELECT id, 'default', id, 1, backend, state, 'model-' || i %% 3, prompt, left(prompt, 150), class, 'seeded',
        1, 300, 60, 0.01, 980, 0.98, at + interval '20 ms', at + interval '1 s', 3
    FROM n
)
INSERT INTO transcripts (run_id, steps, blob)
SELECT id, 3, (%[4]s)[1 + i %% %[5]d] FROM n`

// seedTranscripts are as many transcripts of 0.5 to 1 KB, as an array of SQL.
func seedTranscripts(count int) (string, error) {
	var codec transcript.Codec
	random := rand.New(rand.NewPCG(1, 2)) // letters that compress to two thirds
	letters := func(n int) string {
		text := make([]byte, n)
		for i := range text {
			text[i] = byte('a' + random.IntN(26))
		}
		return string(text)
	}
	blobs := make([]string, count)
	for i := range blobs {
		call := transcript.Content{Type: "text", Text: letters(350 + 18*i)}
		blob, err := codec.Encode([]transcript.Step{
			{Number: 1, Rev: 1, Type: "system_text", Text: "seeded"},
			{Number: 2, Rev: 2, Type: "action", Content: []transcript.Content{call}},
			{Number: 3, Rev: 3, Type: "action", Content: []transcript.Content{{Type: "text", Text: letters(350)}}},
		})
		if err != nil {
			return "", err
		}
		blobs[i] = fmt.Sprintf(`'\x%x'::bytea`, blob)
	}
	return "ARRAY[" + strings.Join(blobs, ", ") + "]", nil
}

// Seed makes so many units in a migrated database without any: 1 KB each, with a
// title of 200 bytes, three labels, one run and its transcript. Triggers do not run
// and the indexes are made when all rows are there, by the definitions they had; what
// triggers would have written is written here.
func Seed(ctx context.Context, url string, units int) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	drop, create, err := indexesOf(ctx, db)
	if err != nil {
		return fmt.Errorf("find the indexes: %w", err)
	}
	if _, err := db.ExecContext(ctx, drop); err != nil {
		return fmt.Errorf("drop the indexes: %w", err)
	}
	transcripts, err := seedTranscripts(seedBlobs)
	if err != nil {
		return err
	}
	var pieces []string
	for from := 1; from <= units; from += seedPiece {
		pieces = append(pieces, fmt.Sprintf(seedUnits, from, min(from+seedPiece-1, units), units, transcripts, seedBlobs))
	}
	if err := onTwo(ctx, db, pieces); err != nil {
		return fmt.Errorf("make units: %w", err)
	}
	if err := onTwo(ctx, db, create); err != nil {
		return fmt.Errorf("make the indexes: %w", err)
	}
	_, err = db.ExecContext(ctx, "VACUUM ANALYZE")
	return err
}

// indexesOf returns a statement that drops the indexes of the tables that are
// filled, but for those of constraints, and those that make them again.
func indexesOf(ctx context.Context, db *sql.DB) (drop string, create []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index i
		WHERE indrelid = ANY('{work_units,unit_search,worker_runs,transcripts}'::regclass[]) AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid)
		ORDER BY indrelid <> 'unit_search'::regclass, 1`) // those that take longest first
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name, definition string
		if err := rows.Scan(&name, &definition); err != nil {
			return "", nil, err
		}
		names, create = append(names, name), append(create, definition)
	}
	return "DROP INDEX " + strings.Join(names, ", "), create, rows.Err()
}

// onTwo runs statements on two connections whose writes cause nothing else.
func onTwo(ctx context.Context, db *sql.DB, statements []string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan string, len(statements))
	for _, statement := range statements {
		next <- statement
	}
	close(next)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			conn, err := db.Conn(ctx)
			if err != nil {
				stop(err)
				return
			}
			defer func() { _ = conn.Close() }()
			if _, err = conn.ExecContext(ctx, "SET session_replication_role = replica; SET maintenance_work_mem = '512MB'; SET synchronous_commit = off"); err != nil {
				stop(err)
				return
			}
			for statement := range next {
				if _, err := conn.ExecContext(ctx, statement); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
