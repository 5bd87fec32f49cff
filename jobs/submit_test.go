package jobs

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/internal/blob"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// submitter is a Submitter with a database of its own, without Redis.
type submitter struct {
	*Submitter
	url string // of the database
}

// newSubmitter makes one; docs, if given, is a root.
func newSubmitter(t *testing.T, docs string) submitter {
	t.Helper()
	return newSubmitterAt(t, docs, "redis://127.0.0.1:1")
}

func newSubmitterAt(t *testing.T, docs, redis string) submitter {
	t.Helper()
	url := testkit.DB(t, migrate)
	s, err := store.Open(t.Context(), url, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	files, err := blob.Open(t.Context(), blob.Local(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	rules := Rules{Store: s, Files: files, FilePolicy: work.DefaultFilePolicy()}
	if docs != "" {
		if rules.Roots, err = rules.Roots.With("docs", docs); err != nil {
			t.Fatal(err)
		}
	}
	made := NewSubmitter(&rules, connect(t, redis), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	t.Cleanup(made.Wait)
	return submitter{made, url}
}

func (s submitter) batch(t *testing.T, id uuid.UUID) work.Batch {
	t.Helper()
	b, err := s.Store.Batches.Get(t.Context(), work.DefaultTenant, id)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
