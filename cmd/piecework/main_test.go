package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"piecework/internal/process"
	"piecework/internal/testkit"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/work"
)

// The test binary is the program itself when this is set.
const asProgram = "PIECEWORK_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	process.Main(os.Args, os.Environ()) // for the servers in it
	fakecli.Main()
	if os.Getenv(asProgram) != "" {
		_ = os.Unsetenv(asProgram)
		main()
	}
	testkit.Main(m)
}

// program is a running piecework.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    *safeBuffer
	ready  chan string
	ended  chan error
	server string
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// launch starts a command of the program with nothing of our environment but
// what it names.
func launch(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(self, args...), log: &safeBuffer{}, ready: make(chan string, 1), ended: make(chan error, 1)}
	p.cmd.Env = append([]string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + os.Getenv("TMPDIR")}, env...)
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(p.log, lines.Text())
			if address, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
				p.ready <- address
			}
		}
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.log)
		}
	})
	return p
}

// up waits for the ready line.
func (p *program) up() *program {
	p.t.Helper()
	select {
	case p.server = <-p.ready:
	case err := <-p.ended:
		p.ended <- err
		p.t.Fatalf("ended before it was ready: %v\n%s", err, p.log)
	case <-time.After(testkit.Patience):
		p.t.Fatalf("not ready within %s\n%s", testkit.Patience, p.log)
	}
	return p
}

func (p *program) stop() error {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(testkit.Patience):
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("did not stop by itself")
	}
}

func (p *program) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	err := <-p.ended
	p.ended <- err
}

func dev(t *testing.T, data string, more ...string) *program {
	return launch(t, nil, append([]string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--claude-path", "/nowhere/claude"}, more...)...)
}

// dataDir is a directory that Postgres can enter whoever runs the tests.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "piecework-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

type unitWithRuns struct {
	work.Unit
	Runs []work.Run `json:"runs"`
}

func (p *program) call(method, path, body string) (int, []byte) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.server+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func (p *program) post(path, body string) unitWithRuns {
	p.t.Helper()
	status, answer := p.call("POST", path, body)
	if status >= 300 {
		p.t.Fatalf("POST %s: %d %s", path, status, answer)
	}
	var u unitWithRuns
	if err := json.Unmarshal(answer, &u); err != nil {
		p.t.Fatal(err)
	}
	return u
}

func (p *program) unit(id string) unitWithRuns {
	p.t.Helper()
	_, answer := p.call("GET", "/work-units/"+id, "")
	var u unitWithRuns
	if err := json.Unmarshal(answer, &u); err != nil {
		p.t.Fatalf("%v: %s", err, answer)
	}
	return u
}

// The promise of the README: kill everything in the middle of the work, start
// again, and every unit has exactly one result.
func TestKilledDevLosesNothing(t *testing.T) {
	t.Parallel()
	data := dataDir(t)
	first := dev(t, data, "--concurrency", "20").up()
	var ids []string
	for i := range 20 {
		u := first.post("/work-units", fmt.Sprintf(`{"backend":"mock","prompt":"unit %d","payload":{"mock":{"sleep":"3s","steps":3}}}`, i))
		ids = append(ids, u.ID.String())
	}
	testkit.Eventually(t, "all units running with steps", func() bool {
		running := 0
		for _, id := range ids {
			if u := first.unit(id); u.State == work.Running && u.Runs[0].HasTranscript {
				running++
			}
		}
		return running == len(ids)
	})
	first.kill()

	second := dev(t, data, "--concurrency", "20").up()
	for _, id := range ids {
		var u unitWithRuns
		testkit.Eventually(t, "a final state", func() bool { u = second.unit(id); return u.State.Final() })
		if u.State != work.Succeeded || u.Output == nil || u.Losses != 1 || len(u.Runs) != 2 {
			t.Errorf("unit %s: %s after %d runs, %d losses", id, u.State, len(u.Runs), u.Losses)
			continue
		}
		if u.Runs[0].Status != work.RunLost || u.Runs[1].Status != work.RunSucceeded || u.Runs[0].Result != nil {
			t.Errorf("unit %s: runs %s, %s", id, u.Runs[0].Status, u.Runs[1].Status)
		}
		_, lost := second.call("GET", "/runs/"+u.Runs[0].ID.String()+"/transcript", "")
		if !bytes.Contains(lost, []byte(`"type"`)) {
			t.Errorf("the lost run's transcript is gone: %s", lost)
		}
	}
}

func TestSecondDevOnTheSameDataSaysSo(t *testing.T) {
	t.Parallel()
	data := dataDir(t)
	dev(t, data).up()
	second := dev(t, data)
	err := <-second.ended
	second.ended <- err
	if second.cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(second.log.String(), "another piecework dev uses "+data) {
		t.Errorf("ended with %v:\n%s", err, second.log)
	}
}

func TestInterruptEndsDevCleanly(t *testing.T) {
	t.Parallel()
	p := dev(t, dataDir(t)).up()
	p.post("/work-units", `{"backend":"mock","prompt":"long","payload":{"mock":{"sleep":"1h"}}}`)
	_ = p.cmd.Process.Signal(os.Interrupt)
	if err := <-p.ended; err != nil {
		t.Errorf("ended with %v", err)
	} else {
		p.ended <- err
	}
}

// API and worker processes apart, several of each, started at once on an
// empty database: they migrate under a lock and share the work.
func TestSplitForProduction(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + testkit.DB(t, nil), "REDIS_URL=" + testkit.Redis(t), "PIECEWORK_DATA=" + dataDir(t)}
	api := []*program{launch(t, env, "api", "--listen", "127.0.0.1:0"), launch(t, env, "api", "--listen", "127.0.0.1:0")}
	workers := []*program{launch(t, env, "worker", "--concurrency", "2"), launch(t, env, "worker", "--concurrency", "2")}
	for _, p := range append(api, workers...) {
		p.up()
	}
	seen := map[string]bool{}
	for i := range 12 {
		u := api[i%2].post("/work-units?wait=30s", `{"backend":"mock","prompt":"hi"}`)
		if u.State != work.Succeeded {
			t.Fatalf("unit %s is %s", u.ID, u.State)
		}
		seen[u.Runs[0].WorkerProcess.String()] = true
	}
	if status, body := workers[0].call("GET", "/metrics", ""); status != 200 || !bytes.Contains(body, []byte("piecework_runs_total")) {
		t.Errorf("metrics of a worker process: %d", status)
	}
	if err := workers[0].stop(); err != nil {
		t.Errorf("a worker process did not end with 0: %v", err)
	}
	if u := api[0].post("/work-units?wait=30s", `{"backend":"mock","prompt":"the other one does it"}`); u.State != work.Succeeded {
		t.Errorf("unit %s is %s", u.ID, u.State)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"api"}, "DATABASE_URL is not set"},
		{[]string{"dev", "--listen", "0.0.0.0:0"}, "no key protects it"},
		{[]string{"dev", "--listen", "7070"}, "write HOST:PORT"},
		{[]string{"dev", "--lease", "1s"}, "at least 3s"},
		{[]string{"dev", "--heartbeat", "25s"}, "a third of --lease"},
		{[]string{"dev", "--concurrency", "0"}, "between 1 and 10000"},
		{[]string{"dev", "--queues", "Upper=1"}, "lower-case"},
		{[]string{"dev", "--roots", "docs=/not/there"}, "docs"},
		{[]string{"dev", "--probe", "0s"}, "--probe"},
		{[]string{"dev", "--data", ""}, "give a directory"},
		{[]string{"dev", "--nonsense"}, "unknown flag"},
		{[]string{"migrate"}, "--database-url"},
	} {
		var out bytes.Buffer
		ctx, end := context.WithCancel(t.Context())
		app := &App{Ctx: ctx, Stdout: spoken(end), Stderr: &out, Version: "v0", Getenv: func(string) string { return "" }}
		args := c.args
		if args[0] == "dev" {
			args = append([]string{"dev", "--data", dataDir(t)}, args[1:]...)
		}
		code := run(app, args)
		end()
		if strings.Contains(out.String(), "postgres: ") {
			t.Errorf("%v: a server was started before the flags were looked at", c.args)
		}
		if code != exitUsage || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit code %d, %q; want %d and %q", c.args, code, out.String(), exitUsage, c.want)
		}
	}
}

