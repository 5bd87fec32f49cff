package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/accept"
	"piecework/internal/backend"
	"piecework/internal/prompt"
	"piecework/internal/strictjson"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// UnitBody is what a caller submits.
type UnitBody struct {
	Backend string            `json:"backend,omitempty" doc:"How the model is reached; this or worker" example:"mock"`
	Worker  string            `json:"worker,omitempty" doc:"Kept for named definitions, which there are none of yet: every value is refused"`
	Prompt  string            `json:"prompt,omitempty" minLength:"1" doc:"This or request. A template: {key} and {payload.key} take values from the payload, {{ }} are literal braces" example:"Summarise {text}"`
	Request strictjson.Object `json:"request,omitempty" doc:"In place of a prompt, one call of the backend's API: endpoint, such as /v1/chat/completions, and body, which goes there unchanged, but for stream. The API's answer is the output"`
	Payload strictjson.Object `json:"payload,omitempty" doc:"Values for the prompt. file_path and file_paths attach files; working_directory is where the work happens"`

	Files            []string             `json:"files,omitempty" nullable:"false" doc:"Files to attach: ids of uploads, name:path in a root, or absolute paths inside one; the payload's file_path and file_paths do the same"`
	Model            string               `json:"model,omitempty" maxLength:"200" doc:"The backend's own default when left out"`
	SystemPrompt     string               `json:"system_prompt,omitempty"`
	WorkingDirectory string               `json:"working_directory,omitempty" doc:"name:path in a root, or an absolute path inside one; an own empty directory when left out"`
	OutputSchema     strictjson.Object    `json:"output_schema,omitempty" doc:"JSON Schema that the output must fit"`
	Accept           strictjson.Object    `json:"accept,omitempty" doc:"What the result must meet, beyond that the backend says it is done; all parts that are given must hold. command: a text for a shell, or a list of program and arguments, run in the unit's directory with the output on its standard input, exit status 0 accepts (only where the operator allows it), with its timeout, 5 min when left out; file_exists: a path or a glob in the unit's directory; output_matches: an RE2 regular expression; expression: a CEL condition over output, a text, and json, its value. A result that does not meet it is asked for once more in the same session, then the unit fails with not_accepted"`
	ProjectSettings  string               `json:"project_settings,omitempty" enum:"ignore,read" doc:"Whether an agent reads the instructions and settings that lie in the directory it works in, such as CLAUDE.md and .mcp.json. read trusts that directory: what lies there may run commands. The server's default when left out (PIECEWORK_PROJECT_SETTINGS)"`
	MCPServers       []string             `json:"mcp_servers,omitempty" nullable:"false" maxItems:"20" doc:"MCP servers that an agent gets, by the names that the operator has given them (PIECEWORK_MCP_SERVERS)"`
	MissingKey       string               `json:"missing_key,omitempty" enum:"fail,note" doc:"What to do when the payload lacks a key of the prompt: fail before any money is spent, or note it in the prompt and go on"`
	SessionPolicy    string               `json:"session_policy,omitempty" enum:"resume,fresh" doc:"After a loss, a shutdown, a timeout or a rate limit the next run goes on with the agent's session, where the backend has such, or begins afresh; resume when left out"`
	OnDenied         string               `json:"on_denied,omitempty" enum:"fail,note" doc:"What follows when the agent answers after a tool call was denied, and the same tool did not succeed later with the same arguments. fail, when left out: the run fails with tool_denied, and its output is kept. note: the denial is only counted"`
	MaxTurns         int                  `json:"max_turns,omitempty" minimum:"1" maximum:"10000" doc:"No limit when left out"`
	MaxCostUSD       *float64             `json:"max_cost_usd,omitempty" doc:"Of one run; no limit when left out"`
	Timeout          *strictjson.Duration `json:"timeout,omitempty" doc:"Of one run, in seconds or as \"1h30m\"; 1 h when left out, 24 h at most"`
	IdleTimeout      *strictjson.Duration `json:"idle_timeout,omitempty" doc:"Longest silence of the backend; 10 min when left out"`
	StartupTimeout   *strictjson.Duration `json:"startup_timeout,omitempty" doc:"Longest wait for a run's first output: a line of an agent, the header of a model API's answer. When left out: 1 min for agents, idle_timeout for model APIs"`
	CacheTTL         *strictjson.Duration `json:"cache_ttl,omitempty" doc:"The same as cache, by the name under which it is read; this or cache"`
	Cache            *strictjson.Duration `json:"cache,omitempty" doc:"Take over the result of an earlier unit that asked exactly the same, if it succeeded at most this long ago, such as \"24h\"; run, and keep the result for others, if there is none. Not together with working_directory"`
	Deadline         *time.Time           `json:"deadline,omitempty" doc:"The unit is timed_out when it has not ended by then"`
	ExpiresAt        *time.Time           `json:"expires_at,omitempty" doc:"The unit is timed_out when it has not started by then"`
	NotBefore        *time.Time           `json:"not_before,omitempty" doc:"Runs no sooner; this or delay"`
	Delay            *strictjson.Duration `json:"delay,omitempty" doc:"Runs no sooner than this after it was accepted"`
	MaxRetries       *int                 `json:"max_retries,omitempty" minimum:"0" maximum:"100" doc:"Runs after failed ones. When left out: 2, and 0 after a timeout, which has cost its full price already. Lost worker processes and rate limits use none up"`
	Queue            string               `json:"queue,omitempty" pattern:"^[a-z0-9_-]{1,64}$" doc:"default when left out"`
	Priority         *int                 `json:"priority,omitempty" minimum:"0" maximum:"9" doc:"5 when left out; 7 and above go before the rest, 3 and below after"`
	Lane             string               `json:"lane,omitempty" enum:"live,batch,auto" doc:"live, when left out: a call of its own, at once. batch: a line in one of the provider's own batches, for half the price; what these have not answered when the deadline is near runs live. auto: batch if the deadline is a day away or more, else live"`
	CallbackURL      *string              `json:"callback_url,omitempty" doc:"Is told when the unit is final, by a signed POST: see /callback-secret" example:"https://example.com/done"`
	Labels           strictjson.Texts     `json:"labels,omitempty" maxProperties:"32" doc:"For finding units again"`
}

