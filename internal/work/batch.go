package work

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// BatchStatus is where a batch stands.
type BatchStatus string

// The statuses of a batch. A batch that is paused keeps its status.
const (
	BatchEnumerating           BatchStatus = "enumerating"       // its units are being made; none begins
	BatchTesting               BatchStatus = "testing"           // the first few run
	BatchAwaitingApproval      BatchStatus = "awaiting_approval" // a person says whether the rest may run
	BatchInProgress            BatchStatus = "in_progress"
	BatchFinalizing            BatchStatus = "finalizing" // its units are over, its synthesis is not
	BatchCancelling            BatchStatus = "cancelling"
	BatchCompleted             BatchStatus = "completed" // every unit succeeded
	BatchCompletedWithFailures BatchStatus = "completed_with_failures"
	BatchFailed                BatchStatus = "failed" // its units could not be made: it has none
	BatchCancelled             BatchStatus = "cancelled"
	BatchExpired               BatchStatus = "expired" // its time was over before all its units were
)

// BatchStatuses lists every status in the order a reader expects to meet them.
var BatchStatuses = []BatchStatus{BatchEnumerating, BatchTesting, BatchAwaitingApproval, BatchInProgress, BatchFinalizing, BatchCancelling,
	BatchCompleted, BatchCompletedWithFailures, BatchFailed, BatchCancelled, BatchExpired}

// Final tells whether a batch in status s is over: only a retry of its units
// takes it out again.
func (s BatchStatus) Final() bool {
	switch s {
	case BatchCompleted, BatchCompletedWithFailures, BatchFailed, BatchCancelled, BatchExpired:
		return true
	}
	return false
}

// Protocol is the interface that a batch came through, and that its results
// speak.
type Protocol string

// The protocols.
const (
	ProtocolNative    Protocol = "native"
	ProtocolOpenAI    Protocol = "openai"
	ProtocolAnthropic Protocol = "anthropic"
)

// Limits of a batch.
const (
	// BatchWindow is how many units of a batch are let go at once, at most. So
	// a large batch leaves room for others, and is paused in a moment.
	BatchWindow = 1000
	// MaxBatchProblems is how many refused items a batch tells of.
	MaxBatchProblems = 1000
)

// Batch is units that were submitted together.
type Batch struct {
	ID        uuid.UUID       `json:"id" db:"id"`
	Tenant    string          `json:"-" db:"tenant"`
	Title     string          `json:"title" db:"title"`
	Status    BatchStatus     `json:"status" db:"status"`
	Protocol  Protocol        `json:"protocol" db:"protocol"`
	Source    json.RawMessage `json:"source" db:"source"`
	Unit      json.RawMessage `json:"unit" db:"unit"` // what is the same in all its units
	InputFile *uuid.UUID      `json:"input_file,omitempty" db:"input_file"`
	Metadata  json.RawMessage `json:"metadata" db:"metadata"`

	TestFirst     int             `json:"test_first,omitempty" db:"test_first"`
	Concurrency   int             `json:"concurrency,omitempty" db:"concurrency"`
	MaxCostUSD    *float64        `json:"max_cost_usd,omitempty" db:"max_cost_usd"`
	StopWhen      *StopWhen       `json:"stop_when,omitempty" db:"-"`
	Synthesis     json.RawMessage `json:"synthesis,omitempty" db:"synthesis"`
	SynthesisUnit *uuid.UUID      `json:"synthesis_unit,omitempty" db:"synthesis_unit"`
	ExpiresAt     *time.Time      `json:"expires_at,omitempty" db:"expires_at"`
	CallbackURL   *string         `json:"callback_url,omitempty" db:"callback_url"` // is told when it is over, or waits for a person

	Counts   BatchCounts    `json:"counts" db:"-"`
	Rejected int            `json:"rejected" db:"rejected"` // items that no unit could be made of
	Problems []BatchProblem `json:"problems,omitempty" db:"-"`
	Paused   *BatchPause    `json:"paused" db:"-"`
	Why      string         `json:"why,omitempty" db:"why"` // it failed, was rejected or has expired

	CreatedAt    time.Time  `json:"created_at" db:"created_at"`
	EnumeratedAt *time.Time `json:"enumerated_at" db:"enumerated_at"`
	ApprovedAt   *time.Time `json:"approved_at,omitempty" db:"approved_at"`
	CancelledAt  *time.Time `json:"cancel_requested_at,omitempty" db:"cancelled_at"`
	FinishedAt   *time.Time `json:"finished_at" db:"finished_at"`
}

// BatchPause is why a batch goes no further.
type BatchPause struct {
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"` // a person, or BySystem
	Why   string    `json:"why,omitempty"`
}

// BySystem paused a batch because of its budget or its stop_when.
const BySystem = "piecework"

// BatchCounts is how many units of a batch stand where. Total is always the
// sum of the others.
type BatchCounts struct {
	Total     int `json:"total"`
	Queued    int `json:"queued"`
	Running   int `json:"running"`
	Waiting   int `json:"waiting"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
	Expired   int `json:"expired"` // timed out
	Cost
	Usage *Usage `json:"usage,omitempty"` // of their final runs, once the batch is over
	// PromptCacheHitRate is how much of the input came from the provider's prompt
	// cache, from 0 to 1; told with Usage, unless there was no input.
	PromptCacheHitRate *float64 `json:"prompt_cache_hit_rate,omitempty"`
}

// Add counts n units in a state.
func (c *BatchCounts) Add(s State, n int) {
	c.Total += n
	switch s {
	case Queued:
		c.Queued += n
	case Running:
		c.Running += n
	case Waiting:
		c.Waiting += n
	case Succeeded:
		c.Succeeded += n
	case Failed:
		c.Failed += n
	case Cancelled:
		c.Cancelled += n
	case TimedOut:
		c.Expired += n
	}
}

// Finished is how many are over.
func (c BatchCounts) Finished() int { return c.Succeeded + c.Failed + c.Cancelled + c.Expired }

// BatchProblem is an item of a source that no unit could be made of.
type BatchProblem struct {
	Line     int    `json:"line,omitempty"` // of the source, from 1
	CustomID string `json:"custom_id,omitempty"`
	Code     string `json:"code,omitempty"` // by OpenAI's names, where it has one
	Pointer  string `json:"pointer,omitempty"`
	Detail   string `json:"detail"`
}

// StopWhen pauses a batch when one of the rates of the units that finished last
// is higher than it says.
type StopWhen struct {
	Window      int      `json:"window"`                  // of how many units
	FailureRate *float64 `json:"failure_rate,omitempty"`  // those that failed or timed out, of 1
	RefusalRate *float64 `json:"refusal_rate,omitempty"`  // those that the model declined, of 1
	MeanCostUSD *float64 `json:"mean_cost_usd,omitempty"` // of a unit
}

// DefaultStopWindow is the window of StopWhen when none is given.
const DefaultStopWindow = 20
