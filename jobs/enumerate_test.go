package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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
