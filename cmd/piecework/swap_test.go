package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/work"
)

const (
	insideWord  = "word-inside-the-root"
	outsideWord = "word-outside-the-root"
)

// swapped is a root in which f and d are replaced all the time: f is a file, a
// link that leads out and a pipe; d is a directory, a link that leads out and a
// pipe.
type swapped struct {
	t         *testing.T
	dir, away string
	stopped   chan struct{}
	swapping  sync.WaitGroup
}

func newSwapped(t *testing.T) *swapped {
	t.Helper()
	s := &swapped{t: t, dir: t.TempDir(), away: t.TempDir(), stopped: make(chan struct{})}
	for dir, word := range map[string]string{filepath.Join(s.dir, "d"): insideWord, s.away: outsideWord} {
		s.must(os.MkdirAll(dir, 0o755))
		s.must(os.WriteFile(filepath.Join(dir, "word"), []byte(word), 0o600))
		s.must(os.WriteFile(filepath.Join(dir, "check"), []byte("#!/bin/sh\necho "+word+"\nexit 1\n"), 0o700))
	}
	s.must(os.WriteFile(filepath.Join(s.away, "only-outside"), nil, 0o600))
	s.must(os.Symlink(s.away, filepath.Join(s.dir, "d.link")))
	s.must(syscall.Mkfifo(filepath.Join(s.dir, "d.pipe"), 0o600))
	s.regular()
	return s
}

func (s *swapped) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

// put makes something and puts it in the place of f at one blow.
func (s *swapped) put(make func(path string) error) {
	path := filepath.Join(s.dir, "f.new")
	s.must(make(path))
	s.must(os.Rename(path, filepath.Join(s.dir, "f")))
}

func (s *swapped) regular() {
	s.put(func(path string) error { return os.WriteFile(path, []byte(insideWord), 0o600) })
}
func (s *swapped) link() {
	s.put(func(path string) error { return os.Symlink(filepath.Join(s.away, "word"), path) })
}
func (s *swapped) pipe() { s.put(func(path string) error { return syscall.Mkfifo(path, 0o600) }) }

// turn puts another in the place of d, which becomes from.
func (s *swapped) turn(from, to string) {
	s.must(os.Rename(filepath.Join(s.dir, "d"), filepath.Join(s.dir, from)))
	s.must(os.Rename(filepath.Join(s.dir, to), filepath.Join(s.dir, "d")))
}

func (s *swapped) start() {
	s.swapping.Go(func() {
		for places := []func(){s.regular, s.link, s.regular, s.pipe}; ; {
			for i, place := range places {
				place()
				other := []string{"", "d.link", "", "d.pipe"}[i]
				if other != "" {
					s.turn("d.real", other)
				}
				time.Sleep(300 * time.Microsecond)
				if other != "" {
					s.turn(other, "d.real")
				}
			}
			select {
			case <-s.stopped:
				return
			default:
			}
		}
	})
}

func (s *swapped) stop() {
	close(s.stopped)
	s.swapping.Wait()
}

// swapCases are units that use what is swapped.
var swapCases = []map[string]any{
	{"backend": "mock", "prompt": "look", "files": []string{"docs:f"}},
	{"backend": "claude", "prompt": "say what is attached", "files": []string{"docs:f"}},
	{"backend": "codex", "prompt": "say what is attached", "files": []string{"docs:f"}},
	{"backend": "claude", "prompt": "@@ init\n@@ read word\n@@ result done", "working_directory": "docs:d"},
	{"backend": "mock", "prompt": "look", "working_directory": "docs:d", "accept": map[string]any{"file_exists": "only-outside"}},
	{"backend": "mock", "prompt": "look", "working_directory": "docs:d", "accept": map[string]any{"command": []string{"./check"}}},
}

// submitSwapped submits a unit until the API finds what the unit names.
func (p *program) submitSwapped(body map[string]any) (id string, refused int) {
	p.t.Helper()
	body["max_retries"] = 0
	text, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		status, answer := p.call("POST", "/work-units", string(text))
		if strings.Contains(string(answer), outsideWord) {
			p.t.Fatalf("the API told what lies outside: %s", answer)
		}
		var u unitWithRuns
		if status >= 500 || status < 300 && json.Unmarshal(answer, &u) != nil {
			p.t.Fatalf("%d %s", status, answer)
		}
		if status < 300 {
			return u.ID.String(), refused
		}
		refused++
		time.Sleep(time.Millisecond)
	}
}

