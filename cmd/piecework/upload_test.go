package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"piecework/internal/blob"
	"piecework/internal/work"
)

// A file that is outside every root is uploaded, the backend sees it, and what
// the run leaves behind can be downloaded.
func TestFilesFromUploadToDownload(t *testing.T) {
	t.Parallel()
	p := dev(t, dataDir(t)).up()
	path := filepath.Join(t.TempDir(), "ü notes.txt")
	if err := os.WriteFile(path, []byte("one two three"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) string {
		t.Helper()
		s := newStage(t)
		if code := run(s.App, append(args, "--server", p.server)); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, s.errs.String())
		}
		return s.out.String()
	}
	uploaded := strings.TrimSpace(command("upload", path))
	id := strings.TrimSpace(command("submit", "-b", "mock", "--prompt", "Look", "-f", path, "-f", uploaded,
		"--payload", `{"mock":{"files":{"out/report.md":"# ready"}}}`))
	command("wait", id)
	u := p.unit(id)
	if u.State != work.Succeeded || !strings.Contains(*u.Output, "ü notes-2.txt: 3 words") {
		t.Fatalf("%s, output %s", u.State, *u.Output)
	}
	out := u.Runs[0].OutputFiles
	if len(out) != 1 || out[0].ID == nil || out[0].Name != "out/report.md" {
		t.Fatalf("output files %+v", out)
	}
	status, content := p.call("GET", "/files/"+out[0].ID.String()+"/content", "")
	if status != 200 || string(content) != "# ready" {
		t.Errorf("%d %q", status, content)
	}
	if shown := command("get", id); !strings.Contains(shown, "out/report.md") || !strings.Contains(shown, out[0].ID.String()) {
		t.Errorf("get shows:\n%s", shown)
	}
	if _, page := p.call("GET", "/units/"+id, ""); !strings.Contains(string(page), `<a href="/files/`+out[0].ID.String()+`/content">out/report.md</a>`) {
		t.Error("the page has no link to the file")
	}
	if status, answer := p.call("DELETE", "/files/"+uploaded, ""); status != 204 {
		t.Errorf("delete: %d %s", status, answer)
	}
}

func TestOnlyRefusedFilesAreUploaded(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const id = "0198f0c2-7b1e-7c3a-9d55-2f6a1c0e4b77"
	refused := filepath.Join(dir, "b")
	var submits, uploads []string
	remote := serveRoutes(t, map[string]http.HandlerFunc{
		"POST /work-units": func(w http.ResponseWriter, r *http.Request) {
			var body submission
			_ = json.NewDecoder(r.Body).Decode(&body)
			paths := body.Payload["file_paths"].([]any)
			submits = append(submits, fmt.Sprint(paths))
			for i, path := range paths {
				if path == refused || path == "docs:gone" {
					refuse(w, 422, fmt.Sprintf(`{"title":"no","status":422,"errors":[{"pointer":"#/payload/file_paths/%d","detail":"is outside"}]}`, i))
					return
				}
			}
			w.WriteHeader(202)
			fmt.Fprintf(w, `{"id":%q}`, id)
		},
		"POST /files": func(w http.ResponseWriter, r *http.Request) {
			file, header, err := r.FormFile("file")
			if err != nil {
				refuse(w, 400, `{"title":"no form"}`)
				return
			}
			text, _ := io.ReadAll(file)
			uploads = append(uploads, header.Filename+"="+string(text))
			w.WriteHeader(201)
			fmt.Fprintf(w, `{"id":%q}`, id)
		},
	})
	submit := func(files ...string) error {
		s := newStage(t)
		args := []string{"submit", "-b", "mock", "--prompt", "x", "--server", remote.Server}
		for _, file := range files {
			args = append(args, "-f", file)
		}
		return execute(s.App, args)
	}
	if err := submit(filepath.Join(dir, "a"), refused); err != nil {
		t.Fatal(err)
	}
	if len(submits) != 2 || !strings.HasSuffix(submits[1], "/a "+id+"]") || len(uploads) != 1 || uploads[0] != "b=b" {
		t.Errorf("submits %q, uploads %q", submits, uploads)
	}
	if err := submit("docs:gone"); exitCode(err) != exitUsage || len(uploads) != 1 {
		t.Errorf("%v, uploads %q", err, uploads)
	}
}

func TestUploadOfWhatIsNoFile(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "gone"), t.TempDir()} {
		s := newStage(t)
		if err := execute(s.App, []string{"upload", "--server", "127.0.0.1:1", path}); exitCode(err) != exitUsage {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestStorageSettings(t *testing.T) {
	t.Parallel()
	good := Storage{MaxFiles: 4, MaxFileBytes: 10, FileSuffixes: " .PDF, .txt,"}
	data := t.TempDir()
	store, policy, err := good.open(t.Context(), data)
	if err != nil || store.Name() != "file://"+data+"/files" || fmt.Sprint(policy) != "{4 10 [.pdf .txt]}" {
		t.Fatalf("%v, %v", policy, err)
	}
	for want, bad := range map[string]Storage{
		"--max-files":     {MaxFiles: -1, MaxFileBytes: 1},
		"--file-suffixes": {MaxFileBytes: 1, FileSuffixes: "pdf"},
		"--files":         {MaxFileBytes: 1, Files: "ftp://x"},
	} {
		if _, _, err := bad.open(t.Context(), data); exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestDoctorTriesTheFileStore(t *testing.T) {
	t.Parallel()
	if f := checkFiles(t.Context(), blob.Local(t.TempDir())); f.Status != work.FindingWarn || !strings.Contains(f.Mend, "other machines") {
		t.Errorf("%+v", f)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := checkFiles(t.Context(), blob.Local(file)); f.Status != work.FindingFail || f.Mend == "" {
		t.Errorf("%+v", f)
	}
}