// NewUnit turns a body into a unit that can be accepted, or says what is wrong
// with it. Nothing is changed here.
func (r *Rules) NewUnit(ctx context.Context, b *UnitBody) (store.NewUnit, error) {
	n := store.NewUnit{Unit: work.Unit{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant,
		Spec: work.Spec{
			Backend: b.Backend, Model: b.Model, Prompt: b.Prompt, SystemPrompt: b.SystemPrompt,
			Payload: json.RawMessage(b.Payload), Request: json.RawMessage(b.Request), Files: b.Files,
			WorkingDirectory: b.WorkingDirectory, OutputSchema: json.RawMessage(b.OutputSchema),
			MissingKey: b.MissingKey, SessionPolicy: cmp.Or(b.SessionPolicy, work.Resume),
			OnDenied: cmp.Or(b.OnDenied, work.OnDeniedFail), MaxTurns: b.MaxTurns, MaxCostUSD: b.MaxCostUSD, MaxRetries: b.MaxRetries,
			Queue: b.Queue, Priority: work.DefaultPriority, NotBefore: b.NotBefore, Deadline: b.Deadline, ExpiresAt: b.ExpiresAt,
			CallbackURL: b.CallbackURL,
		},
	}}
	s := &n.Spec
	if len(s.Payload) == 0 {
		s.Payload = json.RawMessage("{}")
	}
	s.MissingKey, s.Queue = cmp.Or(s.MissingKey, "fail"), cmp.Or(s.Queue, work.DefaultQueue)
	if b.Priority != nil {
		s.Priority = *b.Priority
	}
	if s.WorkingDirectory == "" {
		s.WorkingDirectory = payloadDirectory(s.Payload)
	}
	for _, check := range []func(context.Context, *UnitBody, *store.NewUnit) error{
		checkAsked, checkBackend, checkTimes, checkLabels, checkRequest, checkLimits, r.checkPrice, r.checkAccept, r.checkProject,
		checkLane, r.checkCallback, r.checkFiles,
	} {
		if err := check(ctx, b, &n); err != nil {
			return n, err
		}
	}
	if n.Title == "" {
		n.Title = Title(s)
	}
	return n, nil
}

