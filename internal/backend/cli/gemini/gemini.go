// Package gemini runs units with the Gemini CLI.
//
//	gemini.go   command line, environment, prompts
//	events.go   its events as steps of the transcript
//	record.go   its own record of a session, for what the events lack
//	result.go   its result, and its failures by class
package gemini

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/transcript"
)

// Backend runs units with the Gemini CLI and an API key. It tells tokens and no
// cost.
type Backend struct {
	cli.Options
	// ApprovalMode is what it may do without asking: default, auto_edit (which is
	// also what empty means), yolo or plan.
	ApprovalMode string
}

// Name is the backend's word.
func (g *Backend) Name() string { return "gemini" }

// Available tells whether the Gemini CLI can be started here.
func (g *Backend) Available(ctx context.Context) error {
	_, err := g.Version(ctx)
	return err
}

var program = cli.Program{Name: "gemini", Command: "gemini",
	Remedy: "install it (npm install -g @google/gemini-cli) or set PIECEWORK_GEMINI_PATH to the program"}

// Version returns what `gemini --version` prints.
func (g *Backend) Version(ctx context.Context) (string, error) { return g.ProgramVersion(ctx, program) }

// Settings are what the operator has set.
func (g *Backend) Settings() string { return g.Describe(g.ApprovalMode) }

// Execute runs one unit. The client would read a system prompt's @names as
// files, so the request's comes before its prompt.
func (g *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	defer steps.Close()
	schema, failure := cli.SchemaOf(req)
	if failure == nil {
		failure = g.Prices.CheckBudget(req, req.Model)
	}
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	base, failure, err := g.Prepare(program, cli.WithSessionID(req), steps)
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
	if req.SystemPrompt != "" {
		prompt = req.SystemPrompt + "\n\n" + prompt
	}
	u := unit{Unit: base, g: g, schema: schema}
	if u.Req.Resume && recordPath(base.Home.Dir, u.Req.SessionID) == "" {
		u.Req.Resume = false
		u.Note(cli.RestartNote)
	}
	return u.Converse(ctx, cli.Conversation{
		Prompt: cli.WithSchema(prompt, req), FollowUp: cli.WithSchema(cli.FollowUp(req), req),
		HasPrompt: func() bool { return hasPrompt(recordPath(base.Home.Dir, u.Req.SessionID), req.Prompt) },
		Once: func(req backend.Request, words string, _ bool) (backend.Result, cli.Findings, error) {
			u := u
			u.Req = req
			if !req.Resume && recordPath(base.Home.Dir, req.SessionID) != "" {
				u.Req.SessionID = uuid.NewString() // a new one has an id of its own
			}
			return u.once(ctx, words)
		},
	})
}

// unit is one unit on its way through the Gemini CLI.
type unit struct {
	cli.Unit
	g      *Backend
	schema *jsonschema.Schema
}

func (u unit) once(ctx context.Context, prompt string) (backend.Result, cli.Findings, error) {
	if err := u.configure(); err != nil {
		return cli.NotStarted(), cli.Findings{}, err
	}
	prompt, err := u.inert(prompt)
	if err != nil {
		return cli.NotStarted(), cli.Findings{}, err
	}
	parser := newParser(openRecord(u.Home.Dir, u.Req.SessionID), u.Output(u.schema))
	return cli.Run(ctx, u.Unit, cli.Invocation{
		Command: process.Command{
			Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt),
			// It ends without waiting for a pipe to take what it said last.
			StdoutFile: filepath.Join(u.Home.Tmp, "stdout.jsonl"),
		},
	}, parser)
}

// configure writes the client's settings.
func (u unit) configure() error {
	settings := map[string]any{
		"security":  map[string]any{"auth": map[string]any{"selectedType": "gemini-api-key"}, "folderTrust": map[string]any{"enabled": false}},
		"privacy":   map[string]any{"usageStatisticsEnabled": false},
		"telemetry": map[string]any{"enabled": false},
		// Its ten attempts take minutes; a unit's own retries wait better.
		"general": map[string]any{"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "maxAttempts": 3},
	}
	if u.Req.MaxTurns > 0 {
		settings["model"] = map[string]any{"maxSessionTurns": u.Req.MaxTurns}
	}
	if len(u.Req.MCPServers) > 0 {
		settings["mcpServers"] = cli.MCPServersAs(u.Req, mcpServer)
	}
	encoded, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	if err := cli.MakeDir(filepath.Join(u.Home.Dir, ".gemini", "commands")); err != nil {
		return err
	}
	_, err = u.Home.WriteFile(filepath.Join(".gemini", "settings.json"), string(encoded))
	return err
}

// inert returns what to give the client for a prompt so that the model gets
// just that. A first slash would be a command and every @name a file. What a
// command of our own says is left alone, unless there is something in it to be
// filled in; then the prompt is what follows the command's name, which the
// client adds as it is.
func (u unit) inert(prompt string) (string, error) {
	if !strings.HasPrefix(prompt, "/") && !strings.Contains(prompt, "@") {
		return prompt, nil
	}
	name := "piecework-" + u.Req.RunID.String()
	text, given := prompt, "/"+name
	for _, filled := range []string{"@{", "!{", "{{args}}"} {
		if strings.Contains(prompt, filled) {
			text, given = "The task, word for word, after the name of a command:", "/"+name+" "+prompt
		}
	}
	_, err := u.Home.WriteFile(filepath.Join(".gemini", "commands", name+".toml"), "prompt = "+cli.TOMLString(text)+"\n")
	return given, err
}

func (u unit) args() []string {
	args := []string{"--output-format=stream-json", "--approval-mode=" + cmp.Or(u.g.ApprovalMode, "auto_edit")}
	if _, err := os.Stat(u.Home.Files); err == nil { // its tools see no other place
		args = append(args, "--include-directories="+u.Home.Files)
	}
	if u.Req.Model != "" {
		args = append(args, "--model="+u.Req.Model)
	}
	if u.Req.Resume {
		return append(args, "--resume="+u.Req.SessionID)
	}
	return append(args, "--session-id="+u.Req.SessionID)
}

func (u unit) env() []string {
	return append(append(cli.BaseEnv(u.Home.Dir), u.Options.Env...), "TMPDIR="+u.Home.Tmp,
		"GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_CLI_NO_RELAUNCH=true")
}

func mcpServer(s backend.MCPServer) map[string]any {
	return map[string]any{"command": s.Command, "args": s.Args, "env": s.Env, "httpUrl": s.URL, "headers": s.Headers, "trust": true}
}
