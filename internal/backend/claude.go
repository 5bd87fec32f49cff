package backend

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Claude runs units with the Claude Code command-line client.
type Claude struct {
	// Path is the program, or its name on PATH; empty means "claude".
	Path string
	// Env is what the child may have of our environment, as NAME=VALUE: API
	// key, base URL, PATH for its tools. Nothing else is passed on.
	Env []string
	// PermissionMode and AllowedTools are Claude Code's own; empty is its
	// default, which denies whatever would need a person's consent.
	PermissionMode string
	AllowedTools   []string
	// ConfigDir is a configuration directory (a login) that all units share;
	// empty gives each unit one of its own below its Home.
	ConfigDir string

	// Times the tests shorten.
	startup, grace time.Duration
	ladder         process.Ladder
}

// Name is the backend's word.
func (c *Claude) Name() string { return "claude" }

// Available tells whether Claude Code can be started here.
func (c *Claude) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

const mend = "install it (npm install -g @anthropic-ai/claude-code) or set PIECEWORK_CLAUDE_PATH to the program"

// Version returns what `claude --version` prints.
func (c *Claude) Version(ctx context.Context) (string, error) {
	path, err := c.lookUp()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = append(baseEnv(os.TempDir()), c.Env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	version := strings.TrimSpace(string(out))
	if err != nil {
		shown, _ := work.Cut(version, 300)
		return "", fmt.Errorf("claude does not start: %s --version: %w: %s; %s", path, err, shown, mend)
	}
	return version, nil
}

func (c *Claude) lookUp() (string, error) {
	path, err := exec.LookPath(cmp.Or(c.Path, "claude"))
	if err != nil {
		return "", fmt.Errorf("claude is not here: %w; %s", err, mend)
	}
	return filepath.Abs(path)
}

// Execute runs one unit. The request's system prompt is added to Claude Code's
// own, which tells the model how to use its tools, and does not replace it.
func (c *Claude) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	if uuid.Validate(req.SessionID) != nil { // the client takes nothing else
		req.SessionID, req.Resume, req.SessionCostUSD = uuid.NewString(), false, 0
	}
	fail := func(f *work.Failure) (Result, error) {
		r := Result{Error: f, Metadata: Metadata{SessionID: req.SessionID}}
		tidy(&r, steps)
		return r, nil
	}
	schema, failure := objectSchema(req.OutputSchema)
	if failure != nil {
		return fail(failure)
	}
	path, err := c.lookUp()
	if err != nil {
		return fail(work.Fail(work.ClassInfra, err.Error()))
	}
	home, err := c.makeHome(req)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = os.RemoveAll(home.tmp) }()
	in, failure := claudeInput(req, home.files)
	if failure != nil {
		return fail(failure)
	}
	unit := claudeUnit{c: c, req: req, home: home, in: in, path: path, schema: schema, steps: steps}
	return unit.execute(ctx)
}

// claudeUnit is one unit on its way through Claude Code.
type claudeUnit struct {
	c      *Claude
	req    Request
	home   claudeHome
	in     claudeMessage
	path   string
	schema *jsonschema.Schema
	steps  *transcript.Writer
}

// execute runs the client, and once more when the session is not what the
// caller believed: neither mistake reaches the model, so neither costs a cent.
func (u claudeUnit) execute(ctx context.Context) (Result, error) {
	result, told, err := u.once(ctx)
	switch {
	case ctx.Err() != nil:
	case !u.req.Resume && told.sessionInUse:
		u.note("session %s was begun by an earlier run: resuming it", u.req.SessionID)
		u.req.Resume = true
		result, _, err = u.once(ctx)
	case u.req.Resume && told.sessionUnknown:
		u.note("the session to resume is not here: starting session %s from the beginning", u.req.SessionID)
		u.req.Resume, u.req.SessionCostUSD = false, 0
		result, _, err = u.once(ctx)
	}
	return result, err
}

