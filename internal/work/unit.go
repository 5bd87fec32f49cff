package work

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// DefaultTenant owns everything until API keys say otherwise.
const DefaultTenant = "default"

// Defaults and limits of a unit.
const (
	DefaultQueue      = "default"
	DefaultMaxRetries = 2
	DefaultTimeout    = Seconds(3600)
	DefaultIdle       = Seconds(600)
	MaxTimeout        = Seconds(24 * 3600)
	DefaultPriority   = 5
	MaxCrashes        = 3 // of the backend's process, or of worker processes in a row
	// MaxLosses is how many runs in a row may be lost, for whatever reason, before
	// the unit ends: nothing shows that another would come to its end.
	MaxLosses = 10
	// SuspectDeaths: a unit that has seen so many worker processes in a row die
	// runs alone. Nobody else's run is lost with it, and if it is lost again, it
	// was the one.
	SuspectDeaths = MaxCrashes - 1
)

// What the run after one that was cut off does with that one's session, where
// the backend has such: goes on with it, or begins a new one.
const (
	Resume = "resume"
	Fresh  = "fresh"
)

// MockBackend calls no model: its runs cost nothing, or what they say.
const MockBackend = "mock"

// Whether an agent reads the instructions and settings that lie in its working
// directory.
const (
	SettingsIgnore = "ignore"
	SettingsRead   = "read"
	SettingsNever  = "never" // of a server: no unit may have them read
)

// LaneBatch is the way to the model of a unit that may wait: a line in one of the
// provider's batches, for half the price of a call of its own.
const LaneBatch = "batch"

// Spec is what the caller asked for. It never changes after the unit is
// accepted, except by a retry with changes.
type Spec struct {
	Backend          string          `json:"backend" db:"backend"`
	Worker           string          `json:"worker,omitempty" db:"worker"`
	Model            string          `json:"model,omitempty" db:"model"`
	Prompt           string          `json:"prompt" db:"prompt"`
	SystemPrompt     string          `json:"system_prompt,omitempty" db:"system_prompt"`
	Payload          json.RawMessage `json:"payload" db:"payload"`
	Request          json.RawMessage `json:"request,omitempty" db:"request"` // a Call, in place of a prompt
	Files            Refs            `json:"files,omitempty" db:"files"`
	WorkingDirectory string          `json:"working_directory,omitempty" db:"working_directory"`
	OutputSchema     json.RawMessage `json:"output_schema,omitempty" db:"output_schema"`
	Accept           json.RawMessage `json:"accept,omitempty" db:"accept"`                     // what the result must meet
	ProjectSettings  string          `json:"project_settings,omitempty" db:"project_settings"` // SettingsIgnore or SettingsRead
	MCPServers       Refs            `json:"mcp_servers,omitempty" db:"mcp_servers"`           // by the operator's names
	MaxTurns         int             `json:"max_turns,omitempty" db:"max_turns"`
	MaxCostUSD       *float64        `json:"max_cost_usd,omitempty" db:"max_cost_usd"`
	Timeout          Seconds         `json:"timeout" db:"timeout"`
	IdleTimeout      Seconds         `json:"idle_timeout" db:"idle_timeout"`
	StartupTimeout   Seconds         `json:"startup_timeout,omitempty" db:"startup_timeout"` // to the first output; 0: the backend's own
	CacheTTL         Seconds         `json:"cache_ttl,omitempty" db:"cache_ttl"`             // a succeeded result at most this old is taken over; 0: none
	MissingKey       string          `json:"missing_key" db:"missing_key"`
	SessionPolicy    string          `json:"session_policy" db:"session_policy"` // Resume or Fresh
	MaxRetries       *int            `json:"max_retries,omitempty" db:"max_retries"`
	Queue            string          `json:"queue" db:"queue"`
	Priority         int             `json:"priority" db:"priority"`
	Labels           json.RawMessage `json:"labels" db:"labels"`
	NotBefore        *time.Time      `json:"not_before,omitempty" db:"not_before"`
	Deadline         *time.Time      `json:"deadline,omitempty" db:"deadline"`         // it ends by then
	ExpiresAt        *time.Time      `json:"expires_at,omitempty" db:"expires_at"`     // it starts by then, or never
	CallbackURL      *string         `json:"callback_url,omitempty" db:"callback_url"` // is told when it is final
	Lane             string          `json:"lane,omitempty" db:"lane"`                 // empty: a call of its own; LaneBatch: a line in one of the provider's batches
}

// Unit is one accepted piece of work.
type Unit struct {
	ID     uuid.UUID `json:"id" db:"id"`
	Tenant string    `json:"-" db:"tenant"`
	// Title is the start of the rendered prompt, for lists and search.
	Title string `json:"title" db:"title"`
	Spec
	State             State      `json:"status" db:"state"`
	Dispatch          int        `json:"-" db:"dispatch"`
	RunCount          int        `json:"run_count" db:"run_count"`
	Failures          int        `json:"failures" db:"failures"`
	Losses            int        `json:"losses" db:"losses"`
	Waits             int        `json:"waits" db:"waits"`
	Crashes           int        `json:"crashes" db:"crashes"`
	Deaths            int        `json:"-" db:"deaths"` // worker processes that died of it or with it, in a row
	CancelRequestedAt *time.Time `json:"cancel_requested_at,omitempty" db:"cancel_requested_at"`
	Summary           *string    `json:"summary" db:"summary"` // the start of the output
	Output            *string    `json:"output" db:"output"`   // whole in one unit's answer, absent in lists
	Error             *Failure   `json:"error" db:"-"`
	Cache             Cache      `json:"cache,omitempty" db:"cache"`             // absent: it did not look, or has not ended
	CachedFrom        *uuid.UUID `json:"cached_from,omitempty" db:"cached_from"` // the run that its result was taken from
	Cost              `db:"-"`   // of all its runs that are over
	CreatedAt         time.Time  `json:"created_at" db:"created_at"`
	StartedAt         *time.Time `json:"started_at" db:"started_at"`
	FinishedAt        *time.Time `json:"finished_at" db:"finished_at"`
	BatchID           *uuid.UUID `json:"batch_id,omitempty" db:"batch_id"`
	CustomID          string     `json:"custom_id,omitempty" db:"custom_id"` // within its batch
	Held              bool       `json:"-" db:"held"`                        // its batch has not let it go
}

// Retries is how many failed runs may be followed by another for a failure of
// class c.
func (u *Spec) Retries(c Class) int {
	switch {
	case c.Follow() == FollowFail || c.Follow() == FollowPause:
		return 0
	case u.MaxRetries != nil:
		return *u.MaxRetries
	case c.Follow() == FollowRetryIfAsked:
		return 0
	}
	return DefaultMaxRetries
}
