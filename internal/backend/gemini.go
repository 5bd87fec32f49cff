package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/process"
	"piecework/internal/transcript"
)

// Gemini runs units with the Gemini CLI and an API key. It tells tokens and no
// cost.
type Gemini struct {
	CLI
	// ApprovalMode is what it may do without asking: default, auto_edit (which is
	// also what empty means), yolo or plan.
	ApprovalMode string
}

// Name is the backend's word.
func (g *Gemini) Name() string { return "gemini" }

// Available tells whether the Gemini CLI can be started here.
func (g *Gemini) Available(ctx context.Context) error {
	_, err := g.Version(ctx)
	return err
}

var geminiProgram = program{"gemini", "gemini",
	"install it (npm install -g @google/gemini-cli) or set PIECEWORK_GEMINI_PATH to the program"}

// Version returns what `gemini --version` prints.
func (g *Gemini) Version(ctx context.Context) (string, error) { return g.version(ctx, geminiProgram) }

// Settings are what the operator has set.
func (g *Gemini) Settings() string { return g.settings(g.ApprovalMode) }

// Execute runs one unit. The client would read a system prompt's @names as
// files, so the request's comes before its prompt.
func (g *Gemini) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	schema, failure := schemaOf(req)
	if failure == nil {
		failure = g.Prices.unpriced(req, req.Model)
	}
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	unit, failure, err := g.ready(geminiProgram, sessionOf(req), steps)
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
	if req.SystemPrompt != "" {
		prompt = req.SystemPrompt + "\n\n" + prompt
	}
	u := geminiUnit{cliUnit: unit, g: g, schema: schema}
	if u.req.Resume && geminiRecordPath(unit.home.dir, u.req.SessionID) == "" {
		u.req.Resume = false
		u.note(fromTheStart)
	}
	return u.converse(ctx, exchange{
		prompt: withSchema(prompt, req), after: withSchema(further(req), req),
		holds: func() bool { return geminiHolds(geminiRecordPath(unit.home.dir, u.req.SessionID), req.Prompt) },
		once: func(req Request, words string, _ bool) (Result, heard, error) {
			u := u
			u.req = req
			if !req.Resume && geminiRecordPath(unit.home.dir, req.SessionID) != "" {
				u.req.SessionID = uuid.NewString() // a new one has an id of its own
			}
			return u.once(ctx, words)
		},
	})
}

// geminiUnit is one unit on its way through the Gemini CLI.
type geminiUnit struct {
	cliUnit
	g      *Gemini
	schema *jsonschema.Schema
}

func (u geminiUnit) once(ctx context.Context, prompt string) (Result, heard, error) {
	if err := u.configure(); err != nil {
		return notBegun(), heard{}, err
	}
	prompt, err := u.inert(prompt)
	if err != nil {
		return notBegun(), heard{}, err
	}
	told := newGeminiTold(u.req, u.schema, openGeminiRecord(u.home.dir, u.req.SessionID), u.steps)
	told.prices = u.cli.Prices
	result, err := u.run(ctx, agent{
		command: process.Command{
			Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt),
			// It ends without waiting for a pipe to take what it said last.
			StdoutFile: filepath.Join(u.home.tmp, "stdout.jsonl"),
		},
		line: told.line, check: told.check, result: told.end, missed: &told.missed,
	})
	return result, told.heard, err
}

// configure writes the client's settings.
func (u geminiUnit) configure() error {
	settings := map[string]any{
		"security":  map[string]any{"auth": map[string]any{"selectedType": "gemini-api-key"}, "folderTrust": map[string]any{"enabled": false}},
		"privacy":   map[string]any{"usageStatisticsEnabled": false},
		"telemetry": map[string]any{"enabled": false},
		// Its ten attempts take minutes; a unit's own retries wait better.
		"general": map[string]any{"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "maxAttempts": 3},
	}
	if u.req.MaxTurns > 0 {
		settings["model"] = map[string]any{"maxSessionTurns": u.req.MaxTurns}
	}
	if len(u.req.MCPServers) > 0 {
		settings["mcpServers"] = serversAs(u.req, geminiServer)
	}
	encoded, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	if err := makeDir(filepath.Join(u.home.dir, ".gemini", "commands")); err != nil {
		return err
	}
	_, err = u.home.put(filepath.Join(".gemini", "settings.json"), string(encoded))
	return err
}

// inert returns what to give the client for a prompt so that the model gets
// just that. A first slash would be a command and every @name a file. What a
// command of our own says is left alone, unless there is something in it to be
// filled in; then the prompt is what follows the command's name, which the
// client adds as it is.
func (u geminiUnit) inert(prompt string) (string, error) {
	if !strings.HasPrefix(prompt, "/") && !strings.Contains(prompt, "@") {
		return prompt, nil
	}
	name := "piecework-" + u.req.RunID.String()
	text, given := prompt, "/"+name
	for _, filled := range []string{"@{", "!{", "{{args}}"} {
		if strings.Contains(prompt, filled) {
			text, given = "The task, word for word, after the name of a command:", "/"+name+" "+prompt
		}
	}
	_, err := u.home.put(filepath.Join(".gemini", "commands", name+".toml"), "prompt = "+tomlString(text)+"\n")
	return given, err
}

func (u geminiUnit) args() []string {
	args := []string{"--output-format=stream-json", "--approval-mode=" + cmp.Or(u.g.ApprovalMode, "auto_edit")}
	if _, err := os.Stat(u.home.files); err == nil { // its tools see no other place
		args = append(args, "--include-directories="+u.home.files)
	}
	if u.req.Model != "" {
		args = append(args, "--model="+u.req.Model)
	}
	if u.req.Resume {
		return append(args, "--resume="+u.req.SessionID)
	}
	return append(args, "--session-id="+u.req.SessionID)
}

func (u geminiUnit) env() []string {
	return append(append(baseEnv(u.home.dir), u.cli.Env...), "TMPDIR="+u.home.tmp,
		"GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_CLI_NO_RELAUNCH=true")
}
