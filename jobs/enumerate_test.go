package jobs

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// What fails for a reason that may pass is left to all processes, after a pause.
func TestFillingIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSubmitter(t, "")
	n := store.NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Protocol: work.ProtocolNative, Source: json.RawMessage(`[]`)}}
	if _, _, err := s.Store.AddBatch(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	process := uuid.New()
	taken, err := s.Store.FillBatch(t.Context(), process)
	if err != nil || taken == nil {
		t.Fatal(err)
	}
	NewEnumerator(s.Submitter).fillOne(t.Context(), process, taken)
	if err := s.Store.KeepFilling(t.Context(), n.ID, process); !errors.Is(err, work.ErrConflict) {
		t.Errorf("it still holds the batch: %v", err)
	}
	testkit.Eventually(t, "another tries", func() bool {
		again, err := s.Store.FillBatch(t.Context(), uuid.New())
		return err == nil && again != nil
	})
}
