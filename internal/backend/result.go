package backend

import (
	"context"
	"errors"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// After is a result with what an earlier part of the same run has used.
func (r Result) After(first Result) Result {
	r.Metadata = first.Metadata.And(r.Metadata)
	r.CostIncomplete = r.CostIncomplete || first.CostIncomplete
	if r.Output == "" {
		r.Output = first.Output
	}
	return r
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

// And adds up what two processes of one run have used.
func (m Metadata) And(more Metadata) Metadata {
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

// Interrupted is the failure of a run whose context ended: a timeout is one,
// anything else is the caller's own doing.
func Interrupted(cause error) *work.Failure {
	if errors.Is(cause, work.ErrTimeout) || errors.Is(cause, context.DeadlineExceeded) {
		return work.Fail(work.ClassTimeout, "the run took longer than its timeout")
	}
	return nil
}

// maxMessage bounds the message of a failure.
const maxMessage = 8 << 10

// Sanitize makes a result's texts fit to be stored.
func Sanitize(r *Result, steps *transcript.Writer) {
	r.Output = steps.Redact(work.Clean(r.Output))
	r.Metadata.SessionID, r.Metadata.Model = work.Clean(r.Metadata.SessionID), work.Clean(r.Metadata.Model)
	if r.Error != nil {
		r.Error.Message, _ = work.Cut(steps.Redact(work.Clean(r.Error.Message)), maxMessage)
	}
}

// MaxAnswer bounds the text of one answer.
const MaxAnswer = 64 << 20
