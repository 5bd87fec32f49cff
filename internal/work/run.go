package work

import (
	"time"

	"github.com/google/uuid"
)

// Usage counts tokens of one run; the names are the field's own.
type Usage struct {
	InputTokens         int64 `json:"input_tokens" db:"input_tokens"`
	OutputTokens        int64 `json:"output_tokens" db:"output_tokens"`
	CacheReadTokens     int64 `json:"cache_read_tokens" db:"cache_read_tokens"`
	CacheCreationTokens int64 `json:"cache_creation_tokens" db:"cache_creation_tokens"`
}

// And adds what was used besides.
func (u Usage) And(more Usage) Usage {
	return Usage{
		InputTokens: plus(u.InputTokens, more.InputTokens), OutputTokens: plus(u.OutputTokens, more.OutputTokens),
		CacheReadTokens:     plus(u.CacheReadTokens, more.CacheReadTokens),
		CacheCreationTokens: plus(u.CacheCreationTokens, more.CacheCreationTokens),
	}
}

// CachedShare is how much of the input came from the provider's prompt cache,
// from 0 to 1.
func (u Usage) CachedShare() float64 {
	all := u.InputTokens + u.CacheReadTokens + u.CacheCreationTokens
	return float64(u.CacheReadTokens) / float64(max(all, 1))
}

// Run is one attempt at a unit. Attempt is its number from 1 and the fence:
// only the unit's newest attempt may finish it.
type Run struct {
	ID             uuid.UUID    `json:"id" db:"id"`
	UnitID         uuid.UUID    `json:"unit_id" db:"unit_id"`
	Attempt        int          `json:"attempt" db:"attempt"`
	Title          string       `json:"task" db:"title"`
	WorkerType     string       `json:"worker_type" db:"worker_type"`
	WorkerProcess  *uuid.UUID   `json:"worker_process" db:"worker_process"`
	Status         RunStatus    `json:"status" db:"status"`
	LiveStatus     *string      `json:"live_status" db:"live_status"`
	Model          *string      `json:"model" db:"model"`
	Result         *string      `json:"result" db:"result"`
	Error          *Failure     `json:"error" db:"-"`
	RenderedPrompt *string      `json:"rendered_prompt,omitempty" db:"rendered_prompt"`
	SessionID      *string      `json:"session_id" db:"session_id"`
	NumTurns       int          `json:"num_turns" db:"num_turns"`
	ToolCalls      int          `json:"tool_calls" db:"tool_calls"`
	Usage          Usage        `json:"usage" db:"-"`
	TotalCostUSD   *float64     `json:"total_cost_usd" db:"total_cost_usd"`
	CostIncomplete bool         `json:"cost_incomplete" db:"cost_incomplete"`
	DurationMS     int64        `json:"duration_ms" db:"duration_ms"`
	DurationAPIMS  int64        `json:"duration_api_ms" db:"duration_api_ms"`
	ExecutionTime  float64      `json:"execution_time" db:"execution_time"` // seconds
	Implausible    []string     `json:"implausible,omitempty" db:"-"`       // figures that were told and cannot be true
	OutputFiles    []OutputFile `json:"output_files" db:"-"`
	HasTranscript  bool         `json:"has_transcript" db:"has_transcript"`
	TranscriptGone *time.Time   `json:"transcript_removed_at" db:"transcript_removed_at"`
	StartedAt      time.Time    `json:"started_at" db:"started_at"`
	CompletedAt    *time.Time   `json:"completed_at" db:"completed_at"`
}

// Cost is what the run has cost, if it is over.
func (r Run) Cost() Cost { return RunCost(r.TotalCostUSD, r.CostIncomplete) }
