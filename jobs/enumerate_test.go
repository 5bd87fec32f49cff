package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// What fails for a reason that may pass is left to all processes, after a pause.
func TestFillingIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSubmitter(t, "")
	n := store.NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Protocol: work.ProtocolNative,
		Source: json.RawMessage(`[]`)}}
	if _, _, err := s.Store.Batches.Add(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	process := uuid.New()
	taken, err := s.Store.Batches.ClaimEnumeration(t.Context(), process)
	if err != nil || taken == nil {
		t.Fatal(err)
	}
	NewEnumerator(s.Submitter).fillOne(t.Context(), process, taken)
	if err := s.Store.Batches.RenewEnumeration(t.Context(), n.ID, process); !errors.Is(err, work.ErrConflict) {
		t.Errorf("it still holds the batch: %v", err)
	}
	testkit.Eventually(t, "another tries", func() bool {
		again, err := s.Store.Batches.ClaimEnumeration(t.Context(), uuid.New())
		return err == nil && again != nil
	})
}

// The units of a batch are made by another process, which is told of it by Redis.
func TestBatchesAreEnumeratedElsewhere(t *testing.T) {
	t.Parallel()
	redis := testkit.Redis(t)
	here := newSubmitterAt(t, "", redis)
	there := NewEnumerator(NewSubmitter(here.Rules, connect(t, redis), slog.New(slog.DiscardHandler), prometheus.NewRegistry()))
	there.every = time.Hour // so that it looks when it is told only
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { there.Run(ctx) })
	options := BatchOptions{Unit: strictjson.Object(`{"backend":"mock","prompt":"Hello"}`)}
	for i := range 5 { // it may find the first without being told
		n, err := here.NewBatch(&options)
		if err != nil {
			t.Fatal(err)
		}
		b, err := here.SubmitUnits(t.Context(), n, options, source.ReadLines(strings.NewReader("{}\n"), source.Place{}),
			func(int) string { return "#" })
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "its unit is made", func() bool {
			if i == 0 { // it may not listen yet
				here.EnumerateSoon(t.Context(), b.ID)
			}
			return here.batch(t, b.ID).Status == work.BatchInProgress
		})
	}
}

// A worker process that was not given a batch's root leaves the batch to one that was.
func TestEnumerationIsLeftToWhoHasTheRoot(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	here := newSubmitter(t, docs)
	if err := os.WriteFile(filepath.Join(docs, "a.csv"), []byte("n\n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bare := Rules{Store: here.Store, Files: here.Files, FilePolicy: here.FilePolicy}
	without := NewEnumerator(NewSubmitter(&bare, connect(t, "redis://127.0.0.1:1"), slog.New(slog.DiscardHandler), prometheus.NewRegistry()))
	for _, path := range []string{"docs:a.csv", filepath.Join(docs, "a.csv")} {
		options := BatchOptions{Unit: strictjson.Object(`{"backend":"mock","prompt":"Hello {n}"}`)}
		n, err := here.NewBatch(&options)
		if err != nil {
			t.Fatal(err)
		}
		b, err := here.SubmitSource(t.Context(), n, options, source.Source{Type: source.TypeCSV, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		take := func(e *Enumerator) {
			testkit.Eventually(t, "the batch can be taken", func() bool {
				process := uuid.New()
				taken, err := e.Store.Batches.ClaimEnumeration(t.Context(), process)
				if err != nil || taken == nil {
					return false
				}
				e.fillOne(t.Context(), process, taken)
				return true
			})
		}
		take(without)
		if got := here.batch(t, b.ID); got.Status != work.BatchEnumerating {
			t.Errorf("%s: it is %s: %s", path, got.Status, got.Why)
		}
		take(NewEnumerator(here.Submitter))
		if got := here.batch(t, b.ID); got.Status != work.BatchInProgress || got.Counts.Total != 1 {
			t.Errorf("%s: it is %s with %d units", path, got.Status, got.Counts.Total)
		}
	}
}
