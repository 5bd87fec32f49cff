package upkeep

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What Postgres refused is kept for a while, what it has not taken yet for ever.
func TestSetAsideFilesOfTheSpoolGo(t *testing.T) {
	t.Parallel()
	spool := NewSpool(nil, filepath.Join(t.TempDir(), "spool"), nil, slog.New(slog.DiscardHandler))
	prune := func(before time.Time) {
		if err := spool.prune(before); err != nil {
			t.Error(err)
		}
	}
	prune(time.Now()) // there is no spool yet
	if err := os.MkdirAll(spool.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, stays := range map[string]bool{"old.json.refused": false, "old.json.bad": false, "old.json": true, "new.json.refused": true} {
		path, at := filepath.Join(spool.Dir, name), now.Add(-2*keepSetAside)
		if name[:3] == "new" {
			at = now
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		prune(now.Add(-keepSetAside))
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("%s: there %t", name, err == nil)
		}
	}
}
