package testkit

import (
	"context"
	"strings"
	"testing"

	"piecework/internal/local"
)

// Redis returns the URL of a Redis of the test's own, stopped when the test
// ends.
func Redis(t testing.TB) string {
	t.Helper()
	return StartRedis(t).URL
}

// RedisServer is a server of the test's own, to be broken.
type RedisServer struct {
	URL string // the same after every Start

	t       testing.TB
	options local.RedisOptions
	server  *local.Redis // nil while it is down
}

// StartRedis starts a redis-server, or an embedded one where there is none.
func StartRedis(t testing.TB) *RedisServer {
	t.Helper()
	r := &RedisServer{t: t, options: local.RedisOptions{Dir: newDir(t, "redis-")}}
	r.Start()
	t.Cleanup(r.Stop)
	return r
}

// Real tells whether the server is a process of its own. One that is not
// forgets everything at Stop.
func (r *RedisServer) Real() bool { return !r.options.Embedded }

// Stop ends the server at once, as a crash would.
func (r *RedisServer) Stop() {
	if r.server == nil {
		return
	}
	r.server.Kill()
	r.server = nil
}

// Start starts the server again, with the data of a real one, and returns when
// it answers.
func (r *RedisServer) Start() {
	r.t.Helper()
	if r.server != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), Patience)
	defer cancel()
	server, err := local.StartRedis(ctx, r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.URL != "" && r.URL != server.URL {
		r.t.Errorf("redis came back at %s, was at %s", server.URL, r.URL)
	}
	r.server, r.URL = server, server.URL
	if server.Embedded {
		r.options.Embedded = true
		r.options.Addr = strings.TrimSuffix(strings.TrimPrefix(server.URL, "redis://"), "/0")
	}
}
