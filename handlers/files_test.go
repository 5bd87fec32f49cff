package handlers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// upload keeps a file as the API does.
func (h *fixture) upload(name, content string) work.File {
	h.t.Helper()
	f := work.File{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Name: name, MediaType: "text/plain"}
	stored, err := h.files.Put(h.t.Context(), f.ID, strings.NewReader(content), 1<<20)
	if err != nil {
		h.t.Fatal(err)
	}
	f.Size, f.SHA256 = stored.Size, stored.SHA256
	if f, err = h.store.Files.Add(h.t.Context(), f); err != nil {
		h.t.Fatal(err)
	}
	return f
}

func (h *fixture) content(id uuid.UUID) string {
	h.t.Helper()
	r, err := h.files.Open(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

func attach(files ...work.File) func(*work.Spec) {
	none := 0
	return func(s *work.Spec) {
		s.MaxRetries = &none
		for _, f := range files {
			s.Files = append(s.Files, f.ID.String())
		}
	}
}

func TestUploadsReachTheBackend(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	id := h.submit(attach(h.upload("a.txt", "one"), h.upload("a.txt", "two"), h.upload("-rf", "three"), h.upload("ü 漢.md", "")))
	run := h.begun()
	var names, texts []string
	for _, f := range run.req.Files {
		text, err := os.ReadFile(f.Path)
		if err != nil || f.Size != int64(len(text)) || filepath.Base(f.Path) != f.Name || !strings.HasPrefix(f.Path, w.disk.Units()) {
			t.Errorf("%+v: %v", f, err)
		}
		names, texts = append(names, f.Name), append(texts, string(text))
	}
	if !slices.Equal(names, []string{"a.txt", "a-2.txt", "_-rf", "ü 漢.md"}) || !slices.Equal(texts, []string{"one", "two", "three", ""}) {
		t.Errorf("names %q, texts %q", names, texts)
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
	if _, err := os.Stat(filepath.Join(w.disk.Units(), id.String())); !os.IsNotExist(err) {
		t.Errorf("the files are still there: %v", err)
	}
	if outs := h.runs(id)[0].OutputFiles; len(outs) > 0 {
		t.Errorf("inputs became outputs: %+v", outs)
	}
}

func TestNamesOnDisk(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"report.pdf": "report.pdf", "-rf": "_-rf", ".env": "_.env", "..": "_..", "a/b/c.txt": "c.txt", `..\x`: "x", "/": "_",
		strings.Repeat("é", 120) + ".txt": strings.Repeat("é", 98) + ".txt",
	} {
		if got := safeName(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

func TestUploadsThatCannotBeHad(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	dir := t.TempDir()
	h.files = openFiles(t, dir)
	h.start(nil)
	path := func(f work.File) string { return filepath.Join(dir, f.ID.String()[34:], f.ID.String()) }
	changed, missing, deleted := h.upload("changed.txt", "x"), h.upload("missing.txt", "x"), h.upload("deleted.txt", "x")
	if err := os.WriteFile(path(changed), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path(missing)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file  work.File
		class work.Class
		words string
	}{{changed, work.ClassInfra, "not what was uploaded"}, {missing, work.ClassInfra, "PIECEWORK_FILES"}} {
		if u := h.becomes(h.submit(attach(c.file)), work.Failed); u.Error.Class != c.class || !contains(u.Error.Message, c.words) ||
			!contains(u.Error.Message, c.file.Name) {
			t.Errorf("%s: %v", c.file.Name, u.Error)
		}
	}
	// Deleted between an end and a person's retry.
	id := h.submit(attach(deleted))
	h.begun().end <- backend.Result{Error: work.Fail(work.ClassRefusal, "no")}
	h.becomes(id, work.Failed)
	if err := h.store.Files.Delete(t.Context(), work.DefaultTenant, deleted.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Units.Retry(t.Context(), work.DefaultTenant, id, store.Changes{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "second run", func() bool { return len(h.runs(id)) == 2 })
	if u := h.becomes(id, work.Failed); u.Error.Class != work.ClassInvalidRequest || !contains(u.Error.Message, "was deleted") {
		t.Errorf("deleted: %v", u.Error)
	}
}

func openFiles(t *testing.T, dir string) *blob.Store {
	t.Helper()
	files, err := blob.Open(t.Context(), blob.Local(dir))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A run's own directory is compared before and after: the second run finds
// there what the first one left.
func TestOutputFilesAreStored(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	secret := "hunter2hunter2"
	h.start(func(o *Options) { o.FilePolicy.MaxBytes, o.Secrets = 100, []string{secret} })
	one := 1
	id := h.submit(func(s *work.Spec) { s.MaxRetries = &one })
	run := h.begun()
	outside := filepath.Join(t.TempDir(), "outside.txt")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(outside, "not yours")
	write(filepath.Join(run.req.Dir, "same.txt"), "same")
	write(filepath.Join(run.req.Dir, "changed.txt"), "before")
	run.end <- backend.Result{Error: work.Fail(work.ClassInfra, "again, please")}
	run = h.begun()
	for name, text := range map[string]string{
		"changed.txt": "after, longer", "new.md": "# new", "sub/-deep.bin": "\x00\x01", "empty": "", "big": strings.Repeat("x", 101),
		"leak.txt": "the key is " + secret, ".git/config": "noise",
	} {
		write(filepath.Join(run.req.Dir, name), text)
	}
	for name, target := range map[string]string{"link.txt": outside, "linked": filepath.Dir(outside), "inside": "new.md"} {
		if err := os.Symlink(target, filepath.Join(run.req.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(run.req.Dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	run.end <- succeed("done")
	h.becomes(id, work.Succeeded)
	runs := h.runs(id)
	want := map[string]string{"changed.txt": "after, longer", "new.md": "# new", "sub/-deep.bin": "\x00\x01", "empty": ""}
	reasons := map[string]string{"big": "larger than 100 bytes", "leak.txt": "holds a secret"}
	for _, f := range runs[1].OutputFiles {
		text, stored := want[f.Name]
		switch {
		case stored && f.ID != nil && h.content(*f.ID) == text && f.MediaType != "" && f.Size == int64(len(text)):
			delete(want, f.Name)
		case !stored && f.ID == nil && reasons[f.Name] != "" && contains(f.Reason, reasons[f.Name]):
			delete(reasons, f.Name)
		default:
			t.Errorf("unexpected: %+v", f)
		}
	}
	if len(want)+len(reasons) > 0 {
		t.Errorf("missing: %v, %v", want, reasons)
	}
	if len(runs[0].OutputFiles) != 2 {
		t.Errorf("the first run's files: %+v", runs[0].OutputFiles)
	}
}

// An agent must not be able to show the worker process another directory for
// its own.
func TestDirectoryThatBecameALinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	outside := t.TempDir()
	if err := writeFile(outside, "private"); err != nil {
		t.Fatal(err)
	}
	id := h.submit(nil)
	run := h.begun()
	if err := os.Remove(run.req.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, run.req.Dir); err != nil {
		t.Fatal(err)
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
	if outs := h.runs(id)[0].OutputFiles; len(outs) > 0 {
		t.Errorf("output files %+v", outs)
	}
}

// Nor must a pipe that it puts there keep the worker process.
func TestDirectoryThatBecameAPipeKeepsNobody(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	id := h.submit(nil)
	run := h.begun()
	if err := errors.Join(os.Remove(run.req.Dir), syscall.Mkfifo(run.req.Dir, 0o600)); err != nil {
		t.Fatal(err)
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
}

func TestManyOutputFilesAreBounded(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(func(o *Options) { o.FilePolicy.MaxBytes = 1 })
	id := h.submit(nil)
	run := h.begun()
	for i := range maxListed + 5 {
		if err := writeFile(run.req.Dir, fmt.Sprintf("f%04d", i)); err != nil {
			t.Fatal(err)
		}
	}
	run.end <- succeed("")
	h.becomes(id, work.Succeeded)
	outs := h.runs(id)[0].OutputFiles
	stored := slices.DeleteFunc(slices.Clone(outs), func(f work.OutputFile) bool { return f.ID == nil })
	if len(outs) != maxListed+1 || len(stored) != maxOutputs {
		t.Fatalf("%d listed, %d stored", len(outs), len(stored))
	}
	for i, want := range map[int]string{maxOutputFiles - 1: "together", maxOutputFiles: "more than 200 files",
		maxListed - 1: "more than 200 files", maxListed: "more than 200 files"} {
		if !contains(outs[i].Reason, want) {
			t.Errorf("file %d: %+v, want %q", i, outs[i], want)
		}
	}
	if last := outs[maxListed]; last.Name != "… and 5 more" {
		t.Errorf("%+v", last)
	}
}

// What the run came to does not hang on the file store.
func TestOutputFilesWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	dir := filepath.Join(t.TempDir(), "files")
	w := New(Options{Store: h.store, Files: openFiles(t, dir), FilePolicy: work.DefaultFilePolicy(), Data: t.TempDir(), Slots: 1,
		Log: h.log})
	w.files.storeTime = 300 * time.Millisecond
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.txt", "b.txt"} {
		if err := writeFile(own, name); err != nil {
			t.Fatal(err)
		}
	}
	outs := w.files.outputs(t.Context(), prepared{own: own}, func(s string) string { return s })
	if len(outs) != 2 || outs[0].ID != nil || !contains(outs[0].Reason, "file store") || outs[1].ID != nil || outs[1].Reason == "" {
		t.Errorf("output files %+v", outs)
	}
}

// A run that is stopped stores nothing; what it left is the next one's.
func TestFilesOfAStoppedRunAreTheNextOnes(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	data := t.TempDir()
	first := h.start(func(o *Options) { o.Data = data })
	id := h.submit(nil)
	run := h.begun()
	if err := writeFile(run.req.Dir, "a.txt"); err != nil {
		t.Fatal(err)
	}
	first.stop()
	<-first.done
	h.start(func(o *Options) { o.Data = data })
	h.begun().end <- succeed("")
	h.becomes(id, work.Succeeded)
	runs := h.runs(id)
	if outs := runs[0].OutputFiles; len(outs) != 1 || outs[0].ID != nil || !contains(outs[0].Reason, "stopped") {
		t.Errorf("of the stopped run: %+v", outs)
	}
	if outs := runs[1].OutputFiles; len(outs) != 1 || outs[0].ID == nil {
		t.Errorf("of the next run: %+v", outs)
	}
}

func TestSecretsAreFoundAcrossPieces(t *testing.T) {
	t.Parallel()
	redact := func(s string) string { return strings.ReplaceAll(s, "hunter2hunter2", "[redacted]") }
	for _, before := range []int{0, 512<<10 - 5, 512<<10 - 14, 1 << 20, 1<<20 - 7} {
		text := strings.Repeat("x", before) + "hunter2hunter2" + strings.Repeat("y", 100)
		if found, err := holdsSecret(strings.NewReader(text), redact); !found || err != nil {
			t.Errorf("after %d bytes: %t, %v", before, found, err)
		}
		if found, err := holdsSecret(strings.NewReader(text[:len(text)-101]), redact); found || err != nil {
			t.Errorf("after %d bytes, cut: %t, %v", before, found, err)
		}
	}
}
