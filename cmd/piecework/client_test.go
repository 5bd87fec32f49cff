package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// stage is an App whose output a test can read.
type stage struct {
	*App
	out, errs bytes.Buffer
}

func newStage(t *testing.T) *stage {
	s := &stage{}
	s.App = &App{
		Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &s.out, Stderr: &s.errs,
		Getenv: func(string) string { return "" }, Version: "test",
	}
	return s
}

// serveRoutes answers each "METHOD /path" by its handler and anything else by 404.
func serveRoutes(t *testing.T, routes map[string]http.HandlerFunc) Remote {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler := routes[r.Method+" "+r.URL.Path]; handler != nil {
			handler(w, r)
			return
		}
		refuse(w, 404, `{"title":"Not Found","status":404,"detail":"there is no such thing"}`)
	}))
	t.Cleanup(server.Close)
	return Remote{Server: server.URL}
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

func refuse(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func mustClient(t *testing.T, app *App, remote Remote) *client {
	t.Helper()
	c, err := newClient(app, remote)
	if err != nil {
		t.Fatal(err)
	}
	c.sleep = func(context.Context, time.Duration) error { return nil }
	return c
}

func exitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	}
	return -1
}

func TestProblemsBecomeOneLineAndAnExitCode(t *testing.T) {
	for _, tc := range []struct {
		status int
		body   string
		code   int
		want   []string
	}{
		{422, `{"title":"Unprocessable Entity","detail":"the request cannot be honoured","errors":[
			{"pointer":"#/timeout","detail":"must be positive"},{"pointer":"#/foo","detail":"is no field"}]}`,
			exitUsage, []string{"#/timeout must be positive; #/foo is no field"}},
		{413, `{"title":"Too Large","detail":"too big","errors":[{"pointer":"#/prompt","detail":"too big"}]}`,
			exitUsage, []string{"too large: #/prompt too big"}},
		{400, `{"title":"Bad Request","errors":[{"parameter":"limit","detail":"must be at most 500"}]}`,
			exitUsage, []string{"bad request: limit must be at most 500"}},
		{404, `{"title":"Not Found"}`, exitNotFound, []string{"not found", "piecework ls"}},
		{409, `{"title":"Conflict","detail":"the unit has succeeded"}`, exitConflict, []string{"the unit has succeeded"}},
		{401, `{"title":"Unauthorized"}`, exitUsage, []string{"PIECEWORK_KEY"}},
		{500, `{"title":"Internal Server Error","request_id":"r-1"}`, exitUnreachable, []string{"[request r-1]"}},
		{502, "<html>\n\x1b[31mbad gateway</html>", exitUnreachable, []string{"bad gateway: <html> ␛[31mbad gateway</html>"}},
	} {
		t.Run(fmt.Sprint(tc.status), func(t *testing.T) {
			s := newStage(t)
			remote := serveRoutes(t, map[string]http.HandlerFunc{
				"GET /x": func(w http.ResponseWriter, _ *http.Request) { refuse(w, tc.status, tc.body) },
			})
			_, err := mustClient(t, s.App, remote).get(t.Context(), "/x", nil)
			if exitCode(err) != tc.code {
				t.Errorf("exit code %d, want %d: %v", exitCode(err), tc.code, err)
			}
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %q", err, want)
				}
			}
			if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("not one safe line: %q", err)
			}
		})
	}
}

func TestUnreachableServerHasItsOwnExitCode(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	s := newStage(t)
	err := (&GetCommand{Remote: Remote{Server: server.URL}, ID: "x"}).Run(s.App)
	if exitCode(err) != exitUnreachable || !strings.Contains(err.Error(), "piecework dev") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

func TestBusyServerIsAskedOnceMoreWhereThatIsSafe(t *testing.T) {
	for _, tc := range []struct {
		name string
		call request
		want int
	}{
		{"GET", request{method: "GET", path: "/x"}, 2},
		{"POST with a key", request{method: "POST", path: "/x", idempotencyKey: "k"}, 2},
		{"POST without one", request{method: "POST", path: "/x"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls := 0
			busy := func(w http.ResponseWriter, r *http.Request) {
				if calls++; r.Header.Get("Idempotency-Key") != tc.call.idempotencyKey {
					t.Errorf("call %d has another key", calls)
				}
				w.Header().Set("Retry-After", "2")
				refuse(w, 503, `{"title":"Service Unavailable"}`)
			}
			s := newStage(t)
			c := mustClient(t, s.App, serveRoutes(t, map[string]http.HandlerFunc{"GET /x": busy, "POST /x": busy}))
			var slept time.Duration
			c.sleep = func(_ context.Context, d time.Duration) error { slept += d; return nil }
			_, err := c.do(t.Context(), tc.call)
			if exitCode(err) != exitUnreachable || calls != tc.want {
				t.Errorf("%d calls, want %d; %v", calls, tc.want, err)
			}
			if want := 2 * time.Second * time.Duration(tc.want-1); slept != want {
				t.Errorf("slept %s, want %s", slept, want)
			}
		})
	}
}

func TestServerAddress(t *testing.T) {
	s := newStage(t)
	for address, code := range map[string]int{
		"http://127.0.0.1:7070": 0, "localhost:7070": 0, "https://h/base": 0, "ftp://h": exitUsage, "": exitUsage, "http://": exitUsage,
	} {
		if _, err := newClient(s.App, Remote{Server: address}); exitCode(err) != code {
			t.Errorf("%q: exit code %d, want %d (%v)", address, exitCode(err), code, err)
		}
	}
}

func TestKeyIsSent(t *testing.T) {
	s := newStage(t)
	remote := serveRoutes(t, map[string]http.HandlerFunc{"GET /x": func(_ http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("Authorization %q", got)
		}
	}})
	remote.Key = "secret"
	if _, err := mustClient(t, s.App, remote).get(t.Context(), "/x", nil); err != nil {
		t.Error(err)
	}
}

func TestInterruptIsNotASilentServer(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := mustClient(t, s.App, serveRoutes(t, nil)).get(ctx, "/x", nil)
	if exitCode(err) != exitInterrupted {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}
