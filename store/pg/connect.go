package pg

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

const (
	// StatementLimit is how long a statement may take, unless its context ends
	// sooner or Allow gave it longer. Then Postgres is asked to cancel it.
	StatementLimit = 10 * time.Second
	// silentLimit is the same as long as the last write had no answer: then a
	// statement is mostly a look whether Postgres is back.
	silentLimit = 3 * time.Second
	// LongLimit is for statements about many rows.
	LongLimit = 30 * time.Second
	// closeAfter is how long Postgres has to answer a cancel. Then the connection
	// is closed: nobody is at its other end.
	closeAfter = time.Second
	// dialLimit bounds whatever lib/pq opens a connection for, also to cancel a
	// statement, which it would wait for without end.
	dialLimit = 5 * time.Second
	// silence is how long nothing must come on one connection before the others
	// are distrusted too.
	silence = 2 * time.Second
	// unacknowledged is how long the kernel waits for the other machine to
	// acknowledge bytes that it was sent.
	unacknowledged = 10 * time.Second
)

type allowance struct{}

type repeated struct{}

// Prepare marks the statements of ctx as those that come all the time: each
// connection prepares such a statement once and keeps its plan.
func Prepare(ctx context.Context) context.Context { return context.WithValue(ctx, repeated{}, true) }

// Allow lets the statements of ctx take up to d each. It is for statements
// about many rows: whoever needs none of them must not wait for long.
func Allow(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, allowance{}, d)
}

// pulse is what the connections of a store know of Postgres together.
type pulse struct {
	begun  time.Time
	silent atomic.Int64 // when a connection was last closed for want of an answer, by now
	away   atomic.Bool  // the last write had no answer
}

// allowed is how long a statement of ctx may take.
func (p *pulse) allowed(ctx context.Context) time.Duration {
	if d, ok := ctx.Value(allowance{}).(time.Duration); ok {
		return d
	}
	if p.away.Load() {
		return silentLimit
	}
	return StatementLimit
}

// now is a clock of our own: how long the store has been there.
func (p *pulse) now() int64 { return int64(time.Since(p.begun)) + 1 }

// connector opens connections whose statements end in time, whatever becomes
// of Postgres and the network. lib/pq waits for an answer without end: when a
// context ends it asks Postgres to cancel, and a Postgres that is frozen or cut
// off does not hear that. So each statement sets a deadline on the socket.
type connector struct {
	pq         *pq.Connector
	pulse      *pulse
	unprepared bool
}

func newConnector(dsn string, p *pulse, unprepared bool) (*connector, error) {
	c, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	c.Dialer(dialer{})
	return &connector{pq: c, pulse: p, unprepared: unprepared}, nil
}

func (c *connector) Driver() driver.Driver { return c.pq.Driver() }

type dialled struct{}

// Connect opens a connection before ctx ends.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	var l *link
	opening, cancel := context.WithTimeout(context.WithValue(ctx, dialled{}, &l), c.pulse.allowed(ctx))
	defer cancel()
	opened, err := c.pq.Connect(opening)
	if err != nil {
		return nil, err
	}
	conn, ok := opened.(pqConn)
	if !ok || l == nil {
		return nil, fmt.Errorf("open a connection: lib/pq returned a %T", opened)
	}
	l.pulse, l.unprepared = c.pulse, c.unprepared
	l.heard.Store(c.pulse.now())
	return &boundConn{pqConn: conn, link: l}, nil
}

// dialer opens the sockets of connections, and of requests to cancel.
type dialer struct{}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

func (dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	by := time.Now().Add(dialLimit)
	d := net.Dialer{
		Deadline:        by,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         setUserTimeout,
	}
	socket, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok && end.Before(by) {
		by = end
	}
	l := &link{Conn: socket, opening: by}
	if into, ok := ctx.Value(dialled{}).(**link); ok {
		*into = l
	}
	return l, l.SetDeadline(by)
}

// link is the socket of a connection.
type link struct {
	net.Conn
	pulse   *pulse
	opening time.Time    // until then the connection must be open
	sent    atomic.Int64 // when the last statement began, by the pulse's clock
	heard   atomic.Int64 // when Postgres last answered

	patience atomic.Int64 // how long nothing must come before the others are distrusted

	unprepared bool // no statement is prepared
}

// SetDeadline is called by lib/pq, with a later time than we allow or none.
func (l *link) SetDeadline(t time.Time) error {
	if l.pulse == nil && (t.IsZero() || t.After(l.opening)) {
		t = l.opening
	}
	return l.Conn.SetDeadline(t)
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if l.pulse != nil {
		if n > 0 {
			l.heard.Store(l.pulse.now())
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			l.silent()
		}
	}
	return n, err
}

// silent takes in that a statement had no answer. One whose caller left early
// proves nothing.
func (l *link) silent() {
	now := l.pulse.now()
	if now-max(l.sent.Load(), l.heard.Load()) >= l.patience.Load() {
		l.pulse.silent.Store(now)
	}
}

// pqConn is what a connection of lib/pq can do and database/sql asks for.
type pqConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.QueryerContext
	driver.ExecerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// boundConn sets a deadline before each statement. One at a time uses it.
type boundConn struct {
	pqConn
	link *link

	mu      sync.Mutex
	number  int    // of the statement
	release func() // ends what watches over it

	prepared map[string]preparedStmt
}

