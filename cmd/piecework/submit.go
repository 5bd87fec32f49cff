package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// SubmitCommand is `piecework submit`.
type SubmitCommand struct {
	Remote
	Backend          string   `help:"Backend that does the work, such as claude or mock." required:"" short:"b" placeholder:"NAME"`
	Prompt           string   `help:"Prompt template; - reads it from standard input." xor:"prompt" placeholder:"TEXT"`
	PromptFile       string   `help:"Read the prompt template from a file." xor:"prompt" placeholder:"PATH"`
	Payload          string   `help:"Payload: a JSON object that fills the prompt's {keys}." placeholder:"JSON"`
	Set              []string `help:"Set one key of the payload to a text." name:"set" short:"p" sep:"none" placeholder:"KEY=VALUE"`
	File             []string `help:"File to work on: a path, name:path inside a root of the server, or the id of an upload. A file of this machine that the server may not read is uploaded." short:"f" sep:"none" placeholder:"PATH"`
	Model            string   `help:"Model, as the backend calls it."`
	SystemPrompt     string   `help:"System prompt." placeholder:"TEXT"`
	WorkingDirectory string   `help:"Directory to work in: a path, or name:path inside a root of the server." placeholder:"DIR"`
	OutputSchema     string   `help:"JSON Schema that the output must fit: the schema itself, or @PATH of a file with it." placeholder:"JSON"`
	AcceptCommand    string   `help:"Accept the result only if this shell command ends with exit status 0 in the unit's directory; the output is its standard input." placeholder:"COMMAND"`
	AcceptFile       string   `help:"Accept the result only if there is such a file in the unit's directory, such as report.md or out/*.json." placeholder:"PATH"`
	AcceptMatches    string   `help:"Accept the result only if the output matches this regular expression (RE2)." placeholder:"REGEXP"`
	AcceptExpression string   `help:"Accept the result only if this CEL condition over output and json is true, such as 'json.total > 0'." placeholder:"EXPR"`
	ProjectSettings  string   `help:"Whether an agent reads instructions and settings of its directory, such as CLAUDE.md: ignore or read; the server's default when left out." enum:",ignore,read" default:"" placeholder:"HOW"`
	MCPServer        []string `name:"mcp-server" help:"MCP server that the agent gets, by the operator's name for it; may be repeated." sep:"none" placeholder:"NAME"`
	OnDenied         string   `help:"When the agent answers after a tool was denied: fail the run, or note it and let it succeed; fail by default." enum:",fail,note" default:"" placeholder:"POLICY"`
	MissingKey       string   `help:"When the payload lacks a key of the prompt: fail before anything is spent, or note it in the prompt and go on; fail by default." enum:",fail,note" default:"" placeholder:"POLICY"`
	SessionPolicy    string   `help:"After a run that was cut off: resume the agent's session, or begin a fresh one; resume by default." enum:",resume,fresh" default:"" placeholder:"POLICY"`
	MaxTurns         int      `help:"Most turns a run may take." placeholder:"N"`
	MaxCostUSD       *float64 `name:"max-cost-usd" help:"Most a run may cost." placeholder:"USD"`
	Timeout          string   `help:"Longest a run may take, such as 90s or 1h30m." placeholder:"DURATION"`
	IdleTimeout      string   `help:"Longest a run may be silent." placeholder:"DURATION"`
	StartupTimeout   string   `help:"Longest a run may take to its first output." placeholder:"DURATION"`
	Cache            string   `help:"Take over an earlier unit's result that is at most this old, such as 24h, if it was asked exactly the same." placeholder:"DURATION"`
	Lane             string   `help:"live: call the model at once; batch: wait for one of the provider's own batches, for half the price; auto: batch if the deadline is a day away." enum:",live,batch,auto" default:"" placeholder:"LANE"`
	Delay            string   `help:"Wait this long before the first run." placeholder:"DURATION"`
	NotBefore        string   `help:"Do not start before this time, such as 2030-01-31T18:00:00Z." placeholder:"TIME"`
	Deadline         string   `help:"Give up at this time, such as 2030-01-31T18:00:00Z." placeholder:"TIME"`
	ExpiresAt        string   `help:"Do not start any more after this time." placeholder:"TIME"`
	MaxRetries       *int     `help:"How many failed runs may be followed by another." placeholder:"N"`
	Queue            string   `help:"Queue to wait in." placeholder:"NAME"`
	Priority         *int     `help:"From 0 to 9; higher goes first." placeholder:"N"`
	Label            []string `help:"Label to find the unit by." short:"l" sep:"none" placeholder:"KEY=VALUE"`
	CallbackURL      string   `name:"callback-url" help:"Send a signed message there when the unit is final." placeholder:"URL"`
	IdempotencyKey   string   `help:"Submit at most once under this key; a new one is made up by default." placeholder:"KEY"`
	Wait             bool     `help:"Wait until the unit is final, print its output, and exit with 1 unless it succeeded." short:"w"`
}

