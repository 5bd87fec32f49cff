// Package fakecli is a command-line agent in the shape of Claude Code, Codex,
// Cursor, opencode or the Gemini CLI that does what its prompt says, for tests
// of what runs such agents.
//
//	fakecli.go   Build and Main: how a test binary becomes the agent; the prompt
//	verb.go      what a line "@@ VERB ARGS" of a prompt does
//	dialect.go   what is written to stdout, whoever is spoken
//	claude.go    as Claude Code says it
//	codex.go     as Codex says it
//	cursor.go    as Cursor says it
//	opencode.go  as opencode says it
//	gemini.go    as the Gemini CLI says it
//	session.go   what the agent writes down of a session
//	background.go  tasks of Claude Code that outlive a turn
//	child.go     processes that the agent leaves behind
//	real.go      Real: the program that it stands in for
//
// A test package that uses it begins with
//
//	func TestMain(m *testing.M) {
//		fakecli.Main()
//		os.Exit(m.Run())
//	}
//
// and runs what Build returns. The lines of the prompt that begin with "@@ "
// are done in order; a prompt without such a line is answered with itself.
//
//	init                           system/init event
//	text TEXT                      assistant event with a text
//	tool NAME JSON                 assistant event with a tool call
//	toolresult TEXT                its result; the oldest open call is meant
//	denied TEXT                    that the oldest open call is not allowed
//	background NAME                a task goes on in the background (Claude Code)
//	backgroundends NAME            it has ended
//	result TEXT                    result event: success
//	resultbytes N                  the same, with a text of that many bytes
//	error SUBTYPE STATUS TEXT      result event: is_error; STATUS 0: none
//	cost USD, turns N              what the next result says
//	structured JSON                structured_output of the next result
//	ratelimit EPOCH                rate_limit_event: rejected until then
//	line BYTES                     a text event in one line of that many bytes
//	nul                            a text event with NUL, ANSI and bad UTF-8
//	raw TEXT, partial TEXT         stdout as it is, with and without newline
//	stderr BYTES                   that many bytes on stderr
//	env, args, cwd, read FILE      a text event with what the name says
//	env NAME                       a text event with the value of that variable
//	write FILE TEXT                writes a file
//	sleep DURATION, hang           waits
//	ignore                         SIGINT and SIGTERM do nothing from here on
//	exit N, kill, segv             ends: exit code, SIGKILL, SIGSEGV
//	spawn, setsid, daemon          leaves a child behind: in its own process
//	                               group, in a new session, double-forked
//	holdstdout [setsid]            leaves a child that keeps stdout open
//	hide N                         leaves a daemon that shows no trace of its
//	                               origin and is deaf to all but SIGKILL; it
//	                               sleeps for N seconds, see Asleep
//	attached                       a text event with the files that came along
//	next LINE                      keeps a line in its home for the next prompt
//	                               that has no line of its own
//
// The words above are Claude Code's; in another dialect each becomes what comes
// nearest. Like the real one, claude answers SIGINT with an
// error_during_execution result and exit code 0, SIGTERM with exit code 143 and
// no result, and ends with exit code 1 after a result that is an error. Codex
// answers SIGINT with exit code 1 and dies of SIGTERM, neither with a word;
// opencode does not hear SIGINT; the Gemini CLI ends with exit code 0 on either.
//
// From init on a session is kept below the agent's home, where the real one
// keeps it: with the prompt, and with the tokens used where the real one writes
// them down. An agent that is to resume a session which is not there says so
// and ends.
package fakecli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

const (
	mark = "FAKECLI"
	// raceOptions is what the race detector reads at start; without it every
	// exit of a race-enabled test binary takes a second.
	raceOptions = "GORACE"
)

// Build returns the path of an executable that is the agent in the shape of
// Claude Code; the test binary's TestMain must call Main.
func Build(t testing.TB) string {
	t.Helper()
	return BuildAs(t, "claude")
}

// BuildAs does the same for one of "claude", "codex", "cursor", "opencode" and
// "gemini".
func BuildAs(t testing.TB, dialect string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("finding the test binary: %v", err)
	}
	path := filepath.Join(t.TempDir(), dialect)
	quoted := "'" + strings.ReplaceAll(self, "'", `'\''`) + "'"
	// A process forked while the script is open for writing would keep it
	// "busy" and make its first start fail.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+mark+"="+dialect+" "+raceOptions+"=atexit_sleep_ms=0 exec "+quoted+" \"$@\"\n"), 0o755); err != nil {
		t.Fatalf("writing the agent: %v", err)
	}
	return path
}

// Main is the agent when the process was started as one; otherwise it returns
// at once.
func Main() {
	dialect := os.Getenv(mark)
	if dialect == "" {
		return
	}
	// The verb env shows what the parent gave, not what the wrapper added.
	_ = os.Unsetenv(mark)
	_ = os.Unsetenv(raceOptions)
	os.Exit(run(dialect, os.Args[1:]))
}

