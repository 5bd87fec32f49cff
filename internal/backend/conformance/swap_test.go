package conformance

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An agent that opens a file by itself gets a copy of the one that was looked at,
// whatever lies at its path by now.
func TestAgentsGetTheFileThatWasLookedAt(t *testing.T) {
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := backendtest.NewRequest(t, backendtest.Script("init", "result fine"))
			inside, outside := pixel(), append(pixel(), 0)
			if !attachesImages(name) {
				inside, outside = []byte("inside\x00"), []byte("outside\x00")
			}
			path, away := filepath.Join(req.Dir, "f"), filepath.Join(t.TempDir(), "f")
			must(t, os.WriteFile(path, inside, 0o600))
			must(t, os.WriteFile(away, outside, 0o600))
			opened, err := os.Open(path)
			must(t, err)
			defer opened.Close()
			req.Files = []backend.File{{Name: "f", Path: path, Opened: opened, Size: int64(len(inside))}}
			must(t, os.Remove(path))
			must(t, os.Symlink(away, path))
			// What an earlier run of the agent may have left.
			placed := filepath.Join(req.Home, "files", "f")
			must(t, os.Mkdir(filepath.Dir(placed), 0o700))
			must(t, syscall.Mkfifo(placed, 0o600))
			if attachesImages(name) {
				req.Prompt = backendtest.Script("init", "attached", "result fine")
			}
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name), req)
			got.WantSuccess(t, "fine")
			if data, err := (backend.File{Path: placed}).Read(); err != nil || string(data) != string(inside) {
				t.Errorf("the agent's copy is %q, %v", data, err)
			}
			if said := strings.Join(got.Texts(transcript.Action), "\n"); attachesImages(name) && !strings.Contains(said, "image "+placed) {
				t.Errorf("attached: %s", said)
			}
		})
	}
}

// attachesImages tells whether an agent is given images by their paths.
func attachesImages(name string) bool { return name == "codex" || name == "opencode" }

// An agent starts in the directory that was looked at, and is told of the
// instructions there.
func TestAgentsStartInTheDirectoryThatWasLookedAt(t *testing.T) {
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := backendtest.NewRequest(t, backendtest.Script("init", "read word", "result fine"))
			away := t.TempDir()
			must(t, os.WriteFile(filepath.Join(req.Dir, "word"), []byte("inside"), 0o600))
			must(t, os.WriteFile(filepath.Join(away, "word"), []byte("outside"), 0o600))
			must(t, os.WriteFile(filepath.Join(away, backend.ProjectFiles(name)[0]), nil, 0o600))
			var err error
			req.OpenedDir, err = os.OpenRoot(req.Dir)
			must(t, err)
			defer req.OpenedDir.Close()
			must(t, os.Rename(req.Dir, req.Dir+"-old"))
			must(t, os.Symlink(away, req.Dir))
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name), req)
			if runtime.GOOS != "linux" { // it cannot be entered by its handle
				if got.Success || got.Error == nil || !strings.Contains(got.Error.Message, "replaced") {
					t.Errorf("%+v", got.Result)
				}
				return
			}
			got.WantSuccess(t, "fine")
			if said := strings.Join(got.Texts(transcript.Action), "\n"); !strings.Contains(said, "inside") || strings.Contains(said, "outside") {
				t.Errorf("the agent has read %q", said)
			}
			if said := strings.Join(got.Texts(transcript.SystemText), "\n"); strings.Contains(said, backend.ProjectFiles(name)[0]) {
				t.Errorf("the instructions of another directory: %s", said)
			}
		})
	}
}

// A pipe that an earlier run of the agent has put in the place of a file of its
// home keeps no run.
func TestPipesInAHomeKeepNobody(t *testing.T) {
	for name, files := range map[string][]string{
		"codex": {".codex/config.toml"}, "opencode": {"opencode-plugin.js", "tmp/stdout.jsonl", "opencode-session"},
		"gemini": {".gemini/settings.json", "tmp/stdout.jsonl"}, "cursor": {"cursor-session"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := backendtest.NewRequest(t, backendtest.Script("init", "result fine"))
			req.Resume = name == "cursor" || name == "opencode"
			for _, file := range files {
				path := filepath.Join(req.Home, file)
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				must(t, syscall.Mkfifo(path, 0o600))
			}
			backendtest.Execute(t.Context(), t, fakeAs(t, name), req).WantSuccess(t, "fine")
		})
	}
}
