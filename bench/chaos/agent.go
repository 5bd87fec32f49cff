package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"piecework/internal/process"
	"piecework/internal/testkit/fakecli"
)

// agentDir tells the agent where to note that it began.
const agentDir = "CHAOS_AGENTS"

// agents is where agents note that they began.
type agents struct {
	dir     string
	program string
}

// agentsIn makes a program to be run as Claude Code. The test binary's TestMain
// must call AgentMain.
func agentsIn(t testing.TB, out string) agents {
	t.Helper()
	a := agents{dir: filepath.Join(out, "agents"), program: filepath.Join(out, "claude")}
	if err := os.MkdirAll(a.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s' \"$@\"\n", agentDir, a.dir, fakecli.Build(t))
	syscall.ForkLock.RLock() // or a fork would keep the script open, and busy
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(a.program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return a
}

// AgentMain is the agent when the process was started as one; otherwise it
// returns at once.
func AgentMain() {
	dir := os.Getenv(agentDir)
	_, unit, ok := strings.Cut(workingDirectory(), "/units/")
	if dir != "" && ok {
		unit, _, _ = strings.Cut(unit, "/")
		if err := begin(dir, unit); err != nil {
			fmt.Fprintln(os.Stderr, "chaos:", err)
			os.Exit(64)
		}
	}
	fakecli.Main()
}

func workingDirectory() string {
	dir, _ := os.Getwd()
	return dir
}

// begin takes the unit's lock and never lets go: all that this agent starts
// inherits it, so it is free when the last of the tree is dead. Whoever finds it
// taken runs beside another tree of the same unit.
func begin(dir, unit string) error {
	lock, err := syscall.Open(agents{dir: dir}.lock(unit), syscall.O_RDWR|syscall.O_CREAT, 0o666)
	if err != nil {
		return fmt.Errorf("open lock: %w", err)
	}
	run, _, _ := strings.Cut(os.Getenv("PIECEWORK_MARK"), "@")
	e := Event{At: time.Now(), Kind: KindAgent, Unit: unit, Run: run, PID: os.Getpid()}
	e.Crowded = syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB) != nil
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "agents.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return err
}

// report brings the agents' notes into the history.
func (a agents) report(b *book) {
	noted, err := ReadHistory(filepath.Join(a.dir, "agents.jsonl"))
	if err != nil && !os.IsNotExist(err) {
		panic(err)
	}
	for _, e := range noted {
		b.write(e)
	}
}

// reportOrphans notes what lives and bears the mark of one of our worker
// processes.
// Those that are being killed get some time to die.
func reportOrphans(b *book, limit time.Duration) {
	ours := map[int]bool{}
	for _, e := range b.all() {
		if e.Kind == KindProcess && e.What == "started" {
			ours[e.PID] = true
		}
	}
	left := agentsOf(ours)
	for end := time.Now().Add(limit); len(left) > 0 && time.Now().Before(end); left = agentsOf(ours) {
		time.Sleep(100 * time.Millisecond)
	}
	for _, pid := range left {
		b.write(Event{Kind: KindOrphan, PID: pid})
	}
}

// agentsOf lists the living processes that bear the mark of one of these worker
// processes.
func agentsOf(workers map[int]bool) []int {
	return process.Marked(func(mark string) bool {
		number, _, _ := strings.Cut(mark[strings.LastIndexByte(mark, '@')+1:], "-")
		worker, err := strconv.Atoi(number)
		return err == nil && workers[worker]
	})
}

// alive tells whether a process of a unit's trees is. No agent may begin
// meanwhile: it would find the lock taken.
func (a agents) alive(unit string) bool {
	lock, err := syscall.Open(a.lock(unit), syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false // it has had none
	}
	defer func() { _ = syscall.Close(lock) }()
	return syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

func (a agents) lock(unit string) string { return filepath.Join(a.dir, unit+".lock") }
