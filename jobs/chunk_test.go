package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// Units of a batch are made in pieces that are under way together. Wherever the
// process that makes them stops, another goes on: each line makes one unit, and
// what is there is what stands before the place that the batch tells of.
func TestFillingStopsAnywhere(t *testing.T) {
	t.Parallel()
	const lines = 7 * pieceUnits / 2
	s := newSubmitter(t, "")
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, `{"custom_id":"c%d","backend":"mock","prompt":"Do {n}","payload":{"n":%d}}`+"\n", i, i)
	}
	n, err := s.NewBatch(&BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.SubmitUnits(t.Context(), n, BatchOptions{}, source.ReadLines(strings.NewReader(text.String()), source.Place{}),
		func(int) string { return "#" })
	if err != nil {
		t.Fatal(err)
	}
	stops := 0
	for {
		process := uuid.New()
		taken, err := s.Store.Batches.ClaimEnumeration(t.Context(), process)
		if err != nil || taken == nil {
			t.Fatalf("nobody goes on after %d stops: %v", stops, err)
		}
		var place source.Place
		if len(taken.Cursor) > 0 {
			if err := json.Unmarshal(taken.Cursor, &place); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.batch(t, b.ID).Counts.Total; n != place.Line {
			t.Fatalf("%d units are there, and the batch is at line %d", n, place.Line)
		}
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond*time.Duration(stops+1)))
		err = NewEnumerator(s.Submitter).enumerate(ctx, process, taken)
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			t.Fatal(err)
		}
		stops++
		if err := s.Store.Batches.LeaveEnumeration(t.Context(), b.ID, process, 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("it was stopped %d times", stops)
	if n := s.batch(t, b.ID).Counts.Total; n != lines {
		t.Errorf("%d units", n)
	}
}

// Custom ids that come again, in the same piece or in another, make no second
// unit.
func TestFillingFindsWhatRepeats(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	s := newSubmitter(t, docs)
	r := rand.New(rand.NewPCG(5, uint64(time.Now().UnixNano())))
	for _, mode := range []string{onInvalidSkip, onInvalidReject} {
		text, seen, again := strings.Builder{}, map[int]bool{}, 0
		text.WriteString("id,n\n")
		for i := range 4 * pieceUnits {
			id := i
			if i > 0 && r.IntN(20) == 0 { // mostly of this piece or of the one before
				id = max(0, i-1-r.IntN(2*pieceUnits))
			}
			if seen[id] {
				again++
			}
			seen[id] = true
			fmt.Fprintf(&text, "c%d,%d\n", id, i)
		}
		if err := os.WriteFile(filepath.Join(docs, mode+".csv"), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		options := BatchOptions{Unit: strictjson.Object(`{"backend":"mock","prompt":"Hello {n}"}`), OnInvalid: mode}
		n, err := s.NewBatch(&options)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.SubmitSource(t.Context(), n, options, source.Source{Type: source.TypeCSV, Path: "docs:" + mode + ".csv", CustomID: "id"})
		if err != nil {
			t.Fatal(err)
		}
		process := uuid.New()
		taken, err := s.Store.Batches.ClaimEnumeration(t.Context(), process)
		if err != nil || taken == nil {
			t.Fatal(err)
		}
		NewEnumerator(s.Submitter).fillOne(t.Context(), process, taken)
		done := s.batch(t, b.ID)
		if mode == onInvalidReject {
			if failed := done; failed.Status != work.BatchFailed || failed.Counts.Total != 0 || len(failed.Problems) == 0 {
				t.Errorf("%+v: %v", failed.Counts, failed.Problems)
			}
			continue
		}
		if done.Status != work.BatchInProgress || done.Counts.Total != len(seen) || done.Rejected != again {
			t.Errorf("%d units and %d rejected; want %d and %d", done.Counts.Total, done.Rejected, len(seen), again)
		}
		for _, p := range done.Problems {
			if p.Code != codeRepeats || p.Line < 2 || !strings.HasPrefix(p.CustomID, "c") {
				t.Errorf("%+v", p)
			}
		}
	}
}

// A custom id of a piece that is under way is in no other piece: Postgres would
// let each wait for the other.
func TestPiecesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := newSubmitter(t, "")
	n := store.NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Protocol: work.ProtocolNative,
		Source: json.RawMessage(`{}`)}}
	if _, _, err := s.Store.Batches.Add(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	process := uuid.New()
	taken, err := s.Store.Batches.ClaimEnumeration(t.Context(), process)
	if err != nil || taken == nil {
		t.Fatal(err)
	}
	db, err := sql.Open("postgres", s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	lock, err := db.BeginTx(t.Context(), nil) // no unit of the batch can be inserted
	if err == nil {
		_, err = lock.ExecContext(t.Context(), `SELECT FROM batches WHERE id = $1 FOR UPDATE`, n.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	var unlocked atomic.Bool
	var unlocking sync.WaitGroup
	defer unlocking.Wait()
	unlocking.Go(func() {
		testkit.Eventually(t, "the first piece waits", func() (waits bool) {
			_ = db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`).Scan(&waits)
			return waits
		})
		unlocked.Store(true)
		_ = lock.Rollback()
	})
	fill := enumeration{s: s.Submitter, batch: taken, process: process, turns: newTurns(), source: batchSource{OnInvalid: onInvalidSkip}}
	fill.clear()
	last := fmt.Sprint("c", pieceUnits)
	err = fill.all(t.Context(), func(yield func(item, error) bool) {
		give := func(line int, id string) bool {
			return yield(item{line: line, customID: id, body: json.RawMessage(`{"backend":"mock","prompt":"Count"}`), next: source.Place{Line: line}}, nil)
		}
		for line := 1; line <= pieceUnits; line++ {
			if !give(line, fmt.Sprint("c", line)) {
				return
			}
		}
		if give(pieceUnits+1, last); !unlocked.Load() {
			t.Error("it was taken into another piece")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if b := s.batch(t, n.ID); b.Counts.Total != pieceUnits || b.Rejected != 1 || b.Problems[0].CustomID != last {
		t.Errorf("%+v, rejected %d: %v", b.Counts, b.Rejected, b.Problems)
	}
}