// checkPrice refuses a limit on costs that nobody could keep.
func (r *Rules) checkPrice(_ context.Context, _ *UnitBody, n *store.NewUnit) error {
	if n.MaxCostUSD != nil && r.Prices.Unpriced(n.Backend, n.Model) {
		return work.Invalidf("#/max_cost_usd", "cannot be kept: %s, or leave max_cost_usd out", backend.NoPrice(n.Model))
	}
	return nil
}

// unpriced is what is wrong with a unit of a batch whose limit on costs nobody
// could keep.
func (r *Rules) unpriced(b work.Batch, n *store.NewUnit) []work.Invalid {
	limit := ""
	switch {
	case b.MaxCostUSD != nil:
		limit = "max_cost_usd"
	case b.StopWhen != nil && b.StopWhen.MeanCostUSD != nil:
		limit = "mean_cost_usd in stop_when"
	}
	if limit == "" || !r.Prices.Unpriced(n.Backend, n.Model) {
		return nil
	}
	return []work.Invalid{{Pointer: "#/model", Detail: fmt.Sprintf("the batch's %s cannot be kept: %s, or leave %[1]s out", limit, backend.NoPrice(n.Model))}}
}

// checkRequest looks at the call that is in place of a prompt. Everything that
// makes a prompt, and what we keep by reading the answer, goes with a prompt
// only.
func checkRequest(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	if len(b.Request) == 0 {
		return nil
	}
	if !backend.Can(b.Backend, work.CanRequest) {
		return work.Invalidf("#/request", "the backend %s has no API that a request could go to; give it a prompt, or choose one of openai, anthropic, mock", b.Backend)
	}
	for _, field := range []struct {
		name  string
		given bool
	}{
		{"prompt", b.Prompt != ""}, {"payload", len(b.Payload) > 0}, {"system_prompt", b.SystemPrompt != ""}, {"model", b.Model != ""},
		{"files", len(b.Files) > 0}, {"working_directory", b.WorkingDirectory != ""}, {"output_schema", len(b.OutputSchema) > 0},
		{"max_turns", b.MaxTurns > 0}, {"max_cost_usd", b.MaxCostUSD != nil}, {"missing_key", b.MissingKey != ""},
		{"on_denied", b.OnDenied != ""}, {"cache", b.Cache != nil},
	} {
		if field.given {
			return work.Invalidf("#/"+field.name, "goes with a prompt; with a request, whatever the API is to know stands in its body")
		}
	}
	strict := json.NewDecoder(bytes.NewReader(b.Request))
	strict.DisallowUnknownFields()
	var call work.Call
	if err := strict.Decode(&call); err != nil {
		return work.Invalidf("#/request", "has the fields endpoint, a text, and body, an object, and no others")
	}
	if !slices.Contains(backend.Endpoints(b.Backend), call.Endpoint) {
		return work.Invalidf("#/request/endpoint", "the backend %s takes requests to %s", b.Backend, strings.Join(backend.Endpoints(b.Backend), ", "))
	}
	if body := bytes.TrimSpace(call.Body); len(body) == 0 || body[0] != '{' {
		return work.Invalidf("#/request/body", "must be an object: what the API is sent")
	}
	if b.IdleTimeout == nil {
		n.IdleTimeout = n.Timeout // an answer that is no stream is silence until it is there
	}
	n.Model, _ = work.Cut(work.Clean(backend.CallModel(&call)), maxModel)
	n.Title = cmp.Or(shortTitle(backend.CallText(&call)), call.Endpoint)
	return nil
}

const maxModel = 200

func checkAsked(_ context.Context, b *UnitBody, _ *store.NewUnit) error {
	if b.Prompt == "" && len(b.Request) == 0 {
		return work.Invalidf("#/prompt", "is missing; give the unit a prompt, or a request")
	}
	return nil
}