func run(dialect string, args []string) int {
	a := newAgent(args)
	a.speak = dialectOf(dialect, a)
	if slices.Contains(args, "--version") || slices.Contains(args, "-v") {
		fmt.Println(a.speak.version())
		return 0
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go a.obey(signals)
	stdin := bufio.NewReader(os.Stdin)
	if dialect == "opencode" && len(args) > 1 && args[0] == "models" {
		fmt.Println(catalogue)
		return 0
	}
	prompt, err := a.readPrompt(stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	if g, ok := a.speak.(*gemini); ok {
		prompt = g.command(prompt)
	}
	if a.prompt = prompt; !a.found() {
		return a.exitCode
	}
	for _, step := range steps(prompt, kept()) {
		if err := a.do(step); err != nil {
			fmt.Fprintf(os.Stderr, "fakecli: %s: %v\n", step, err)
			return 64
		}
	}
	// The real one goes on until nobody can send it another message.
	_, _ = io.Copy(io.Discard, stdin)
	return a.exitCode
}

// readPrompt reads one stream-json user message, or plain text to its end.
func (a *agent) readPrompt(stdin *bufio.Reader) (string, error) {
	line, err := stdin.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading stdin: %w", err)
	}
	var message struct {
		Type    string
		Message struct{ Content json.RawMessage }
	}
	if json.Unmarshal([]byte(line), &message) == nil && message.Type == "user" {
		for _, block := range blocksOf(message.Message.Content) {
			if block.Source.MediaType != "" {
				a.attached = append(a.attached, block.Type+" "+block.Source.MediaType)
			}
		}
		return contentText(message.Message.Content), nil
	}
	rest, err := io.ReadAll(stdin)
	if err != nil {
		return "", fmt.Errorf("reading stdin: %w", err)
	}
	if prompt := line + string(rest); strings.TrimSpace(prompt) != "" {
		return prompt, nil
	}
	return "", fmt.Errorf("input must be provided through stdin")
}

func contentText(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var texts []string
	for _, block := range blocksOf(content) {
		if block.Type == "text" {
			texts = append(texts, block.Text)
		}
	}
	return strings.Join(texts, "\n")
}

type inBlock struct {
	Type, Text string
	Source     struct {
		MediaType string `json:"media_type"`
	}
}

func blocksOf(content json.RawMessage) (blocks []inBlock) {
	_ = json.Unmarshal(content, &blocks)
	return blocks
}

// keptIn is where the verb next puts its lines.
func keptIn() string { return filepath.Join(os.Getenv("HOME"), "fakecli-next") }

func kept() string {
	text, _ := os.ReadFile(keptIn())
	return string(text)
}

func keep(line string) error {
	file, err := os.OpenFile(keptIn(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString("@@ " + line + "\n")
	return errors.Join(err, file.Close())
}

// steps picks the script out of a prompt; a prompt without one gets what an
// earlier one has kept for it.
func steps(prompt, kept string) []string {
	for _, text := range []string{prompt, kept} {
		var script []string
		for line := range strings.Lines(text) {
			if step, ok := strings.CutPrefix(strings.TrimSpace(line), "@@ "); ok {
				script = append(script, step)
			}
		}
		if len(script) > 0 {
			return script
		}
	}
	echo := strings.ReplaceAll(strings.TrimSpace(prompt), "\n", " ")
	return []string{"init", "text " + echo, "result " + echo}
}

type agent struct {
	args    []string
	session string
	resumes bool
	prompt  string
	model   string
	started time.Time
	speak   dialect
	// attached are the files that came with the prompt, beside its text.
	attached []string

	mu    sync.Mutex // one event at a time on stdout
	state            // what the next result says
}

type state struct {
	turns      int
	cost       float64
	structured json.RawMessage
	exitCode   int

	open   []call // without a result
	denied []call
	tasks  []string // in the background
	ids    int
}

func newAgent(args []string) *agent {
	a := &agent{args: args, session: uuid.NewString(), model: "fake-model", started: time.Now()}
	a.turns, a.cost = 1, 0.00045
	for i, arg := range args {
		for _, flag := range []string{"--image=", "--file="} {
			if path, ok := strings.CutPrefix(arg, flag); ok {
				a.attached = append(a.attached, "image "+path)
			}
		}
		name, value, given := strings.Cut(arg, "=")
		if !given && i < len(args)-1 {
			value = args[i+1]
		}
		switch name {
		case "--session", "--resume", "-r":
			a.session, a.resumes = value, true
		case "resume": // between it and the dash: options, and the session
			a.session, a.resumes = args[len(args)-2], true
		case "--session-id":
			a.session = value
		case "--model":
			a.model = value
		}
	}
	return a
}

func (a *agent) obey(signals <-chan os.Signal) {
	for received := range signals {
		s, ok := received.(syscall.Signal)
		if !ok {
			return
		}
		switch code := a.speak.signalled(s); {
		case code == unheard:
			continue
		case code >= 0:
			os.Exit(code)
		}
		signal.Reset(s)
		_ = die(s)
	}
}
