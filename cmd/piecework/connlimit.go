package main

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// connLimit keeps connections of clients from using up the file descriptors
// that the server needs for Postgres, Redis and files. At the limit a new
// connection takes the place of the one that has been idle for the longest time;
// when none is idle, it is answered with 503 and closed.
type connLimit struct {
	net.Listener
	most int
	log  *slog.Logger

	mu   sync.Mutex
	open map[net.Conn]*list.Element // in idle, or nil while a request is under way
	idle *list.List                 // of net.Conn, the one that became idle first in front
	full time.Time                  // when the log said last that the limit is reached
}

const (
	leastConns = 16
	fullPause  = time.Minute // between two log lines about the limit
	refusal    = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)

// mostConns is half of the file descriptors that this process may have.
func mostConns() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return leastConns
	}
	return max(leastConns, int(min(uint64(limit.Cur), 1<<30)/2))
}

func newConnLimit(l net.Listener, most int, log *slog.Logger) *connLimit {
	return &connLimit{Listener: l, most: most, log: log, open: map[net.Conn]*list.Element{}, idle: list.New()}
}

// Accept returns the next connection that there is room for.
func (l *connLimit) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.admit(conn) {
			return conn, nil
		}
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte(refusal)) // the client sees a closed connection otherwise
		_ = conn.Close()
	}
}

func (l *connLimit) admit(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		if now := time.Now(); now.Sub(l.full) > fullPause {
			l.full = now
			l.log.Warn("limit of client connections reached: idle ones are closed, further ones are refused; raise it with `ulimit -n`", "limit", l.most, "idle", l.idle.Len())
		}
		oldest := l.idle.Front()
		if oldest == nil {
			return false
		}
		old := l.idle.Remove(oldest).(net.Conn)
		delete(l.open, old)
		_ = old.Close()
	}
	l.open[conn] = l.idle.PushBack(conn) // until its request has come
	return true
}

// track follows the state of each connection, as http.Server.ConnState.
func (l *connLimit) track(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.open[conn]
	if !known {
		return // closed to make room
	}
	if at != nil {
		l.idle.Remove(at)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		l.open[conn] = l.idle.PushBack(conn)
	case http.StateActive:
		l.open[conn] = nil
	case http.StateHijacked, http.StateClosed:
		delete(l.open, conn)
	}
}
