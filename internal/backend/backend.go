// Package backend is the contract of all backends, and what they share. A backend
// runs one rendered prompt, or one call of a model API, to its end and writes what
// happened into a transcript. It knows no database and no queue, so it can be run
// on its own.
//
//	backend.go      Backend, Request: the contract
//	result.go       Result: what a run came to
//	capability.go   what is known of each backend by its name: one table
//	batcher.go      many calls at once, through a provider's own batches
//	call.go         a unit that is one call of a model API
//	file.go         attached files
//	mcp_server.go   MCP servers that agents may use
//	failure.go      classes of failures by HTTP status and by words
//	price.go        what tokens cost
//	schema.go       output_schema
//	read.go         lenient JSON, lines of any length
//
// Each backend is a package below this one: command-line agents in cli, HTTP model
// APIs in model, and mock. This package imports none of them; cmd/piecework makes
// the list.
package backend

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Backend reaches one kind of model.
type Backend interface {
	// Name is the backend's word in units, tables and pages.
	Name() string
	// Available returns nil when the backend can run here, else an error that
	// says what is missing and how to mend it.
	Available(ctx context.Context) error
	// Execute runs one request and writes its steps. When it returns, nothing
	// that it started is alive. A failure of the work is in Result.Error; the
	// error is for what the backend itself could not do. When ctx ends it
	// stops what it started and returns what there is: output so far, session,
	// cost.
	Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error)
}

// Versioned is a backend that knows the version of what it runs.
type Versioned interface {
	Version(ctx context.Context) (string, error)
}

// Configured is a backend whose operator has a say in its answers.
type Configured interface {
	// Settings names what the operator has set, without secrets: the same
	// request may be answered differently under other settings.
	Settings() string
}

// Request is one run's work, ready to be done: prompt rendered, files checked.
type Request struct {
	UnitID  uuid.UUID
	RunID   uuid.UUID
	Attempt int

	Prompt       string
	SystemPrompt string
	Model        string
	Payload      json.RawMessage
	Call         *work.Call // in place of a prompt; nil: none
	Answer       *Answer    // to the first call, from a batch of a Batcher; nil: ask
	OutputSchema json.RawMessage
	Files        []File

	// Dir is the directory the work happens in. Home is private to the unit
	// and outlives the run: configuration, sessions, temporary files.
	Dir  string
	Home string
	// OpenedDir is the directory that was looked at, which is what is used:
	// another may lie at Dir by now. It is closed by who opened it. When nil, Dir
	// is opened.
	OpenedDir *os.Root

	// Repair, if there is one, asks for a better answer in the session of an
	// earlier one: what was wrong with it is said in place of the prompt.
	Repair *Repair

	// SessionID is chosen before the run so that a crashed run can be resumed.
	// With Resume the session exists and has cost SessionCostUSD so far.
	SessionID      string
	Resume         bool
	SessionCostUSD float64

	// ProjectSettings is work.SettingsRead when an agent is to read the
	// instructions and settings that lie in Dir.
	ProjectSettings string
	MCPServers      []MCPServer

	MaxTurns    int      // 0: no limit
	MaxCostUSD  *float64 // nil: no limit
	IdleTimeout time.Duration
	// StartupTimeout bounds the time to the first output; 0: the backend's own.
	StartupTimeout time.Duration

	// Lease ends what the run has started when the worker process cannot; nil:
	// it is not needed. Execute then returns process.ErrLapsed.
	Lease *process.Lease
}

// OpenDir opens the directory of a run: the one that was looked at.
func (r Request) OpenDir() (*os.Root, error) {
	if r.OpenedDir != nil {
		return roots.Below(r.OpenedDir, ".")
	}
	return roots.OpenOwn(r.Dir)
}

// Repair is an answer that was not accepted, and what is wrong, in words for the
// model.
type Repair struct{ Answer, Words string }

// Again makes a request that asks for another answer in the same session, and
// tells whether turns and money are left for it. first is what the request
// before has come to.
func (r Request) Again(first Result, words string) (again Request, ok bool) {
	ok = r.ContinueAfter(first.Metadata)
	r.Repair, r.Answer = &Repair{Answer: first.Output, Words: words}, nil
	return r, ok
}

// ContinueAfter changes a request into one for a further process of the same
// session, and tells whether turns and money are left for it.
func (r *Request) ContinueAfter(done Metadata) bool {
	r.Resume, r.SessionID = true, done.SessionID
	if r.MaxTurns > 0 {
		if r.MaxTurns -= done.NumTurns; r.MaxTurns < 1 {
			return false
		}
	}
	if done.TotalCostUSD == nil {
		return r.MaxCostUSD == nil
	}
	r.SessionCostUSD += *done.TotalCostUSD
	if r.MaxCostUSD != nil {
		r.MaxCostUSD = new(*r.MaxCostUSD - *done.TotalCostUSD)
	}
	return r.MaxCostUSD == nil || *r.MaxCostUSD > 0
}

// RedactURL is a base URL fit to be read by people: without a password.
func RedactURL(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "the base URL"
	}
	return u.Redacted()
}

// ReadsProject tells whether a run reads the instructions and settings of its
// directory.
func (r Request) ReadsProject() bool { return r.ProjectSettings == work.SettingsRead }
