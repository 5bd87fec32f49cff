package main

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"piecework/internal/testkit"
)

// A machine that starts anew starts Postgres and Piecework in any order.
func TestServersWaitForPostgres(t *testing.T) {
	t.Parallel()
	database, err := url.Parse(testkit.DB(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	query := database.Query()
	sockets := filepath.Join(dataDir(t), "sockets") // not there yet
	real := query.Get("host")
	query.Set("host", sockets)
	database.RawQuery = query.Encode()
	env := []string{"DATABASE_URL=" + database.String(), "REDIS_URL=redis://127.0.0.1:1/0"}
	var servers []*program
	for _, name := range []string{"api", "worker"} {
		p := launch(t, env, name, "--data", dataDir(t), "--listen", "127.0.0.1:0")
		testkit.Eventually(t, name+" says that it waits", func() bool { return strings.Contains(p.log.String(), "waiting for postgres") })
		servers = append(servers, p)
	}
	stopped := launch(t, env, "worker", "--data", dataDir(t))
	testkit.Eventually(t, "the third waits", func() bool { return strings.Contains(stopped.log.String(), "waiting for postgres") })
	if err := stopped.stop(); err == nil || strings.Contains(stopped.log.String(), "panic") {
		t.Errorf("stopped while it waited: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(sockets), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, sockets); err != nil {
		t.Fatal(err)
	}
	for _, p := range servers {
		p.up()
	}
}

// Connections of which nothing comes must not keep others out.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most = 4
	begun, end := make(chan struct{}), make(chan struct{})
	limit := newConnLimit(inner, most, slog.New(slog.DiscardHandler))
	server := &http.Server{ConnState: limit.track, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			begun <- struct{}{}
			<-end
		}
		_, _ = io.WriteString(w, "hello")
	})}
	go func() { _ = server.Serve(limit) }()
	t.Cleanup(func() { _ = server.Close() })

	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	ask := func(conn net.Conn, path string) {
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	status := func(conn net.Conn) int {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	first := dial()
	ask(first, "/slow")
	<-begun
	for range 3 * most {
		dial() // and say nothing
	}
	fresh := dial()
	ask(fresh, "/")
	if got := status(fresh); got != http.StatusOK {
		t.Errorf("beside idle connections: %d", got)
	}
	testkit.Eventually(t, "it is idle again, as all but the first", func() bool {
		limit.mu.Lock()
		defer limit.mu.Unlock()
		return limit.idle.Len() == most-1
	})
	for range most - 1 {
		ask(dial(), "/slow")
		<-begun
	}
	if got := status(dial()); got != http.StatusServiceUnavailable {
		t.Errorf("beside %d requests: %d", most, got)
	}
	close(end)
	if got := status(first); got != http.StatusOK {
		t.Errorf("the request that was under way: %d", got)
	}
	testkit.Eventually(t, "there is room again", func() bool {
		conn := dial()
		ask(conn, "/")
		return status(conn) == http.StatusOK
	})
}
