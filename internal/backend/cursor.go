package backend

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Cursor runs units with the Cursor command-line client, by its documentation.
// It tells tokens at the end, if at all: a unit with max_cost_usd is refused.
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

// Settings are what the operator has set.
func (c *Cursor) Settings() string { return c.settings(c.Force) }

// Execute runs one unit. The client has no place for a system prompt, so the
// request's comes before its prompt.
func (c *Cursor) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	schema, failure := schemaOf(req)
	if failure == nil && req.MaxCostUSD != nil {
		failure = work.Fail(work.ClassInvalidRequest, "cursor does not tell while it works what that costs, so it cannot keep max_cost_usd: leave it out, or use max_turns")
	}
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	unit, failure, err := c.ready(cursorProgram, req, steps)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if err != nil {
		return notBegun(), err
	}
	defer unit.leave()
	prompt, _, failure := plainPrompt(req, unit.home.files, false)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if _, err := unit.home.putServers(filepath.Join(".cursor", "mcp.json"), req, claudeServer); err != nil {
		return Result{}, err
	}
	u := cursorUnit{cliUnit: unit, c: c, schema: schema}
	u.findSession()
	return u.converse(ctx, exchange{
		prompt: withSchema(inert(req.SystemPrompt, prompt), req), after: withSchema(further(req), req),
		holds: func() bool { return true }, // else it would not have been remembered
		once: func(req Request, words string, _ bool) (Result, heard, error) {
			u.req = req
			return u.once(ctx, words)
		},
	})
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
	c      *Cursor
	schema *jsonschema.Schema
}

func (u cursorUnit) once(ctx context.Context, prompt string) (Result, heard, error) {
	told := newCursorTold(u.req, u.schema, u.steps)
	told.remember, told.prices = u.remember, u.cli.Prices
	result, err := u.run(ctx, agent{
		command: process.Command{Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt)},
		line:    told.line, check: told.check, result: told.end, missed: &told.missed,
	})
	return result, told.heard, err
}

func (u cursorUnit) args() []string {
	args := []string{"--print", "--output-format=stream-json"}
	if u.c.Force {
		args = append(args, "--force")
	}
	if len(u.req.MCPServers) > 0 {
		args = append(args, "--approve-mcps")
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