func checkBackend(_ context.Context, b *UnitBody, _ *store.NewUnit) error {
	switch {
	case b.Worker != "" && b.Backend != "":
		return work.Invalidf("#/worker", "give either worker or backend, not both")
	case b.Worker != "":
		return work.Invalidf("#/worker", "no worker %q is defined on this server; name a backend instead", b.Worker)
	case b.Backend == "":
		return work.Invalidf("#/backend", "say which backend runs the unit: one of %s", strings.Join(backend.Names, ", "))
	case !slices.Contains(backend.Names, b.Backend):
		return work.Invalidf("#/backend", "there is no backend %q; choose one of %s", b.Backend, strings.Join(backend.Names, ", "))
	}
	return nil
}

func checkLabels(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	n.Labels = json.RawMessage("{}")
	if len(b.Labels) == 0 {
		return nil
	}
	n.Labels = json.RawMessage(b.Labels)
	return strictjson.CheckTexts("#/labels", n.Labels)
}

func checkLimits(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	if len(b.Request) == 0 {
		if err := CheckPrompt(b.Prompt); err != nil {
			return err
		}
	}
	if b.MaxCostUSD != nil && !(*b.MaxCostUSD > 0 && *b.MaxCostUSD <= 1e6) {
		return work.Invalidf("#/max_cost_usd", "must be more than 0 and at most 1000000")
	}
	if b.MaxCostUSD != nil && !backend.Can(b.Backend, work.CanMaxCost) {
		return work.Invalidf("#/max_cost_usd", "the backend %s does not tell what a run costs while it works; limit it by max_turns", b.Backend)
	}
	if len(b.OutputSchema) == 0 {
		return nil
	}
	if !backend.Can(b.Backend, work.CanSchema) {
		return work.Invalidf("#/output_schema", "the backend %s cannot be held to a schema; choose another, or leave it out", b.Backend)
	}
	if failure := backend.CheckSchema(n.OutputSchema); failure != nil {
		return work.Invalidf("#/output_schema", "%s", failure.Message)
	}
	return nil
}

// checkAccept looks at the check that the result must meet.
func (r *Rules) checkAccept(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	if len(b.Accept) == 0 {
		return nil
	}
	check, err := accept.Parse(json.RawMessage(b.Accept))
	if err != nil {
		return err
	}
	switch {
	case check.NeedsDirectory() && len(b.Request) > 0:
		return work.Invalidf("#/accept", "a request has no directory: check its answer by output_matches or expression")
	case check.HasCommand() && !r.AcceptCommands:
		return work.Invalidf("#/accept/command", "this server runs no commands for checks; its operator can allow them with --accept-commands (PIECEWORK_ACCEPT_COMMANDS). Use file_exists, output_matches or expression")
	case check.FileExists != "" && n.WorkingDirectory == "" && !backend.WritesFiles(b.Backend):
		return work.Invalidf("#/accept/file_exists", "the backend %s writes no files: check its output by output_matches or expression", b.Backend)
	}
	n.Accept = json.RawMessage(b.Accept)
	return nil
}

