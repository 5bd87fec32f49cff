package backend

import (
	"context"
	"encoding/json"
	"time"

	"piecework/internal/work"
)

// Batcher is a backend whose provider also takes many requests at once and
// answers them within a day, for half the price: OpenAI's Batch API,
// Anthropic's Message Batches.
//
// An error that is a *work.Failure is the provider's word that nothing was
// done. After any other error nobody knows whether it was.
type Batcher interface {
	Backend
	// Line makes a line of the first call that Execute would make for a
	// request. Its id is left empty. A failure is what Execute would fail with
	// before it calls.
	Line(req Request) (Line, *work.Failure)
	// SendBatch hands in lines, whose ids are unique and which agree in
	// endpoint and model, and returns the provider's id. The key is one that
	// FindBatch finds it by. A line's id has 1 to 64 of [A-Za-z0-9_-].
	SendBatch(ctx context.Context, key string, lines []Line) (id string, err error)
	// FindBatch looks for a batch of so many lines that was sent with a key
	// since a time, by a process that does not know any more. It returns the
	// ids of those that may be it, likeliest first: a provider that keeps no
	// key is asked for what was made at the time.
	FindBatch(ctx context.Context, key string, lines int, since time.Time) (ids []string, err error)
	// KeepsKey tells whether the provider keeps our key: what FindBatch finds is
	// ours then.
	KeepsKey() bool
	// LookAtBatch tells how far a batch is.
	LookAtBatch(ctx context.Context, id string) (BatchNews, error)
	// BatchAnswers reads the answers of a batch that has ended, in the
	// provider's order, once each as the provider has them. It stops at the
	// first error of each.
	BatchAnswers(ctx context.Context, id string, each func(BatchAnswer) error) error
	// AnswerCost tells what an answer of a batch has cost that no run takes: the
	// call is nil for a prompt. nil: nobody can tell.
	AnswerCost(call *work.Call, model string, given Answer) *float64
	// CancelBatch asks the provider to stop. What is answered by then is billed.
	CancelBatch(ctx context.Context, id string) error
}

// Line is one request in a provider's batch.
type Line struct {
	ID       string
	Endpoint string // such as work.EndpointChat
	Model    string
	Body     json.RawMessage
}

// BatchNews is how far a provider's batch is.
type BatchNews struct {
	Ended bool
	// Refused: it has ended because the provider did not take it; nil: it did.
	Refused *work.Failure
	// BadLines are ids of lines that a refusal names.
	BadLines []string
	Done     int // lines that are over, as far as the provider tells
	Total    int
}

// BatchAnswer is what became of a line. Without an Answer the provider has not
// asked the model: the batch expired or was cancelled.
type BatchAnswer struct {
	ID     string
	Answer *Answer
}

// Answer is what an API said to a call, as over HTTP.
type Answer struct {
	Status    int
	RequestID string
	Body      json.RawMessage
}

// MaxBatchLines and MaxBatchBytes bound what one batch is packed with. Providers
// take more, but a batch lies in memory while it is sent.
const (
	MaxBatchLines = 5000
	MaxBatchBytes = 48 << 20
)
