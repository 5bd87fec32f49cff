package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/lib/pq"

	"piecework/internal/work"
)

func TestTranslate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		away bool
	}{
		{&pq.Error{Code: "57P01"}, true},  // the server shuts down
		{&pq.Error{Code: "53100"}, true},  // its disk is full
		{&pq.Error{Code: "08006"}, true},  // the connection failed
		{&pq.Error{Code: "25006"}, true},  // it is a standby
		{&pq.Error{Code: "23505"}, false}, // a unique key
		{&pq.Error{Code: "40P01"}, false}, // a deadlock: the rows are tried alone
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		{io.ErrUnexpectedEOF, true},
		{context.DeadlineExceeded, true},
		{context.Canceled, false},
		{errors.New("sql: database is closed"), true},
		{errors.New("something else"), false},
	} {
		var away *work.Unavailable
		got := translate(fmt.Errorf("call: %w", test.err))
		if errors.As(got, &away) != test.away || !errors.Is(got, test.err) {
			t.Errorf("%v: %v", test.err, got)
		}
		if again := translate(got); again.Error() != got.Error() {
			t.Errorf("%v: wrapped twice", test.err)
		}
	}
	if translate(nil) != nil || !errors.Is(translate(sql.ErrNoRows), work.ErrNotFound) {
		t.Error("nil or no rows")
	}
}
