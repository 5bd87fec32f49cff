// Package cursor runs units with the Cursor CLI.
//
//	cursor.go   command line, environment, sessions
//	events.go   its events as steps, its result, its failures by class
package cursor

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Backend runs units with the Cursor command-line client, by its documentation.
// It tells tokens at the end, if at all: a unit with max_cost_usd is refused.
type Backend struct {
	cli.Options
	// Force lets it run commands without asking; without it they are rejected.
	Force bool
}

// Name is the backend's word.
func (c *Backend) Name() string { return "cursor" }

// Available tells whether the Cursor CLI can be started here.
func (c *Backend) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

var program = cli.Program{Name: "cursor", Command: "cursor-agent",
	Remedy: "install the Cursor CLI (https://cursor.com/cli) or set PIECEWORK_CURSOR_PATH to the program"}

// Version returns what `cursor-agent --version` prints.
func (c *Backend) Version(ctx context.Context) (string, error) { return c.ProgramVersion(ctx, program) }

// Settings are what the operator has set.
func (c *Backend) Settings() string { return c.Describe(c.Force) }

// Execute runs one unit. The client has no place for a system prompt, so the
// request's comes before its prompt.
func (c *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	defer steps.Close()
	schema, failure := cli.SchemaOf(req)
	if failure == nil && req.MaxCostUSD != nil {
		failure = work.Fail(work.ClassInvalidRequest,
			"cursor does not tell while it works what that costs, "+
				"so it cannot keep max_cost_usd: leave it out, or use max_turns")
	}
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	base, failure, err := c.Prepare(program, req, steps)
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	if err != nil {
		return cli.NotStarted(), err
	}
	defer base.Cleanup()
	prompt, _, failure := cli.PlainPrompt(req, base.Home.Files, false)
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	if _, err := base.Home.WriteMCPServers(filepath.Join(".cursor", "mcp.json"), req, cli.MCPServerJSON); err != nil {
		return backend.Result{}, err
	}
	u := unit{Unit: base, c: c, schema: schema}
	u.FindSession()
	return u.Converse(ctx, cli.Conversation{
		Prompt: cli.WithSchema(inert(req.SystemPrompt, prompt), req), FollowUp: cli.WithSchema(cli.FollowUp(req), req),
		HasPrompt: func() bool { return true }, // else it would not have been remembered
		Once: func(req backend.Request, words string, _ bool) (backend.Result, cli.Findings, error) {
			u.Req = req
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

// unit is one unit on its way through the Cursor CLI.
type unit struct {
	cli.Unit
	c      *Backend
	schema *jsonschema.Schema
}

func (u unit) once(ctx context.Context, prompt string) (backend.Result, cli.Findings, error) {
	parser := newParser(u.Output(u.schema))
	parser.saveSession = u.SaveSession
	return cli.Run(ctx, u.Unit, cli.Invocation{
		Command: process.Command{Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt)},
	}, parser)
}

func (u unit) args() []string {
	args := []string{"--print", "--output-format=stream-json"}
	if u.c.Force {
		args = append(args, "--force")
	}
	if len(u.Req.MCPServers) > 0 {
		args = append(args, "--approve-mcps")
	}
	if u.Req.Model != "" {
		args = append(args, "--model="+u.Req.Model)
	}
	if u.Req.Resume {
		args = append(args, "--resume="+u.Req.SessionID)
	}
	return args
}

func (u unit) env() []string {
	return append(append(cli.BaseEnv(u.Home.Dir), u.Options.Env...), "TMPDIR="+u.Home.Tmp)
}
