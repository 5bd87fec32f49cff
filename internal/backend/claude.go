package backend

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

	"piecework/internal/process"
	"piecework/internal/transcript"
)

// Claude runs units with the Claude Code command-line client.
type Claude struct {
	CLI
	// PermissionMode and AllowedTools are Claude Code's own; empty is its
	// default, which denies whatever would need a person's consent.
	PermissionMode string
	AllowedTools   []string
	// ConfigDir is a configuration directory (a login) that all units share;
	// empty gives each unit one of its own below its Home.
	ConfigDir string
}

// Name is the backend's word.
func (c *Claude) Name() string { return "claude" }

// Available tells whether Claude Code can be started here.
func (c *Claude) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

var claudeProgram = program{"claude", "claude",
	"install it (npm install -g @anthropic-ai/claude-code) or set PIECEWORK_CLAUDE_PATH to the program"}

// Version returns what `claude --version` prints.
func (c *Claude) Version(ctx context.Context) (string, error) { return c.version(ctx, claudeProgram) }

// Settings are what the operator has set.
func (c *Claude) Settings() string {
	return c.settings(c.PermissionMode, c.AllowedTools, c.ConfigDir)
}

// Execute runs one unit. The request's system prompt is added to Claude Code's
// own, which tells the model how to use its tools, and does not replace it.
func (c *Claude) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	req = sessionOf(req) // the client takes nothing else
	schema, failure := objectSchema("claude", req.OutputSchema)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	unit, failure, err := c.ready(claudeProgram, req, steps)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if err != nil {
		return notBegun(), err
	}
	defer unit.leave()
	home, err := c.makeHome(unit.home, req)
	if err != nil {
		return notBegun(), err
	}
	in, failure := claudeInput(req, home.files)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	u := claudeUnit{cliUnit: unit, c: c, home: home, in: in, schema: schema}
	return u.converse(ctx, exchange{
		prompt: req.Prompt, after: further(req), once: func(req Request, words string, whole bool) (Result, heard, error) {
			u.req = req
			if !whole {
				u.in.line = claudeLine([]block{{Type: "text", Text: words}})
			}
			return u.once(ctx)
		},
		holds: func() bool { return home.holds(req) },
	})
}

// claudeUnit is one unit on its way through Claude Code.
type claudeUnit struct {
	cliUnit
	c      *Claude
	home   claudeHome
	in     claudeMessage
	schema *jsonschema.Schema
}

func (u claudeUnit) once(ctx context.Context) (Result, heard, error) {
	told := newClaudeTold(u.req, u.schema, u.steps)
	result, err := u.run(ctx, agent{
		command: process.Command{
			Args: u.c.args(u.req, u.home, u.in), Env: u.c.env(u.home), Stdin: bytes.NewReader(u.in.line),
		},
		line: told.line, result: told.end,
	})
	return result, told.heard, err
}

// args is the command line. What a caller wrote is bound to its flag by "=", so
// that it cannot become a flag itself, and the flags that take any number of
// words have another flag after them.
func (c *Claude) args(req Request, home claudeHome, in claudeMessage) []string {
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
		args = append(args, "--add-dir", home.files)
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
	if req.readsProject() { // its .mcp.json too: nobody is there to ask whether to trust it
		return append(args, "--settings", `{"enableAllProjectMcpServers":true}`, "--setting-sources", "project,local")
	}
	args = append(append(args, "--disallowedTools"), awaitingTools...)
	return append(args, "--strict-mcp-config", "--setting-sources", "")
}

// env is the child's whole environment. The last group cannot be overruled:
// text of a payload must never name a file for the client to read and send.
func (c *Claude) env(home claudeHome) []string {
	env := append(baseEnv(home.dir),
		"CLAUDE_CONFIG_DIR="+home.config, "TMPDIR="+home.tmp, "CLAUDE_CODE_TMPDIR="+home.tmp,
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

// claudeHome is a home with the client's own configuration in it.
type claudeHome struct {
	home
	config, system, servers string
}

func (c *Claude) makeHome(in home, req Request) (h claudeHome, err error) {
	h = claudeHome{home: in, config: cmp.Or(c.ConfigDir, filepath.Join(in.dir, ".claude"))}
	if err := makeDir(h.config); err != nil {
		return h, err
	}
	if len(req.MCPServers) > 0 {
		if h.servers, err = in.putServers("mcp-servers.json", req, claudeServer); err != nil {
			return h, err
		}
	}
	if req.SystemPrompt == "" {
		return h, nil
	}
	h.system, err = in.put("system-prompt.txt", req.SystemPrompt)
	return h, err
}

// holds tells whether the client's record of a session has the unit's prompt.
func (h claudeHome) holds(req Request) bool {
	records, _ := filepath.Glob(filepath.Join(h.config, "projects", "*", req.SessionID+".jsonl"))
	return slices.ContainsFunc(records, func(path string) bool {
		return anyLine(path, func(line []byte) bool {
			var e claudeEvent
			if decode(line, &e) != nil || e.Type != "user" {
				return false
			}
			blocks, plain := contentOf(e.Message.Content)
			return strings.Contains(plain, req.Prompt) || slices.ContainsFunc(blocks, func(b claudeBlock) bool {
				return b.Type == "text" && strings.Contains(b.Text, req.Prompt)
			})
		})
	})
}
