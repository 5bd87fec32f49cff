package pg

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

// Every SQLSTATE but those that prove a row to be wrong is repeated, also one
// that nobody has thought of.
func TestTranslate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err         error
		unavailable bool
		kind        kind
	}{
		{&pq.Error{Code: "57P01"}, true, away},     // the server shuts down
		{&pq.Error{Code: "53100"}, true, away},     // its disk is full
		{&pq.Error{Code: "08006"}, true, away},     // the connection failed
		{&pq.Error{Code: "25006"}, true, away},     // it is a standby
		{&pq.Error{Code: "40P01"}, true, conflict}, // a deadlock: the rows are tried alone
		{&pq.Error{Code: "40001"}, true, conflict}, // serialization
		{&pq.Error{Code: "55P03"}, true, conflict}, // lock not available
		{&pq.Error{Code: "42703"}, true, conflict}, // no such column yet
		{&pq.Error{Code: "42601"}, false, unknown}, // a syntax error
		{&pq.Error{Code: "XX000"}, false, unknown}, // internal
		{&pq.Error{Code: "ZZ999"}, false, unknown}, // of a later version
		{&pq.Error{Code: "23505"}, false, refused}, // a unique key
		{&pq.Error{Code: "22003"}, false, refused}, // out of range
		{&badRow{errors.New("NaN")}, false, refused},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, true, away},
		{io.ErrUnexpectedEOF, true, away},
		{context.DeadlineExceeded, true, away},
		{context.Canceled, false, unknown},
		{errors.New("sql: database is closed"), true, away},
		{errors.New("something else"), false, unknown},
	} {
		var gone *work.Unavailable
		got := Translate(fmt.Errorf("call: %w", test.err))
		if errors.As(got, &gone) != test.unavailable || !errors.Is(got, test.err) || kindOf(got) != test.kind ||
			Refused(got) != (test.kind == refused) {
			t.Errorf("%v: %v, kind %d", test.err, got, kindOf(got))
		}
		if again := Translate(got); again.Error() != got.Error() {
			t.Errorf("%v: wrapped twice", test.err)
		}
	}
	if Translate(nil) != nil || Refused(nil) || !errors.Is(Translate(sql.ErrNoRows), work.ErrNotFound) {
		t.Error("nil or no rows")
	}
}
