package handlers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/roots"
	"piecework/internal/work"
)

func rootAt(t *testing.T, dir string) roots.Roots {
	t.Helper()
	named, err := roots.Parse("docs=" + dir)
	if err != nil {
		t.Fatal(err)
	}
	return named
}

func TestFilesAndDirectoryReachTheBackend(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	dir := t.TempDir()
	for _, name := range []string{"a.txt", "sub/a.txt"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("hello"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h.start(func(o *Options) { o.Roots = rootAt(t, dir) })
	id := h.submit(func(s *work.Spec) {
		s.Payload = json.RawMessage(`{"file_path":"docs:a.txt","file_paths":["docs:sub/a.txt"]}`)
		s.WorkingDirectory = "docs:sub"
	})
	run := h.begun()
	if len(run.req.Files) != 2 || run.req.Files[0].Name != "a.txt" || run.req.Files[1].Name != "a-2.txt" ||
		run.req.Files[0].Size != 5 || !contains(run.req.Files[0].MediaType, "text/plain") {
		t.Errorf("files %+v", run.req.Files)
	}
	if filepath.Base(run.req.Dir) != "sub" {
		t.Errorf("directory %s", run.req.Dir)
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
}

// A file can vanish, or a root be taken away, between submit and run.
func TestWhatIsGoneByNowFailsTheUnit(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(func(o *Options) { o.Roots = rootAt(t, t.TempDir()) })
	for _, change := range []func(*work.Spec){
		func(s *work.Spec) { s.Payload = json.RawMessage(`{"file_path":"docs:gone.txt"}`) },
		func(s *work.Spec) { s.WorkingDirectory = "docs:gone" },
	} {
		u := h.becomes(h.submit(change), work.Failed)
		if u.Error.Class != work.ClassInvalidRequest || !contains(u.Error.Message, "gone") {
			t.Errorf("error %v", u.Error)
		}
	}
	if len(h.puppet.started) != 0 {
		t.Error("the backend was asked")
	}
}

func TestOutputFilesAreListedAndEmptyDirectoriesRemoved(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	id := h.submit(nil)
	run := h.begun()
	if err := writeFile(run.req.Dir, "report.md"); err != nil {
		t.Fatal(err)
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
	if files := h.runs(id)[0].OutputFiles; len(files) != 1 || files[0].Name != "report.md" || files[0].Size != 1 || files[0].ID == nil {
		t.Errorf("output files %+v", files)
	}
	empty := h.submit(nil)
	h.begun().end <- succeed("")
	h.becomes(empty, work.Succeeded)
	if _, err := os.Stat(filepath.Join(w.disk.Units(), empty.String())); !os.IsNotExist(err) {
		t.Errorf("the directory of a unit that left nothing is still there: %v", err)
	}
}

func TestPruneRemovesOldDirectoriesOnly(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := New(Options{Store: h.store, Log: h.log, Data: t.TempDir(), Slots: 1, Metrics: nil})
	for _, name := range []string{"old", "new"} {
		if err := os.MkdirAll(filepath.Join(w.disk.Units(), name, "work"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-30 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(w.disk.Units(), "old"), long, long); err != nil {
		t.Fatal(err)
	}
	if err := w.disk.Prune(t.Context()); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(w.disk.Units())
	if err != nil || len(entries) != 1 || entries[0].Name() != "new" {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestUnknownBackendInThisProcess(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(func(o *Options) { o.Backends = []backend.Backend{newPuppet("other")} })
	// Nobody reads this unit's queue; nor does a message that reached us all
	// the same begin what cannot run here.
	id := h.submit(nil)
	if err := w.runUnit(id); err != nil {
		t.Error(err)
	}
	if u := h.unit(id); u.State != work.Queued || u.RunCount != 0 {
		t.Errorf("unit %s after %d runs", u.State, u.RunCount)
	}
}