// preparedStmt is what a prepared statement of lib/pq can do.
type preparedStmt interface {
	driver.Stmt
	driver.StmtQueryContext
	driver.StmtExecContext
}

// bound gives the next statement its time and returns the context to run it
// under. What it reads is read under the same deadline.
func (c *boundConn) bound(ctx context.Context) context.Context {
	c.free()
	limit := c.link.pulse.allowed(ctx)
	ctx, cancel := context.WithTimeout(ctx, limit)
	by, _ := ctx.Deadline()
	c.link.sent.Store(c.link.pulse.now())
	c.link.patience.Store(int64(min(silence, limit)))
	_ = c.link.SetDeadline(by.Add(min(closeAfter, limit/2))) // a closed socket says so when it is used
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	number := c.number
	stop := context.AfterFunc(ctx, func() { c.left(number) })
	c.release = func() { stop(); cancel() }
	return ctx
}

// left takes in that nobody waits for a statement any more.
func (c *boundConn) left(number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.number == number && c.release != nil {
		_ = c.link.SetDeadline(time.Now().Add(closeAfter))
	}
}

// free ends the watch over a statement that is over.
func (c *boundConn) free() {
	c.mu.Lock()
	release := c.release
	c.release = nil
	c.mu.Unlock()
	if release != nil {
		release()
	}
}

func (c *boundConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return run(ctx, c, query, func(ctx context.Context, stmt preparedStmt) (driver.Rows, error) {
		if stmt == nil {
			return c.pqConn.QueryContext(ctx, query, args)
		}
		return stmt.QueryContext(ctx, args)
	})
}

func (c *boundConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return run(ctx, c, query, func(ctx context.Context, stmt preparedStmt) (driver.Result, error) {
		if stmt == nil {
			return c.pqConn.ExecContext(ctx, query, args)
		}
		return stmt.ExecContext(ctx, args)
	})
}

// run runs a query, by its prepared statement where it comes all the time. A
// prepared statement that is refused for what it is has done nothing, and is tried
// once more, prepared anew.
func run[T any](ctx context.Context, c *boundConn, query string, do func(context.Context, preparedStmt) (T, error)) (none T, err error) {
	if c.link.unprepared || ctx.Value(repeated{}) == nil {
		return do(c.bound(ctx), nil)
	}
	for again := true; ; again = false {
		stmt, err := c.stmt(ctx, query)
		if err != nil {
			return none, err
		}
		result, err := do(c.bound(ctx), stmt)
		if !again || !c.outdated(query, err) {
			return result, err
		}
	}
}

// stmt is the prepared statement of a query.
func (c *boundConn) stmt(ctx context.Context, query string) (preparedStmt, error) {
	if stmt, ok := c.prepared[query]; ok {
		return stmt, nil
	}
	made, err := c.pqConn.PrepareContext(c.bound(ctx), query)
	if err != nil {
		return nil, err
	}
	stmt, ok := made.(preparedStmt)
	if !ok {
		return nil, fmt.Errorf("prepare a statement: lib/pq returned a %T", made)
	}
	if c.prepared == nil {
		c.prepared = map[string]preparedStmt{}
	}
	c.prepared[query] = stmt
	return stmt, nil
}

// outdated tells whether a prepared statement was refused for what it is, and
// forgets it then: a migration has changed what it returns, or a pooler has given
// this connection another of Postgres's.
func (c *boundConn) outdated(query string, err error) bool {
	var refused *pq.Error
	if !errors.As(err, &refused) || refused.Code != featureNotSupported && refused.Code != invalidStatementName {
		return false
	}
	delete(c.prepared, query)
	return true
}

const (
	featureNotSupported  = "0A000" // such as: cached plan must not change result type
	invalidStatementName = "26000"
)

func (c *boundConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.pqConn.PrepareContext(c.bound(ctx), query)
}

func (c *boundConn) Ping(ctx context.Context) error { return c.pqConn.Ping(c.bound(ctx)) }

func (c *boundConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	// The context is the whole transaction's, so lib/pq does not get the bound
	// of this statement.
	c.bound(ctx)
	tx, err := c.pqConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return boundTx{tx, c, c.link.pulse.allowed(ctx)}, nil
}

type boundTx struct {
	driver.Tx
	conn  *boundConn
	limit time.Duration
}

func (t boundTx) Commit() error {
	t.conn.bound(Allow(context.Background(), t.limit))
	return t.Tx.Commit()
}

func (t boundTx) Rollback() error {
	t.conn.bound(Allow(context.Background(), closeAfter))
	return t.Tx.Rollback()
}

// ResetSession is asked before the connection is used again. One that has not
// been heard of since another had no answer may be as dead as that: it is
// replaced, not tried.
func (c *boundConn) ResetSession(ctx context.Context) error {
	c.free()
	if c.link.heard.Load() < c.link.pulse.silent.Load() {
		return driver.ErrBadConn
	}
	return c.pqConn.ResetSession(ctx)
}

func (c *boundConn) IsValid() bool {
	c.free()
	return c.pqConn.IsValid()
}

func (c *boundConn) Close() error {
	c.free()
	_ = c.link.SetDeadline(time.Now().Add(closeAfter)) // to say goodbye
	return c.pqConn.Close()
}
