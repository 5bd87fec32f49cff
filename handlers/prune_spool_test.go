package handlers

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What the ledger refused is kept for a while, what it has not taken yet for ever.
func TestSetAsideFilesOfTheSpoolGo(t *testing.T) {
	t.Parallel()
	w := New(Options{Data: t.TempDir()})
	w.pruneSpool(time.Now()) // there is no spool yet
	if err := os.MkdirAll(w.spoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, stays := range map[string]bool{"old.json.refused": false, "old.json.bad": false, "old.json": true, "new.json.refused": true} {
		path, at := filepath.Join(w.spoolDir(), name), now.Add(-2*keepSetAside)
		if name[:3] == "new" {
			at = now
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		w.pruneSpool(now.Add(-keepSetAside))
		if exists(path) != stays {
			t.Errorf("%s: there %t", name, exists(path))
		}
	}
}
