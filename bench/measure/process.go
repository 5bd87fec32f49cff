package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Roles of processes in the tables.
const (
	client    = "client"
	api       = "api"
	worker    = "worker"
	postgres  = "postgres"
	redisRole = "redis"
)

var roles = []string{client, api, worker, postgres, redisRole}

// process is a process that this program has started. All are started from the
// main thread, and are killed with it.
type process struct {
	role  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
	log   string // file with what it writes to stderr
	url   string // of a server
	ended chan struct{}
	err   error // how it ended
}

func startProcess(role, logFile, path string, args, env []string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{role: role, cmd: exec.Command(path, args...), log: logFile, ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = env, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, write, err := os.Pipe() // not StdoutPipe, which Wait would close
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout = write
	p.lines = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	_ = write.Close()
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// line is the next line that the process writes to stdout.
func (p *process) line(limit time.Duration) (string, error) {
	type answer struct {
		text string
		err  error
	}
	said := make(chan answer, 1)
	go func() {
		text, err := p.lines.ReadString('\n')
		said <- answer{strings.TrimSpace(text), err}
	}()
	select {
	case a := <-said:
		if a.err != nil {
			return "", fmt.Errorf("%s ended: %s", p.role, p.lastWords())
		}
		return a.text, nil
	case <-time.After(limit):
		return "", fmt.Errorf("%s said nothing for %s: %s", p.role, limit, p.lastWords())
	}
}

func (p *process) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-800):]))
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.in.Close()
}

// tick is the unit of times in /proc: USER_HZ, which is 100 on Linux.
const tick = time.Second / 100

// cpuOf is the time that a process has computed, with its children that have ended.
func cpuOf(pid int) (time.Duration, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, text := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}

// statOf has the fields of /proc/PID/stat from the third, the state.
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 15 {
		return nil, errors.New("a process whose state cannot be read")
	}
	return fields, nil
}

// cpuOfFamily is the time of a process and of all its children, those that have
// ended too. Of Postgres these are all its backends and helpers.
func cpuOfFamily(pid int) (time.Duration, error) {
	sum, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	parent := strconv.Itoa(pid)
	paths, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range paths {
		child, _ := strconv.Atoi(filepath.Base(path))
		fields, err := statOf(child)
		if err != nil || fields[1] != parent {
			continue
		}
		if d, err := cpuOf(child); err == nil {
			sum += d
		}
	}
	return sum, nil
}

// childSettings is what a child process of this program is told.
type childSettings struct {
	Database, Redis, URL string
	Units, Callers       int
	Interval             float64 // seconds, of polling
	Pause                bool    // between two units
	Rate                 float64 // units a second at most; 0: no limit
	Query                string  // of the request
	Node                 string  // directory with Node's packages
}

// childResult is what it answers.
type childResult struct {
	Units   int
	Seconds float64
	Values  map[string]float64
}

// childVariable makes this program a child: its value is what the child does.
const childVariable = "PIECEWORK_MEASURE_CHILD"

// startChild starts this program as a process of its own, which prepares
// itself, says "ready", and waits.
func (s *stage) startChild(role, name string, settings childSettings) (*process, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	return s.start(role, s.self, nil, append(os.Environ(), childVariable+"="+name, "PIECEWORK_MEASURE_SETTINGS="+string(text)))
}

// start starts a process that lives as long as the stage, and waits until it
// says that it is ready.
func (s *stage) start(role, path string, args, env []string) (*process, error) {
	p, err := startProcess(role, filepath.Join(s.dir, role+".log"), path, args, env)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	text, err := p.line(time.Minute)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(text, "ready") {
		return nil, fmt.Errorf("%s is not ready: %s", role, text)
	}
	_, p.url, _ = strings.Cut(text, " ")
	return p, nil
}
