package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"piecework/internal/work"
)

// kind is what an error of a statement means for repeating it. It is decided
// here, and nowhere else.
type kind int

const (
	unknown  kind = iota // nobody knows: the same statement may succeed later
	away                 // Postgres cannot work now, for nobody
	conflict             // another transaction was in the way, or the schema is being changed: repeat it
	refused              // proven: the row itself can never be written
)

// kindOf classifies an error. What is not proven to be the row's own fault is
// worth a repetition.
func kindOf(err error) kind {
	var pgErr *pq.Error
	if errors.As(err, &pgErr) {
		return kindOfCode(pgErr.Code)
	}
	var netErr net.Error
	switch {
	case errors.As(err, new(*badRow)):
		return refused
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr), errors.As(err, new(*work.Unavailable)):
		return away
	}
	// lib/pq reports a connection cut in mid-statement as plain text.
	for _, words := range []string{"sql: database is closed", "unexpected EOF", "bad connection"} {
		if strings.Contains(err.Error(), words) {
			return away
		}
	}
	return unknown
}

func kindOfCode(code pqerror.Code) kind {
	switch code {
	case "25006": // read-only: a standby
		return away
	case "42703", "42P01", "42883": // no such column, table, function: a migration has not come this far
		return conflict
	}
	switch code.Class() {
	case "08", "53", "57", "58": // connection, resources (disk full), operator (shutdown, cancel), system
		return away
	case "40", "55": // rolled back (deadlock, serialization), not in the state for it (lock not available)
		return conflict
	case "22", "23": // bad data, a constraint
		return refused
	}
	return unknown
}

// badRow is a row that cannot even be sent.
type badRow struct{ err error }

func (b *badRow) Error() string { return b.err.Error() }
func (b *badRow) Unwrap() error { return b.err }

// Refused tells whether err proves that what was to be written can never be: a
// value that the database cannot hold, or a constraint. Whatever else goes wrong,
// the same call may succeed later.
func Refused(err error) bool { return err != nil && kindOf(err) == refused }

// Translate puts a Postgres error into the house's words: work.ErrNotFound,
// *work.Unavailable, or the error itself.
func Translate(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		return work.ErrNotFound
	}
	if k := kindOf(err); (k == away || k == conflict) && !errors.As(err, new(*work.Unavailable)) {
		return &work.Unavailable{What: "postgres", RetryAfter: 2 * time.Second, Err: err}
	}
	return err
}