// submission is the body of POST /work-units.
type submission struct {
	Backend          string            `json:"backend"`
	Prompt           string            `json:"prompt"`
	Payload          map[string]any    `json:"payload,omitempty"`
	Model            string            `json:"model,omitempty"`
	SystemPrompt     string            `json:"system_prompt,omitempty"`
	WorkingDirectory string            `json:"working_directory,omitempty"`
	OnDenied         string            `json:"on_denied,omitempty"`
	MissingKey       string            `json:"missing_key,omitempty"`
	SessionPolicy    string            `json:"session_policy,omitempty"`
	OutputSchema     json.RawMessage   `json:"output_schema,omitempty"`
	MaxTurns         int               `json:"max_turns,omitempty"`
	MaxCostUSD       *float64          `json:"max_cost_usd,omitempty"`
	Timeout          work.Seconds      `json:"timeout,omitempty"`
	IdleTimeout      work.Seconds      `json:"idle_timeout,omitempty"`
	StartupTimeout   work.Seconds      `json:"startup_timeout,omitempty"`
	Accept           *acceptance       `json:"accept,omitempty"`
	ProjectSettings  string            `json:"project_settings,omitempty"`
	MCPServers       []string          `json:"mcp_servers,omitempty"`
	Cache            work.Seconds      `json:"cache,omitempty"`
	Lane             string            `json:"lane,omitempty"`
	Delay            work.Seconds      `json:"delay,omitempty"`
	NotBefore        *time.Time        `json:"not_before,omitempty"`
	Deadline         *time.Time        `json:"deadline,omitempty"`
	ExpiresAt        *time.Time        `json:"expires_at,omitempty"`
	MaxRetries       *int              `json:"max_retries,omitempty"`
	Queue            string            `json:"queue,omitempty"`
	Priority         *int              `json:"priority,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	CallbackURL      string            `json:"callback_url,omitempty"`
}

// acceptance is what the result must meet.
type acceptance struct {
	Command       string `json:"command,omitempty"`
	FileExists    string `json:"file_exists,omitempty"`
	OutputMatches string `json:"output_matches,omitempty"`
	Expression    string `json:"expression,omitempty"`
}

// Run submits one unit and prints its id, or with --wait its result.
func (c *SubmitCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	body, err := c.submission(app.Stdin)
	if err != nil {
		return err
	}
	key := c.IdempotencyKey
	if key == "" {
		key = uuid.NewString()
	}
	accepted, err := client.submitFiles(app.Ctx, body, key)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	switch {
	case c.Wait:
		return waitForOne(app, client, accepted.ID.String(), c.JSON)
	case c.JSON:
		return printJSON(app.Stdout, accepted.document)
	}
	_, err = fmt.Fprintln(app.Stdout, accepted.ID)
	return err
}

func (c *SubmitCommand) submission(stdin io.Reader) (*submission, error) {
	body := &submission{
		Backend: c.Backend, Model: c.Model, SystemPrompt: c.SystemPrompt, OnDenied: c.OnDenied, MaxTurns: c.MaxTurns,
		MissingKey: c.MissingKey, SessionPolicy: c.SessionPolicy, MaxCostUSD: c.MaxCostUSD,
		MaxRetries: c.MaxRetries, Queue: c.Queue, Priority: c.Priority, Lane: c.Lane, CallbackURL: c.CallbackURL,
		ProjectSettings: c.ProjectSettings, MCPServers: c.MCPServer,
	}
	var err error
	if body.Prompt, err = c.prompt(stdin); err != nil {
		return nil, err
	}
	if body.Payload, err = c.payload(); err != nil {
		return nil, err
	}
	if body.OutputSchema, err = c.outputSchema(); err != nil {
		return nil, err
	}
	if body.Labels, err = keyValues("--label", c.Label); err != nil {
		return nil, err
	}
	if check := (acceptance{c.AcceptCommand, c.AcceptFile, c.AcceptMatches, c.AcceptExpression}); check != (acceptance{}) {
		body.Accept = &check
	}
	if c.WorkingDirectory != "" {
		if body.WorkingDirectory, err = fileReference(c.WorkingDirectory); err != nil {
			return nil, err
		}
	}
	return body, c.times(body)
}

func (c *SubmitCommand) times(body *submission) error {
	for _, length := range []struct {
		flag, text string
		into       *work.Seconds
	}{
		{"--timeout", c.Timeout, &body.Timeout},
		{"--idle-timeout", c.IdleTimeout, &body.IdleTimeout},
		{"--startup-timeout", c.StartupTimeout, &body.StartupTimeout},
		{"--cache", c.Cache, &body.Cache},
		{"--delay", c.Delay, &body.Delay},
	} {
		if length.text == "" {
			continue
		}
		seconds, err := work.ParseSeconds(length.text)
		if err != nil {
			return usagef("%s: %w", length.flag, err)
		}
		*length.into = seconds
	}
	for _, end := range []struct {
		flag, text string
		into       **time.Time
	}{{"--not-before", c.NotBefore, &body.NotBefore}, {"--deadline", c.Deadline, &body.Deadline}, {"--expires-at", c.ExpiresAt, &body.ExpiresAt}} {
		if end.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, end.text)
		if err != nil {
			return usagef("%s: %q is no time such as 2030-01-31T18:00:00Z", end.flag, end.text)
		}
		*end.into = &at
	}
	return nil
}

func (c *SubmitCommand) prompt(stdin io.Reader) (string, error) {
	switch {
	case c.PromptFile != "":
		text, err := os.ReadFile(c.PromptFile)
		if err != nil {
			return "", usagef("--prompt-file: %w", err)
		}
		return string(text), nil
	case c.Prompt != "" && c.Prompt != "-":
		return c.Prompt, nil
	case stdin == nil || (c.Prompt == "" && isTerminal(stdin)):
		return "", usagef("give a prompt with --prompt, --prompt-file or on standard input")
	}
	text, err := io.ReadAll(stdin)
	if err != nil {
		return "", fmt.Errorf("read the prompt from standard input: %w", err)
	}
	if strings.TrimSpace(string(text)) == "" {
		return "", usagef("standard input holds no prompt")
	}
	return string(text), nil
}

func (c *SubmitCommand) payload() (map[string]any, error) {
	payload := map[string]any{}
	if c.Payload != "" {
		dec := json.NewDecoder(strings.NewReader(c.Payload))
		dec.UseNumber() // a float would not bring back every number as it was written
		if err := dec.Decode(&payload); err != nil || payload == nil || dec.More() {
			return nil, usagef("--payload: give one JSON object, such as '{\"name\": \"Ada\"}'")
		}
	}
	set, err := keyValues("-p", c.Set)
	if err != nil {
		return nil, err
	}
	for key, value := range set {
		payload[key] = value
	}
	if len(c.File) == 0 {
		return payload, nil
	}
	if _, taken := payload["file_paths"]; taken {
		return nil, usagef("give files with --file or as file_paths in the payload, not both")
	}
	files := make([]string, len(c.File))
	for i, path := range c.File {
		if files[i], err = fileReference(path); err != nil {
			return nil, err
		}
	}
	payload["file_paths"] = files
	return payload, nil
}

func (c *SubmitCommand) outputSchema() (json.RawMessage, error) {
	if c.OutputSchema == "" {
		return nil, nil
	}
	text := []byte(c.OutputSchema)
	if path, named := strings.CutPrefix(c.OutputSchema, "@"); named {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return nil, usagef("--output-schema: %w", err)
		}
	}
	if !json.Valid(text) {
		return nil, usagef("--output-schema: give a JSON Schema, or @PATH of a file with one")
	}
	return text, nil
}

var rootReference = regexp.MustCompile(`^[a-z0-9_-]+:`)

// fileReference makes a local path absolute, because the server does not know
// the directory we are in. A path inside one of its roots stays as it is.
func fileReference(path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		if _, uploaded := work.UploadedFile(path); uploaded || rootReference.MatchString(path) {
			return path, nil
		}
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", path, err)
	}
	return absolute, nil
}

func keyValues(flag string, pairs []string) (map[string]string, error) {
	values := map[string]string{}
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return nil, usagef("%s: %q is not of the form key=value", flag, pair)
		}
		values[key] = value
	}
	return values, nil
}

func (r *submission) request(key string) request {
	return request{method: http.MethodPost, path: "/work-units", body: r, idempotencyKey: key}
}
