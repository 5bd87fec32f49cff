// Package backend is how a model is reached. A Backend runs one rendered
// prompt to its end and writes what happened into a transcript. It knows no
// database and no queue, so it can be run on its own.
//
//	backend.go           Backend, Request, Result: the promise
//	cli.go               runs a command-line agent: limits, the stop ladder
//	cli_output.go        its stdout by lines of any length, the end of its stderr
//	cli_unit.go          one unit on its way: program, home, arguments, environment
//	cli_events.go        events that are kept as they came
//	cli_files.go         attached files as text, as images, by name
//	batcher.go           many calls at once, through a provider's own batches
//	capability.go        what each backend can do
//	failure.go           what statuses and words of a failure mean
//	claude.go            Claude Code: command line, environment, sessions
//	claude_input.go      prompt and files as one message
//	claude_events.go     its events as steps of the transcript
//	claude_tasks.go      what it leaves for later, when nobody will come back
//	claude_result.go     its last word as a result, its failures by class
//	codex.go             Codex: command line, environment, threads
//	codex_events.go      its events as steps of the transcript
//	codex_rollout.go     its own record of a thread, for what the events lack
//	codex_result.go      its last word as a result, its failures by class
//	cursor.go            the Cursor CLI: command line, environment, sessions
//	cursor_events.go     its events as steps, its last word as a result
//	opencode.go          opencode: command line, environment, configuration
//	opencode_events.go   its events as steps of the transcript
//	opencode_result.go   its last word as a result, its failures by class
//	gemini.go            the Gemini CLI: command line, environment, prompts
//	gemini_events.go     its events as steps of the transcript
//	gemini_record.go     its own record of a session, for what the events lack
//	gemini_result.go     its last word as a result, its failures by class
//	model.go             runs a unit on a model API over HTTP: turns, cost, result
//	model_call.go        a unit that is one call, as its caller wrote it
//	model_answer.go      an answer as it streams in, and the steps it becomes
//	model_events.go      server-sent events
//	model_error.go       the APIs' errors by class, and when a limit ends
//	model_files.go       files as parts of a message
//	model_batch.go       calls through batches: a line of each, what came back
//	model_vigil.go       ends a call that is silent for too long
//	model_wire.go        connections for thousands of streams
//	anthropic.go         Anthropic's Messages API
//	anthropic_batch.go   its Message Batches
//	openai.go            OpenAI, and every server that speaks like it
//	openai_chat.go       its chat completions
//	openai_responses.go  its Responses API
//	openai_batch.go      its Batch API
//	project.go           instructions and settings that lie in a directory
//	mcp_server.go        MCP servers that agents may use
//	price.go             what tokens cost
//	schema.go            output_schema
//	mock.go              no model at all: for demos and tests
//	mock_call.go         answers in the shape of each API
//	mock_look.go         what mock can truly say of payload and files
package backend

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Names lists every backend of the design, in the order documents show them.
var Names = []string{"claude", "codex", "cursor", "opencode", "gemini", "anthropic", "openai", "mock"}

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

// openDir opens the directory of a run: the one that was looked at.
func (r Request) openDir() (*os.Root, error) {
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

// After is a result with what an earlier part of the same run has used.
func (r Result) After(first Result) Result {
	r.Metadata = first.Metadata.and(r.Metadata)
	r.CostIncomplete = r.CostIncomplete || first.CostIncomplete
	if r.Output == "" {
		r.Output = first.Output
	}
	return r
}

// File is an attachment on this machine.
type File struct {
	Name      string // base name, unique within the request
	Path      string // absolute; where it was found
	MediaType string
	Size      int64
	// Opened is the file that was looked at, which is what is read: another may
	// lie at Path by now. It is closed by who opened it. When nil, Path is opened.
	Opened *os.File
}

// Open opens the file to be read from its beginning, Size bytes at most.
func (f File) Open() (io.ReadCloser, error) {
	if f.Opened != nil {
		return io.NopCloser(io.NewSectionReader(f.Opened, 0, f.Size)), nil
	}
	return roots.OpenRegular(f.Path)
}

// InPlace tells whether the file that was looked at still lies at its path.
func (f File) InPlace() bool {
	if f.Opened == nil {
		return true
	}
	was, err := f.Opened.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(f.Path)
	return err == nil && os.SameFile(was, now)
}

func (f File) read() ([]byte, error) {
	file, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(file)
}

// Result is what a run came to. Fields without a value are zero.
type Result struct {
	Success  bool
	Output   string
	Error    *work.Failure
	Metadata Metadata
	// CostIncomplete: the run was stopped before its cost was known.
	CostIncomplete bool
}

// Metadata is what the backend tells about a run.
type Metadata struct {
	SessionID    string
	Model        string
	NumTurns     int
	TotalCostUSD *float64 // this run alone; nil when unknown, 0 when certainly no model was reached
	// SessionTotalUSD is what the session has cost over all its runs, where the
	// agent counts that; SessionResumed: this run is not its first.
	SessionTotalUSD *float64
	SessionResumed  bool
	DurationMS      int64
	DurationAPIMS   int64
	Usage           work.Usage
	// Of the API's answer to a call.
	HTTPStatus int
	RequestID  string
}

// and adds up what two processes of one run have used.
func (m Metadata) and(more Metadata) Metadata {
	switch {
	case m.TotalCostUSD == nil:
		more.TotalCostUSD = nil
	case more.TotalCostUSD == nil:
		more.TotalCostUSD = m.TotalCostUSD
	default:
		more.TotalCostUSD = new(*m.TotalCostUSD + *more.TotalCostUSD)
	}
	more.SessionResumed = m.SessionResumed // the second goes on with the first's
	if more.SessionTotalUSD == nil {
		more.SessionTotalUSD = m.SessionTotalUSD
	}
	more.NumTurns += m.NumTurns
	more.DurationMS += m.DurationMS
	more.DurationAPIMS += m.DurationAPIMS
	more.Usage = m.Usage.And(more.Usage)
	return more
}
