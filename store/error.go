package store

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

	"piecework/internal/work"
)

// translate puts a Postgres error into the house's words: work.ErrNotFound,
// *work.Unavailable, or the error itself.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		return work.ErrNotFound
	}
	if away(err) {
		var already *work.Unavailable
		if errors.As(err, &already) {
			return err
		}
		return &work.Unavailable{What: "postgres", RetryAfter: 2 * time.Second, Err: err}
	}
	return err
}

// away tells whether err says that Postgres cannot work now, rather than that
// the statement was wrong.
func away(err error) bool {
	var netErr net.Error
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) {
		return true
	}
	var pgErr *pq.Error
	if !errors.As(err, &pgErr) {
		// lib/pq reports a connection cut in mid-statement as plain text.
		return strings.Contains(err.Error(), "sql: database is closed") ||
			strings.Contains(err.Error(), "unexpected EOF") || strings.Contains(err.Error(), "bad connection")
	}
	switch pgErr.Code.Class() {
	case "08", "53", "57", "58": // connection, resources (disk full), operator (shutdown, cancel), system
		return true
	}
	return pgErr.Code == "25006" // read-only: a standby
}
