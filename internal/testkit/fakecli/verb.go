package fakecli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var errVerb = errors.New("no such verb")

// do carries out one line of the script.
func (a *agent) do(step string) error {
	verb, rest, _ := strings.Cut(step, " ")
	for _, group := range []func(verb, rest string) error{a.say, a.settle, a.tell, a.wait, a.leave} {
		if err := group(verb, rest); !errors.Is(err, errVerb) {
			return err
		}
	}
	return errVerb
}

// say holds the verbs that write to stdout or stderr.
func (a *agent) say(verb, rest string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch verb {
	case "init":
		a.speak.begin()
	case "text":
		writeJSON(a.speak.said(rest))
	case "tool":
		name, input, _ := strings.Cut(rest, " ")
		return a.writeTool(name, input)
	case "toolresult":
		return a.writeToolResult(rest, false)
	case "denied":
		return a.writeToolResult(rest, true)
	case "background":
		a.begins(rest)
	case "backgroundends":
		a.ends(rest)
	case "result":
		a.speak.end(rest)
	case "resultbytes":
		return a.writeResult(rest)
	case "error":
		return a.writeError(rest)
	case "ratelimit":
		return a.writeRateLimit(rest)
	case "line":
		return a.writeLine(rest)
	case "nul":
		a.writeDirt()
	case "raw":
		write(rest + "\n")
	case "partial":
		write(rest)
	case "stderr":
		return writeNoise(rest)
	default:
		return errVerb
	}
	return nil
}

// settle holds the verbs that change what the next result says.
func (a *agent) settle(verb, rest string) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch verb {
	case "cost":
		a.cost, err = strconv.ParseFloat(rest, 64)
	case "turns":
		a.turns, err = strconv.Atoi(rest)
	case "structured":
		a.structured = json.RawMessage(rest)
		if !json.Valid(a.structured) {
			err = errors.New("not JSON")
		}
	default:
		err = errVerb
	}
	return err
}

// tell holds the verbs about files and the agent's own surroundings.
func (a *agent) tell(verb, rest string) error {
	var text string
	switch verb {
	case "env":
		if rest != "" {
			text = os.Getenv(rest)
			break
		}
		names := os.Environ()
		slices.Sort(names)
		text = strings.Join(names, "\n")
	case "args":
		encoded, err := json.Marshal(a.args)
		if err != nil {
			return err
		}
		text = string(encoded)
	case "cwd":
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		text = dir
	case "attached":
		text = strings.Join(a.attached, "\n")
	case "next":
		return keep(rest)
	case "read":
		content, err := os.ReadFile(rest)
		if text = string(content); err != nil {
			text = "Error: " + err.Error()
		}
	case "write":
		name, content, _ := strings.Cut(rest, " ")
		return os.WriteFile(name, []byte(content), 0o644)
	default:
		return errVerb
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	writeJSON(a.speak.said(text))
	return nil
}

// wait holds the verbs about time, signals and the end.
func (a *agent) wait(verb, rest string) error {
	switch verb {
	case "sleep":
		d, err := time.ParseDuration(rest)
		time.Sleep(d)
		return err
	case "hang":
		time.Sleep(1000 * time.Hour)
	case "ignore":
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	case "exit":
		code, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		os.Exit(code)
	case "kill":
		return die(syscall.SIGKILL)
	case "segv":
		return dieOfSegv()
	default:
		return errVerb
	}
	return nil
}

func die(s syscall.Signal) error {
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		return fmt.Errorf("killing itself: %w", err)
	}
	select {}
}

// dieOfSegv becomes a shell first: Go's runtime would turn the signal into
// exit code 2.
func dieOfSegv() error {
	return syscall.Exec("/bin/sh", []string{"sh", "-c", "ulimit -c 0; kill -SEGV $$"}, os.Environ())
}

// leave holds the verbs that start processes.
func (a *agent) leave(verb, rest string) error {
	switch verb {
	case "spawn":
		return startSleeper(nil, false)
	case "setsid":
		return startSleeper(nil, true)
	case "holdstdout":
		return startSleeper(os.Stdout, rest == "setsid")
	case "daemon":
		return startDaemon()
	case "hide":
		return startHidden(rest)
	}
	return errVerb
}
