package backend

import (
	"context"
	"strings"

	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Cursor runs units with the Cursor command-line client, by its documentation.
// It tells no cost and takes no schema: a unit that needs either is refused.
type Cursor struct {
	CLI
	// Force lets it run commands without asking; without it they are rejected.
	Force bool
}

// Name is the backend's word.
func (c *Cursor) Name() string { return "cursor" }

// Available tells whether the Cursor CLI can be started here.
func (c *Cursor) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

var cursorProgram = program{"cursor", "cursor-agent",
	"install the Cursor CLI (https://cursor.com/cli) or set PIECEWORK_CURSOR_PATH to the program"}

// Version returns what `cursor-agent --version` prints.
func (c *Cursor) Version(ctx context.Context) (string, error) { return c.version(ctx, cursorProgram) }

// Execute runs one unit. The client has no place for a system prompt, so the
// request's comes before its prompt.
func (c *Cursor) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	failure := needsNoCost("cursor", req)
	if len(req.OutputSchema) > 0 {
		failure = work.Fail(work.ClassInvalidRequest, "cursor cannot be held to an output_schema")
	}
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	unit, failure, err := c.ready(cursorProgram, req, steps)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if err != nil {
		return Result{}, err
	}
	defer unit.leave()
	prompt, _, failure := plainPrompt(req, unit.home.files, false)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	u := cursorUnit{cliUnit: unit, c: c}
	u.findSession()
	return u.execute(ctx, inert(req.SystemPrompt, prompt))
}

// inert joins a system prompt and a prompt so that no first character makes it
// a command of the client's, or hands the work to another machine.
func inert(system, prompt string) string {
	if system != "" {
		prompt = system + "\n\n" + prompt
	}
	if text := strings.TrimSpace(prompt); text != "" && strings.ContainsRune("/&!@#", rune(text[0])) {
		return "The task, word for word:\n" + prompt
	}
	return prompt
}

// cursorUnit is one unit on its way through the Cursor CLI.
type cursorUnit struct {
	cliUnit
	c *Cursor
}

func (u cursorUnit) execute(ctx context.Context, prompt string) (Result, error) {
	told := newCursorTold(u.req, u.steps)
	told.remember = u.remember
	return u.run(ctx, agent{
		command: process.Command{Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt)},
		line:    told.line, check: told.check, result: told.end,
	})
}

func (u cursorUnit) args() []string {
	args := []string{"--print", "--output-format=stream-json"}
	if u.c.Force {
		args = append(args, "--force")
	}
	if u.req.Model != "" {
		args = append(args, "--model="+u.req.Model)
	}
	if u.req.Resume {
		args = append(args, "--resume="+u.req.SessionID)
	}
	return args
}

func (u cursorUnit) env() []string {
	return append(append(baseEnv(u.home.dir), u.cli.Env...), "TMPDIR="+u.home.tmp)
}
