// Package claude runs units with Claude Code.
//
//	claude.go   command line, environment, sessions
//	input.go    prompt and files as one message
//	events.go   its events as steps of the transcript
//	tasks.go    what it leaves for later, when nobody will come back
//	result.go   its result, and its failures by class
package claude

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/transcript"
)

// Backend runs units with the Claude Code command-line client.
type Backend struct {
	cli.Options
	// PermissionMode and AllowedTools are Claude Code's own; empty is its
	// default, which denies whatever would need a person's consent.
	PermissionMode string
	AllowedTools   []string
	// ConfigDir is a configuration directory (a login) that all units share;
	// empty gives each unit one of its own below its Home.
	ConfigDir string
}

// Name is the backend's word.
func (c *Backend) Name() string { return "claude" }

// Available tells whether Claude Code can be started here.
func (c *Backend) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

var program = cli.Program{Name: "claude", Command: "claude",
	Remedy: "install it (npm install -g @anthropic-ai/claude-code) or set PIECEWORK_CLAUDE_PATH to the program"}

// Version returns what `claude --version` prints.
func (c *Backend) Version(ctx context.Context) (string, error) { return c.ProgramVersion(ctx, program) }

// Settings are what the operator has set.
func (c *Backend) Settings() string {
	return c.Describe(c.PermissionMode, c.AllowedTools, c.ConfigDir)
}

// Execute runs one unit. The request's system prompt is added to Claude Code's
// own, which tells the model how to use its tools, and does not replace it.
func (c *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	defer steps.Close()
	req = cli.WithSessionID(req) // the client takes nothing else
	schema, failure := cli.ObjectSchema("claude", req.OutputSchema)
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
	home, err := c.newHome(base.Home, req)
	if err != nil {
		return cli.NotStarted(), err
	}
	in, failure := newMessage(req, home.Files)
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	u := unit{Unit: base, c: c, home: home, in: in, schema: schema}
	return u.Converse(ctx, cli.Conversation{
		Prompt: req.Prompt, FollowUp: cli.FollowUp(req),
		Once: func(req backend.Request, words string, whole bool) (backend.Result, cli.Findings, error) {
			u.Req = req
			if !whole {
				u.in.line = messageLine([]block{{Type: "text", Text: words}})
			}
			return u.once(ctx)
		},
		HasPrompt: func() bool { return home.hasPrompt(req) },
	})
}

// unit is one unit on its way through Claude Code.
type unit struct {
	cli.Unit
	c      *Backend
	home   home
	in     message
	schema *jsonschema.Schema
}

func (u unit) once(ctx context.Context) (backend.Result, cli.Findings, error) {
	parser := newParser(u.Output(u.schema))
	return cli.Run(ctx, u.Unit, cli.Invocation{
		Command: process.Command{
			Args: u.c.args(u.Req, u.home, u.in), Env: u.c.env(u.home), Stdin: bytes.NewReader(u.in.line),
		},
	}, parser)
}

// args is the command line. What a caller wrote is bound to its flag by "=", so
// that it cannot become a flag itself, and the flags that take any number of
// words have another flag after them.
func (c *Backend) args(req backend.Request, home home, in message) []string {
	args := []string{"--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"}
	if req.Resume {
		args = append(args, "--resume", req.SessionID)
	} else {
		args = append(args, "--session-id", req.SessionID)
	}
	if req.Model != "" {
		args = append(args, "--model="+req.Model)
	}
	if req.MaxTurns > 0 {
		args = append(args, "--max-turns="+strconv.Itoa(req.MaxTurns))
	}
	if req.MaxCostUSD != nil { // of this process alone, also when it resumes a session
		args = append(args, "--max-budget-usd="+strconv.FormatFloat(*req.MaxCostUSD, 'f', -1, 64))
	}
	if req.SystemPrompt != "" { // by file: one argument holds 128 KiB, and shows in ps
		args = append(args, "--append-system-prompt-file="+home.system)
	}
	if len(req.OutputSchema) > 0 {
		args = append(args, "--json-schema="+string(req.OutputSchema))
	}
	if c.PermissionMode != "" {
		args = append(args, "--permission-mode="+c.PermissionMode)
	}
	if len(in.named) > 0 {
		args = append(args, "--add-dir", home.Files)
	}
	allowed := slices.Clone(c.AllowedTools)
	for _, s := range req.MCPServers {
		allowed = append(allowed, "mcp__"+s.Name)
	}
	if len(allowed) > 0 {
		args = append(append(args, "--allowedTools"), allowed...)
	}
	if len(req.MCPServers) > 0 {
		args = append(args, "--mcp-config", home.servers)
	}
	if req.ReadsProject() { // its .mcp.json too: nobody is there to ask whether to trust it
		return append(args, "--settings", `{"enableAllProjectMcpServers":true}`, "--setting-sources", "project,local")
	}
	args = append(append(args, "--disallowedTools"), disallowedTools...)
	return append(args, "--strict-mcp-config", "--setting-sources", "")
}

// env is the child's whole environment. The last group cannot be overruled:
// text of a payload must never name a file for the client to read and send.
func (c *Backend) env(home home) []string {
	env := append(cli.BaseEnv(home.Dir),
		"CLAUDE_CONFIG_DIR="+home.config, "TMPDIR="+home.Tmp, "CLAUDE_CODE_TMPDIR="+home.Tmp,
		"CLAUDE_CODE_MAX_RETRIES=2",
	)
	env = append(env, c.Env...)
	env = append(env,
		"CLAUDE_CODE_DISABLE_ATTACHMENTS=1", "CLAUDE_CODE_DISABLE_FILE_MENTIONS=1",
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1",
	)
	if c.PermissionMode == "bypassPermissions" && os.Geteuid() == 0 {
		env = append(env, "IS_SANDBOX=1") // else it refuses to run as root
	}
	return env
}

// home is a home with the client's own configuration in it.
type home struct {
	cli.Home
	config, system, servers string
}

func (c *Backend) newHome(in cli.Home, req backend.Request) (h home, err error) {
	h = home{Home: in, config: cmp.Or(c.ConfigDir, filepath.Join(in.Dir, ".claude"))}
	if err := cli.MakeDir(h.config); err != nil {
		return h, err
	}
	if len(req.MCPServers) > 0 {
		if h.servers, err = in.WriteMCPServers("mcp-servers.json", req, cli.MCPServerJSON); err != nil {
			return h, err
		}
	}
	if req.SystemPrompt == "" {
		return h, nil
	}
	h.system, err = in.WriteFile("system-prompt.txt", req.SystemPrompt)
	return h, err
}

// hasPrompt tells whether the client's record of a session has the unit's prompt.
func (h home) hasPrompt(req backend.Request) bool {
	records, _ := filepath.Glob(filepath.Join(h.config, "projects", "*", req.SessionID+".jsonl"))
	return slices.ContainsFunc(records, func(path string) bool {
		return cli.AnyLine(path, func(line []byte) bool {
			var e event
			if backend.Decode(line, &e) != nil || e.Type != "user" {
				return false
			}
			blocks, plain := contentOf(e.Message.Content)
			return strings.Contains(plain, req.Prompt) || slices.ContainsFunc(blocks, func(b contentBlock) bool {
				return b.Type == "text" && strings.Contains(b.Text, req.Prompt)
			})
		})
	})
}
