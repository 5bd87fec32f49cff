package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/examples"
	"piecework/internal/work"
)

const fakeDevVariable = "PIECEWORK_TEST_FAKE_DEV"

// TestFakeDev is no test: it is the server that the demo starts below, in a
// process of its own.
func TestFakeDev(t *testing.T) {
	mode := os.Getenv(fakeDevVariable)
	if mode == "" {
		t.Skip("only the demo's tests start this")
	}
	if mode == "broken" {
		fmt.Fprintln(os.Stderr, "no Postgres here")
		os.Exit(3)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: fakeDevRoutes(mode), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	fmt.Printf("using something\nready http://%s\n", listener.Addr())
	<-ctx.Done()
	os.Exit(0)
}

func fakeDevRoutes(mode string) http.Handler {
	var count atomic.Int64
	var names [100]string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /work-units", func(w http.ResponseWriter, r *http.Request) {
		var body submission
		_ = json.NewDecoder(r.Body).Decode(&body)
		path, _ := body.Payload["file_path"].(string)
		root, name, _ := strings.Cut(path, ":")
		args := strings.Join(os.Args, " ")
		_, dir, _ := strings.Cut(args, "--roots "+root+"=")
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			refuse(w, 422, fmt.Sprintf(`{"title":"Unprocessable Entity","detail":%q}`, err))
			return
		}
		n := count.Add(1)
		names[n] = name
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintf(w, `{"id":"%s","status":"queued"}`, fakeID(n))
	})
	mux.HandleFunc("GET /work-units/{id}", func(w http.ResponseWriter, r *http.Request) {
		id := uuid.MustParse(r.PathValue("id"))
		state, failure := work.Succeeded, "null"
		if mode == "failing" && id[15] == 1 {
			state, failure = work.Failed, `{"class":"infra","message":"down"}`
		}
		_, _ = fmt.Fprintf(w, `{"id":"%s","status":%q,"output":"About %s\nmore","error":%s,"cost_usd":0.01}`,
			id, state, names[id[15]], failure)
	})
	return mux
}

func fakeID(n int64) uuid.UUID {
	id := uuid.MustParse(idA)
	id[15] = byte(n)
	return id
}

func demo(t *testing.T, mode string) (DemoCommand, *stage) {
	t.Setenv(fakeDevVariable, mode)
	t.Setenv("TMPDIR", t.TempDir())
	return DemoCommand{Exit: true, program: []string{os.Args[0], "-test.run=^TestFakeDev$", "--"}}, newStage(t)
}

func checkNothingIsLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestDemoShowsTwelveResults(t *testing.T) {
	command, s := demo(t, "good")
	if err := command.Run(s.App); err != nil {
		t.Fatalf("%v\n%s", err, s.out.String())
	}
	wants := append(examples.Names(), "12 of 12 succeeded in", "cost $0.12", "backend mock", "12 of 12 done",
		"About stock_report.py", "/units/"+fakeID(1).String())
	for _, want := range wants {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, s.out.String())
		}
	}
	checkNothingIsLeft(t)
}

func TestDemoEndsWithOneWhenAUnitFails(t *testing.T) {
	command, s := demo(t, "failing")
	if err := command.Run(s.App); exitCode(err) != exitUnsuccessful {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	if !strings.Contains(s.out.String(), "11 of 12 succeeded") || !strings.Contains(s.out.String(), "infra: down") {
		t.Error(s.out.String())
	}
	checkNothingIsLeft(t)
}

func TestDemoShowsWhyTheServerDidNotStart(t *testing.T) {
	command, s := demo(t, "broken")
	err := command.Run(s.App)
	if err == nil || !strings.Contains(err.Error(), "no Postgres here") {
		t.Errorf("error %v", err)
	}
	checkNothingIsLeft(t)
}

func TestDemoStaysUntilInterrupted(t *testing.T) {
	command, s := demo(t, "good")
	command.Exit = false
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.Ctx = ctx
	s.Stdout = writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "Ctrl-C") {
			cancel()
		}
		return s.out.Write(p)
	})
	if err := command.Run(s.App); err != nil {
		t.Errorf("%v\n%s", err, s.out.String())
	}
	checkNothingIsLeft(t)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

var _ io.Writer = writerFunc(nil)

func TestDemoSaysWhyItUsesItsBackend(t *testing.T) {
	for chosen, want := range map[string]string{"": "mock", "claude": "claude"} {
		name, reason := (&DemoCommand{Backend: chosen}).backend()
		if name != want || !slices.Contains(strings.Fields(reason), "DEMO_BACKEND") {
			t.Errorf("%q: %s, %s", chosen, name, reason)
		}
	}
}
