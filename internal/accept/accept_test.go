package accept

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"piecework/internal/process"
	"piecework/internal/work"
)

var supervisor process.Supervisor

func TestMain(m *testing.M) {
	supervisor = process.Main(os.Args, os.Environ())
	os.Exit(m.Run())
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, pointer := range map[string]string{
		`{}`:                                    "#/accept",
		`[]`:                                    "#/accept",
		`{"file":"x"}`:                          "#/accept",
		`{"command":""}`:                        "#/accept/command",
		`{"command":[]}`:                        "#/accept/command",
		`{"command":[""]}`:                      "#/accept/command",
		`{"command":3}`:                         "#/accept",
		`{"command":["a","b\u0000"]}`:           "#/accept/command",
		`{"timeout":3,"file_exists":"x"}`:       "#/accept/timeout",
		`{"command":"x","timeout":0}`:           "#/accept/timeout",
		`{"command":"x","timeout":"2h"}`:        "#/accept/timeout",
		`{"file_exists":"../x"}`:                "#/accept/file_exists",
		`{"file_exists":"/etc/passwd"}`:         "#/accept/file_exists",
		`{"file_exists":""}`:                    "#/accept/file_exists",
		`{"file_exists":"["}`:                   "#/accept/file_exists",
		`{"output_matches":"("}`:                "#/accept/output_matches",
		`{"output_matches":"((a{99}){99}){9}"}`: "#/accept/output_matches",
		`{"output_matches":""}`:                 "#/accept/output_matches",
		`{"output_matches":"` + strings.Repeat("a", maxPattern+1) + `"}`: "#/accept/output_matches",
		`{"expression":"1 + 1"}`:                                 "#/accept/expression",
		`{"expression":"nothing == 1"}`:                          "#/accept/expression",
		`{"expression":"` + strings.Repeat(" ", maxCheck) + `"}`: "#/accept",
	} {
		_, err := Parse([]byte(text))
		var invalid *work.Invalid
		if !errors.As(err, &invalid) || invalid.Pointer != pointer {
			t.Errorf("%.80s: %v", text, err)
		}
	}
	for _, text := range []string{
		`{"command":"make test","timeout":"10m"}`, `{"command":["go","test"],"file_exists":"out/*.json","output_matches":"(?i)done","expression":"json.ok"}`,
	} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func verdict(t *testing.T, check string, r Result) Verdict {
	t.Helper()
	c, err := Parse([]byte(check))
	if err != nil {
		t.Fatal(err)
	}
	if r.Env == nil {
		r.Env = []string{"PATH=/usr/bin:/bin"}
	}
	r.Supervisor, r.Mark = supervisor, process.NewMark(t.Name())
	v, err := c.Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestOfTheOutput(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ check, output, unmet string }{
		{`{"output_matches":"^DONE$"}`, "DONE", ""},
		{`{"output_matches":"^DONE$"}`, "I am waiting", "does not match the regular expression ^DONE$"},
		{`{"output_matches":"a"}`, strings.Repeat("a", maxLooked+1), "looks at 1048576 at most"},
		{`{"expression":"json.total == 3 && output.contains('total')"}`, `{"total":3}`, ""},
		{`{"expression":"json.total == 3"}`, `{"total":4}`, "json.total == 3 is false"},
		{`{"expression":"json.total == 3"}`, `no JSON`, "could not be answered"},
		{`{"expression":"json == null"}`, `no JSON`, ""},
		{`{"output_matches":"x","expression":"output == 'y'"}`, "xy", "is false"},
	} {
		if v := verdict(t, test.check, Result{Output: test.output}); !strings.Contains(v.Unmet, test.unmet) || test.unmet == "" &&
			v.Unmet != "" {
			t.Errorf("%s of %.20q: %q", test.check, test.output, v.Unmet)
		}
	}
}

// A file is looked for in the directory only, whatever links lie there.
func TestFileExists(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(dir, "report.md"): "", filepath.Join(dir, "out", "a.json"): "", filepath.Join(outside, "secret"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for pattern, exists := range map[string]bool{
		"report.md": true, "out/a.json": true, "*.md": true, "out/*.json": true, "o*/?.json": true, "out": true,
		"a.json": false, "*.json": false, "*/*/*": false, "link/secret": false, "link/*": false,
	} {
		if v := verdict(t, `{"file_exists":"`+pattern+`"}`, Result{Dir: dir}); (v.Unmet == "") != exists {
			t.Errorf("%s: %q", pattern, v.Unmet)
		}
	}
	if v := verdict(t, `{"file_exists":"x"}`, Result{Dir: filepath.Join(dir, "gone")}); v.Unmet == "" {
		t.Error("a directory that is gone has the file")
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct{ check, unmet, said string }{
		{`{"command":"grep -q answer && pwd"}`, "", dir},
		{`{"command":["/bin/sh","-c","exit 0"]}`, "", ""},
		{`{"command":"echo why; echo because >&2; exit 3"}`, "ended with exit status 3", "because"},
		{`{"command":"kill -9 $$"}`, "ended with", ""},
		{`{"command":"echo $HOME:$SECRET"}`, "", ":"},
		{`{"command":"sleep 1000","timeout":0.05}`, "took longer than 50ms", ""},
		{`{"command":["no-such-program"]}`, "is not on the PATH", ""},
		{`{"command":["./no-such-program"]}`, "could not be started: start ./no-such-program: no such file", ""},
		{`{"command":"head -c 100000 /dev/zero | tr '\\0' x; echo the end; exit 1"}`, "exit status 1", "the end"},
	} {
		v := verdict(t, test.check, Result{Dir: dir, Output: "the answer"})
		if !strings.Contains(v.Unmet, test.unmet) || test.unmet == "" && v.Unmet != "" || !strings.Contains(v.Said, test.said) ||
			len(v.Said) > maxShown+10 {
			t.Errorf("%s: %q, said %.100q", test.check, v.Unmet, v.Said)
		}
	}
}

// What a command leaves running dies with it, and so does a command whose run is
// stopped.
func TestCommandLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	v := verdict(t, `{"command":"setsid sh -c 'echo > left; exec sleep 1000' 9>pipe & while [ ! -e left ]; do sleep 0.01; done"}`, Result{Dir: dir})
	if _, err := io.ReadAll(held); v.Unmet != "" || err != nil { // ends when nobody holds the pipe any more
		t.Errorf("%q, error %v", v.Unmet, err)
	}
	c, err := Parse([]byte(`{"command":"touch begun; sleep 1000"}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "begun")); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := c.Run(ctx, Result{Dir: dir, Env: []string{"PATH=/usr/bin:/bin"}, Supervisor: supervisor,
		Mark: process.NewMark(t.Name())}); err != nil || ctx.Err() == nil {
		t.Errorf("error %v, context %v", err, ctx.Err())
	}
}

// A check looks at the directory that was looked at before, whatever lies at its
// path by now.
func TestDirectoryThatWasReplaced(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, away := filepath.Join(base, "dir"), filepath.Join(base, "away")
	syscall.ForkLock.RLock() // a process forked meanwhile would keep the programs busy
	for d, status := range map[string]string{dir: "0", away: "1"} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{filepath.Base(d): "", "check": "#!/bin/sh\nexit " + status + "\n"} {
			if err := os.WriteFile(filepath.Join(d, name), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	syscall.ForkLock.RUnlock()
	opened, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := os.Rename(dir, filepath.Join(base, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(away, dir); err != nil {
		t.Fatal(err)
	}
	r := Result{Dir: dir, OpenedDir: opened}
	for check, met := range map[string]bool{
		`{"file_exists":"dir"}`: true, `{"file_exists":"d*"}`: true, `{"file_exists":"away"}`: false, `{"file_exists":"a*"}`: false,
		`{"command":["./check"]}`: runtime.GOOS == "linux", `{"command":"./check"}`: runtime.GOOS == "linux",
	} {
		if v := verdict(t, check, r); (v.Unmet == "") != met {
			t.Errorf("%s: %q", check, v.Unmet)
		}
	}
}