func (u claudeUnit) note(format string, args ...any) {
	u.steps.Add(transcript.Step{Type: transcript.SystemText, Text: fmt.Sprintf(format, args...)})
}

func (u claudeUnit) once(ctx context.Context) (Result, *claudeTold, error) {
	told := newClaudeTold(u.req, u.schema, u.steps)
	args := u.c.args(u.req, u.home, u.in)
	if f := argumentsFit(args); f != nil {
		return Result{Error: f, Metadata: told.metadata()}, told, nil
	}
	l := limitsOf(u.req)
	l.startup, l.grace = cmp.Or(u.c.startup, l.startup), cmp.Or(u.c.grace, l.grace)
	l.ladder = cmp.Or(u.c.ladder, l.ladder)
	result, err := run(ctx, agent{
		name: "claude",
		command: process.Command{
			Path: u.path, Args: args, Env: u.c.env(u.home), Dir: cmp.Or(u.req.Dir, u.home.dir),
			Mark: process.NewMark(u.req.RunID.String()), Stdin: bytes.NewReader(u.in.line),
		},
		line: told.line, result: told.end,
	}, l, u.steps)
	if errors.Is(err, errNotStarted) {
		return Result{Error: work.Fail(work.ClassInfra, err.Error()), Metadata: told.metadata()}, told, nil
	}
	return result, told, err
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
	if len(c.AllowedTools) > 0 {
		args = append(append(args, "--allowedTools"), c.AllowedTools...)
	}
	return append(args, "--strict-mcp-config", "--setting-sources", "")
}

// maxArgument is Linux's limit on one argument, with its final NUL.
const maxArgument = 128 << 10

func argumentsFit(args []string) *work.Failure {
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if len(arg) >= maxArgument {
			return work.Fail(work.ClassInvalidRequest,
				fmt.Sprintf("%s is %d bytes long; claude takes at most %d", name, len(arg), maxArgument))
		}
		if strings.ContainsRune(arg, 0) {
			return work.Fail(work.ClassInvalidRequest, name+" holds a NUL character")
		}
	}
	return nil
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

// baseEnv is what every agent gets. PATH and LANG give way to the configured
// ones.
func baseEnv(home string) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"HOME=" + home, "TERM=dumb",
	}
}

// claudeHome is where one unit's client keeps its things.
type claudeHome struct{ dir, config, tmp, files, system string }

func (c *Claude) makeHome(req Request) (claudeHome, error) {
	if req.Home == "" {
		return claudeHome{}, errors.New("claude needs a home directory for the unit")
	}
	h := claudeHome{
		dir: req.Home, config: cmp.Or(c.ConfigDir, filepath.Join(req.Home, ".claude")),
		tmp: filepath.Join(req.Home, "tmp"), files: filepath.Join(req.Home, "files"),
		system: filepath.Join(req.Home, "system-prompt.txt"),
	}
	for _, dir := range []string{h.config, h.tmp} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return h, fmt.Errorf("make claude's directories: %w", err)
		}
	}
	if req.SystemPrompt == "" {
		return h, nil
	}
	if err := os.WriteFile(h.system, []byte(req.SystemPrompt), 0o600); err != nil {
		return h, fmt.Errorf("write claude's system prompt: %w", err)
	}
	return h, nil
}

// objectSchema compiles an output schema and sees that its answers are
// objects: the client has the model answer by a tool call, whose input is one.
func objectSchema(raw json.RawMessage) (*jsonschema.Schema, *work.Failure) {
	if len(raw) == 0 {
		return nil, nil
	}
	schema, failure := compileSchema(raw)
	if failure != nil {
		return nil, failure
	}
	if schema.Types != nil && !slices.Contains(schema.Types.ToStrings(), "object") {
		return nil, work.Fail(work.ClassInvalidRequest,
			"claude answers in objects: give output_schema the type \"object\" and put the value in a property")
	}
	return schema, nil
}