// checkProject looks at what an agent is to read of its directory, and at the MCP
// servers it gets.
func (r *Rules) checkProject(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	agent := backend.Can(b.Backend, work.CanTools) && len(b.Request) == 0
	switch {
	case !agent && b.ProjectSettings == work.SettingsRead:
		return work.Invalidf("#/project_settings", "the backend %s reads no directory: leave it out", b.Backend)
	case !agent && len(b.MCPServers) > 0:
		return work.Invalidf("#/mcp_servers", "the backend %s takes no MCP servers; agents do", b.Backend)
	case b.ProjectSettings == work.SettingsIgnore && backend.MustReadProject(b.Backend):
		return work.Invalidf("#/project_settings", "%s reads %s of its directory whatever it is told: leave it out, or choose another backend", b.Backend, strings.Join(backend.ProjectFiles(b.Backend), ", "))
	case agent && backend.MustReadProject(b.Backend) && r.ProjectSettings == work.SettingsNever:
		return work.Invalidf("#/backend", "%s reads the settings of its directory whatever it is told, and this server lets no agent do so (PIECEWORK_PROJECT_SETTINGS)", b.Backend)
	case b.ProjectSettings == work.SettingsRead && r.ProjectSettings == work.SettingsNever:
		return work.Invalidf("#/project_settings", "this server lets no agent read the settings of its directory (PIECEWORK_PROJECT_SETTINGS)")
	}
	if agent {
		n.ProjectSettings = cmp.Or(b.ProjectSettings, r.ProjectSettings)
	}
	if n.ProjectSettings == work.SettingsNever || agent && n.ProjectSettings == "" {
		n.ProjectSettings = work.SettingsIgnore
	}
	if agent && backend.MustReadProject(b.Backend) {
		n.ProjectSettings = work.SettingsRead
	}
	for i, name := range b.MCPServers {
		pointer := fmt.Sprintf("#/mcp_servers/%d", i)
		switch {
		case len(r.MCPServers) == 0:
			return work.Invalidf(pointer, "this server has no MCP servers for units; its operator names them in PIECEWORK_MCP_SERVERS")
		case !slices.Contains(r.MCPServers, name):
			return work.Invalidf(pointer, "there is no MCP server %.70q here; choose of %s", name, strings.Join(r.MCPServers, ", "))
		case slices.Contains(b.MCPServers[:i], name):
			return work.Invalidf(pointer, "is named twice")
		}
	}
	n.MCPServers = b.MCPServers
	return nil
}

// aDay is how long a provider may take to answer a batch.
const aDay = 24 * time.Hour

// checkLane chooses the unit's lane.
func checkLane(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	if b.Lane == "" || b.Lane == "live" {
		return nil
	}
	if !backend.Can(b.Backend, work.CanBatchLane) {
		if b.Lane == "auto" {
			return nil
		}
		return work.Invalidf("#/lane", "the backend %s has no batches of its own; those of openai and anthropic have: leave lane out, or set it to auto", b.Backend)
	}
	if b.Lane == "auto" {
		begins, end := time.Now().Add(n.Delay.Duration()), n.Deadline
		if n.NotBefore != nil && n.NotBefore.After(begins) {
			begins = *n.NotBefore
		}
		if end == nil || n.ExpiresAt != nil && n.ExpiresAt.Before(*end) {
			end = cmp.Or(n.ExpiresAt, end)
		}
		if end == nil || end.Before(begins.Add(aDay)) {
			return nil
		}
	}
	n.Lane = work.LaneBatch
	return nil
}

func (r *Rules) checkCallback(_ context.Context, b *UnitBody, _ *store.NewUnit) error {
	if b.CallbackURL == nil {
		return nil
	}
	if err := r.Webhooks.CheckURL(*b.CallbackURL); err != nil {
		return work.Invalidf("#/callback_url", "%v", err)
	}
	return nil
}

// CheckPrompt refuses a prompt that says nothing.
func CheckPrompt(prompt string) error {
	if strings.TrimSpace(prompt) == "" {
		return work.Invalidf("#/prompt", "there is nothing in it but blanks")
	}
	return nil
}

// titleBytes is how much of a prompt names a unit.
const titleBytes = 200

// Title is the start of the rendered prompt, or of the template when it cannot
// be rendered (the run will say why).
func Title(s *work.Spec) string {
	text, err := prompt.Render(s.Prompt, s.Payload, prompt.Missing(s.MissingKey))
	if err != nil {
		text = s.Prompt
	}
	return shortTitle(text)
}

// shortTitle is without secrets: lists, webhooks and logs tell titles.
func shortTitle(text string) string {
	text, _ = work.Cut(text, 100*titleBytes)
	text, _ = work.Cut(transcript.RedactStart(text, 4*titleBytes), 4*titleBytes)
	var short strings.Builder
	short.Grow(2 * titleBytes)
	for word := range strings.FieldsSeq(text) {
		if short.Len() > 0 {
			short.WriteByte(' ')
		}
		if short.WriteString(word); short.Len() > titleBytes {
			break // the rest is cut off
		}
	}
	text, _ = work.Cut(short.String(), titleBytes)
	return work.Clean(text)
}
