package fakecli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// dialect is what differs between the agents that this one can be: the events
// on stdout, and the answer to a signal.
type dialect interface {
	version() string
	begin()
	said(text string) any // the event of a text
	call(call)
	answer(c call, text string, denied bool)
	end(text string)
	fail(subtype string, status int, text string)
	limit(resets int64)
	// signalled makes ready for the end and returns the exit code; a negative
	// one means to die of the signal, or that it goes unheard.
	signalled(syscall.Signal) int
}

const unheard = -2

// call is a tool call without its answer.
type call struct {
	id, name string
	input    json.RawMessage
}

func dialectOf(name string, a *agent) dialect {
	switch name {
	case "codex":
		return &codex{agent: a}
	case "cursor":
		return &cursor{agent: a}
	case "opencode":
		return &opencode{agent: a}
	case "gemini":
		return &gemini{agent: a}
	}
	return &claude{agent: a}
}

func write(text string) { _, _ = os.Stdout.WriteString(text) }

func writeJSON(v any) { write(encode(v) + "\n") }

func encode(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

func (a *agent) nextID(prefix string) string {
	a.ids++
	return fmt.Sprintf("%s_%s_%d", prefix, a.session, a.ids)
}

func (a *agent) writeTool(name, input string) error {
	if input == "" {
		input = "{}"
	}
	if !json.Valid([]byte(input)) {
		return errors.New("the input is not JSON")
	}
	c := call{id: a.nextID("toolu"), name: name, input: json.RawMessage(input)}
	a.open = append(a.open, c)
	a.speak.call(c)
	return nil
}

func (a *agent) writeToolResult(text string, denied bool) error {
	if len(a.open) == 0 {
		return errors.New("no open tool call")
	}
	a.speak.answer(a.open[0], text, denied)
	a.open = a.open[1:]
	return nil
}

func (a *agent) writeError(rest string) error {
	fields := strings.SplitN(rest, " ", 3)
	if len(fields) != 3 {
		return errors.New("want SUBTYPE STATUS TEXT")
	}
	status, err := strconv.Atoi(fields[1])
	if err != nil {
		return fmt.Errorf("reading the status: %w", err)
	}
	a.speak.fail(fields[0], status, fields[2])
	return nil
}

func (a *agent) writeRateLimit(epoch string) error {
	resets, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("reading the reset time: %w", err)
	}
	a.speak.limit(resets)
	return nil
}

// writeLine writes a text event whose line, with its newline, has this length.
func (a *agent) writeLine(bytes string) error {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		return fmt.Errorf("reading the length: %w", err)
	}
	before, after, _ := strings.Cut(encode(a.speak.said("TEXT")), "TEXT")
	write(before + strings.Repeat("x", max(0, size-len(before)-len(after)-1)) + after + "\n")
	return nil
}

// writeResult writes a result whose text has this length.
func (a *agent) writeResult(bytes string) error {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		return fmt.Errorf("reading the length: %w", err)
	}
	a.speak.end(strings.Repeat("x", size))
	return nil
}

// writeDirt writes a text event with bytes that no encoder would let through.
func (a *agent) writeDirt() {
	dirt := `nul \u0000 bad ` + "\xff\xfe" + ` lone \ud800 colour \u001b[31mred\u001b[0m end`
	write(strings.Replace(encode(a.speak.said("TEXT")), "TEXT", dirt, 1) + "\n")
}

func writeNoise(bytes string) error {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		return fmt.Errorf("reading the length: %w", err)
	}
	const noise = "fakecli makes noise on stderr to fill the pipe of a careless parent\n"
	_, _ = os.Stderr.WriteString(strings.Repeat(noise, size/len(noise)+1)[:size])
	return nil
}
