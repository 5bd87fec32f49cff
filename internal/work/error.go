package work

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors that cross a room's door. The API turns each into a status.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
)

// RemovedError is what was there and was removed because it was old.
type RemovedError struct {
	What string
	At   time.Time
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("%s was removed at %s, because it was old", e.What, e.At.UTC().Format(time.RFC3339))
}

// Why a run's context ended; read it with context.Cause.
var (
	ErrCancelled = errors.New("cancelled")
	ErrTimeout   = errors.New("timeout")
	ErrShutdown  = errors.New("worker process shuts down")
	ErrFenced    = errors.New("lease lost")
)

// ErrLedgerGone ends a process whose Postgres was its own and has ended:
// nobody will bring it back meanwhile.
var ErrLedgerGone = errors.New("postgres has stopped")

// Invalid is a request that can never be honoured as it stands.
type Invalid struct {
	Pointer string // JSON pointer (RFC 6901) to the field at fault, such as "#/timeout"
	Detail  string // what is wrong and what to do
}

func (e *Invalid) Error() string { return e.Pointer + ": " + e.Detail }

// Invalidf makes an Invalid for the field at pointer.
func Invalidf(pointer, format string, args ...any) *Invalid {
	return &Invalid{Pointer: pointer, Detail: fmt.Sprintf(format, args...)}
}

// Within points at the same field of a part of the body.
func (e Invalid) Within(pointer string) Invalid {
	return Invalid{Pointer: pointer + strings.TrimPrefix(e.Pointer, "#"), Detail: e.Detail}
}

// Text is the error for people: without the signs of a pointer.
func (e *Invalid) Text() string {
	if where := strings.TrimLeft(e.Pointer, "#/"); where != "" {
		return where + ": " + e.Detail
	}
	return e.Detail
}

// InvalidFields is a request with several fields at fault; there is one at least.
type InvalidFields struct{ Fields []Invalid }

func (e *InvalidFields) Error() string { return e.Fields[0].Error() }

// Within lets an error about a part of the body point at the field of the whole.
func Within(pointer string, err error) error {
	var invalid *Invalid
	if errors.As(err, &invalid) {
		within := invalid.Within(pointer)
		return &within
	}
	var fields *InvalidFields
	if errors.As(err, &fields) {
		for i := range fields.Fields {
			fields.Fields[i] = fields.Fields[i].Within(pointer)
		}
	}
	return err
}

// Unavailable is a failure of something the house stands on, such as
// Postgres. Nothing was half done; the caller may try again after RetryAfter.
type Unavailable struct {
	What       string
	RetryAfter time.Duration
	Err        error
}

func (e *Unavailable) Error() string { return e.What + " is unavailable: " + e.Err.Error() }
func (e *Unavailable) Unwrap() error { return e.Err }