// spoken is an output that ends a server as soon as it says that it serves.
type spoken func()

func (s spoken) Write(text []byte) (int, error) {
	s()
	return len(text), nil
}

func TestEmptyVariablesCountAsUnset(t *testing.T) {
	for _, name := range []string{"PIECEWORK_LEASE", "DATABASE_URL", "PIECEWORK_DATA", "OTHER"} {
		t.Setenv(name, "")
	}
	t.Setenv("PIECEWORK_LISTEN", "x=")
	dropEmpty(os.Environ())
	for name, want := range map[string]bool{"PIECEWORK_LEASE": false, "DATABASE_URL": false, "PIECEWORK_DATA": false, "OTHER": true,
		"PIECEWORK_LISTEN": true} {
		if _, set := os.LookupEnv(name); set != want {
			t.Errorf("%s is set: %t", name, set)
		}
	}
}

// onPath is a directory with a piecework that speaks to p.
func (p *program) onPath() string {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	bin := p.t.TempDir()
	wrapper := fmt.Sprintf("#!/bin/sh\n%s=1 PIECEWORK_SERVER=%s exec %s \"$@\"\n", asProgram, p.server, self)
	if err := os.WriteFile(filepath.Join(bin, "piecework"), []byte(wrapper), 0o755); err != nil {
		p.t.Fatal(err)
	}
	return bin
}

// The README's commands are run as they stand there, against a dev of our own.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	p := dev(t, dataDir(t)).up()
	bin := p.onPath()
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		script := block[1]
		if !strings.Contains(script, "curl") && !strings.Contains(script, "submit") {
			continue
		}
		ran++
		script = strings.NewReplacer("http://127.0.0.1:7070", p.server, "bin/piecework doctor", "bin/piecework doctor || true").Replace(script)
		script = strings.ReplaceAll(script, "bin/piecework", filepath.Join(bin, "piecework"))
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		shell := exec.CommandContext(ctx, "sh", "-ec", script)
		shell.Dir = "../.."
		out, err := shell.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("succeeded")) {
			t.Errorf("%s\n%v\n%s", script, err, out)
		}
	}
	if ran != 3 {
		t.Errorf("%d blocks of commands were run; want 3", ran)
	}
}
