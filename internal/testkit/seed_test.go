package testkit

import (
	"bytes"
	"testing"

	"piecework/internal/transcript"
	"piecework/store"
)

// TestSeed looks whether a ledger that was seeded is one that the migrations and
// the triggers could have made.
func TestSeed(t *testing.T) {
	t.Parallel()
	url := DB(t, nil)
	if _, err := store.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db := open(t, url)
	indexes := func() (all string) {
		t.Helper()
		err := db.QueryRowContext(t.Context(), `SELECT string_agg(indexdef, E'\n' ORDER BY indexdef) FROM pg_indexes WHERE schemaname = 'public'`).Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := indexes()
	const units = seedPiece + 100 // two pieces
	if err := Seed(t.Context(), url, units); err != nil {
		t.Fatal(err)
	}
	if after := indexes(); after != before {
		t.Errorf("indexes before:\n%s\nand after:\n%s", before, after)
	}
	for what, query := range map[string]string{
		"units":                     `SELECT count(*) FROM work_units WHERE finished_at > now() - interval '91 days'`,
		"units and their search":    `SELECT count(*) FROM work_units u JOIN unit_search s ON s.unit_id = u.id AND (s.tenant, s.backend, s.created_at, s.title, s.labels) = (u.tenant, u.backend, u.created_at, u.title, u.labels)`,
		"units and their runs":      `SELECT count(*) FROM work_units u JOIN worker_runs r ON r.unit_id = u.id AND r.id = u.final_run AND r.attempt = u.run_count AND r.status = u.state`,
		"runs and their transcript": `SELECT count(*) FROM worker_runs r JOIN transcripts t ON t.run_id = r.id AND length(blob) BETWEEN 512 AND 1024`,
		"ids in order of time":      `SELECT count(*) FROM (SELECT created_at >= coalesce(lag(created_at) OVER (ORDER BY id), '-infinity') AS later FROM work_units) AS u WHERE later`,
	} {
		var n int
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != units {
			t.Errorf("%s: %d of %d (%v)", what, n, units, err)
		}
	}
	var blob []byte
	if err := db.QueryRowContext(t.Context(), `SELECT blob FROM transcripts LIMIT 1`).Scan(&blob); err != nil {
		t.Fatal(err)
	}
	if steps, err := transcript.Decode(bytes.NewReader(blob)); err != nil || len(steps) != 3 {
		t.Errorf("a transcript has %d steps (%v)", len(steps), err)
	}
}
