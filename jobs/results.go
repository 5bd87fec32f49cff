package jobs

import (
	"encoding/json"
	"io"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// Result is one unit of a batch in its results.
type Result struct {
	CustomID string        `json:"custom_id"`
	ID       uuid.UUID     `json:"id"`
	Status   work.State    `json:"status"`
	Output   *string       `json:"output"`
	Error    *work.Failure `json:"error"`
	Backend  string        `json:"backend"`
	Model    string        `json:"model,omitempty"`
	work.Cost
	Usage      work.Usage `json:"usage"`
	RunCount   int        `json:"run_count"`
	StartedAt  *time.Time `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"`
}

func resultOf(r store.BatchResult) Result {
	return Result{CustomID: r.CustomID, ID: r.ID, Status: r.State, Output: r.Output, Error: r.Error, Backend: r.Backend, Model: r.RunModel,
		Cost: r.Cost, Usage: r.Usage, RunCount: r.RunCount, StartedAt: utc(r.StartedAt), FinishedAt: utc(r.FinishedAt)}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	at := t.UTC()
	return &at
}

// EachResult gives results to f one after the other.
type EachResult func(f func(store.BatchResult) error) error

// WriteResults writes results as lines of JSON.
func WriteResults(w io.Writer, each EachResult) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return each(func(r store.BatchResult) error { return out.Encode(resultOf(r)) })
}