// final waits until a unit has ended.
func (p *program) final(id string) (u unitWithRuns) {
	p.t.Helper()
	testkit.Eventually(p.t, "the end of unit "+id, func() bool {
		u = p.unit(id)
		return u.State.Final()
	})
	return u
}

// What a unit names is looked at and used by one open handle: whatever takes its
// place meanwhile, nothing outside the root is read, and no pipe keeps a run, its
// cancellation or the worker process.
func TestSwappedFilesOfRuns(t *testing.T) {
	t.Parallel()
	const each = 50
	s := newSwapped(t)
	env := []string{"DATABASE_URL=" + testkit.DB(t, nil), "REDIS_URL=" + testkit.Redis(t), "PIECEWORK_DATA=" + dataDir(t), "PIECEWORK_ROOTS=docs=" + s.dir,
		"PIECEWORK_CLAUDE_PATH=" + fakecli.Build(t), "PIECEWORK_CODEX_PATH=" + fakecli.BuildAs(t, "codex"), "PIECEWORK_ACCEPT_COMMANDS=true"}
	api := launch(t, env, "api", "--listen", "127.0.0.1:0").up()
	worker := launch(t, env, "worker", "--concurrency", "4", "--grace", "1s").up()

	s.start()
	ids, refused := make([][]string, len(swapCases)), 0
	for range each {
		for i, body := range swapCases {
			id, times := api.submitSwapped(body)
			ids[i], refused = append(ids[i], id), refused+times
		}
	}
	ends := map[string]int{}
	for i := range swapCases {
		used := 0
		for _, id := range ids[i] {
			u := api.final(id)
			_, answer := api.call("GET", "/work-units/"+id, "")
			steps := ""
			if len(u.Runs) > 0 {
				steps = api.transcript(u)
			}
			if strings.Contains(string(answer)+steps, outsideWord) {
				t.Errorf("case %d: what lies outside was used: %s\n%s", i, answer, steps)
			}
			if strings.Contains(string(answer)+steps, insideWord) {
				used++
			}
			if _, looks := swapCases[i]["accept"]; looks && u.State == work.Succeeded {
				t.Errorf("case %d: the check looked outside: %s", i, answer)
			}
			class := work.Class("")
			if u.Error != nil {
				class = u.Error.Class
			}
			ends[fmt.Sprintf("%s %s", u.State, class)]++
		}
		if used == 0 && swapCases[i]["accept"] == nil {
			t.Errorf("case %d: no unit has used what lies inside", i)
		}
	}
	s.stop()
	t.Logf("%d units ended: %v; the API refused %d times", each*len(swapCases), ends, refused)
	if ends["succeeded "] == 0 || ends["failed invalid_request"] == 0 {
		t.Errorf("the units ended %v: nothing was swapped under them", ends)
	}

	s.besideAPipe(api, worker)
}

// besideAPipe sees that runs end, are cancelled, and that the worker process
// ends, while a pipe stands where units have a file.
func (s *swapped) besideAPipe(api, worker *program) {
	t := s.t
	s.regular()
	var running, queued []string
	for range 4 {
		id, _ := api.submitSwapped(map[string]any{"backend": "claude", "prompt": "@@ init\n@@ hang", "files": []string{"docs:f"}})
		running = append(running, id)
	}
	for _, id := range running {
		testkit.Eventually(t, "the run", func() bool { return api.unit(id).State == work.Running })
	}
	for range 8 {
		id, _ := api.submitSwapped(map[string]any{"backend": "mock", "prompt": "look", "files": []string{"docs:f"}, "timeout": 2})
		queued = append(queued, id)
	}
	s.pipe()
	for _, id := range running[:2] {
		api.post("/work-units/"+id+"/cancel", "")
		if u := api.final(id); u.State != work.Cancelled {
			t.Errorf("unit %s is %s", id, u.State)
		}
	}
	for _, id := range queued {
		if u := api.final(id); u.State != work.Failed || u.Error.Class != work.ClassInvalidRequest || !strings.Contains(u.Error.Message, "is no regular file") {
			t.Errorf("unit %s is %s: %v", id, u.State, u.Error)
		}
	}
	if err := worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-worker.ended:
		worker.ended <- err
		if err != nil {
			t.Errorf("the worker process ended with %v", err)
		}
	case <-time.After(testkit.Patience / 2):
		t.Error("SIGTERM does not end the worker process")
	}
}
