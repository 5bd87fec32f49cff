package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// parseSubmit reads arguments as the command line does.
func parseSubmit(t *testing.T, args ...string) (*SubmitCommand, error) {
	t.Helper()
	var line struct {
		Submit SubmitCommand `cmd:""`
	}
	parser, err := kong.New(&line)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(append([]string{"submit"}, args...))
	return &line.Submit, err
}

func TestSubmitBuildsTheRequest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "prompt.txt"), []byte("From a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "schema.json"), []byte(`{"type":"object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"least", "", []string{"-b", "mock", "--prompt", "Hi"}, `{"backend":"mock","prompt":"Hi"}`},
		{"prompt from stdin", "Hello\n", []string{"-b", "mock", "--prompt", "-"}, `{"backend":"mock","prompt":"Hello\n"}`},
		{"prompt piped", "Hello", []string{"-b", "mock"}, `{"backend":"mock","prompt":"Hello"}`},
		{"prompt from a file", "", []string{"-b", "mock", "--prompt-file", "prompt.txt"}, `{"backend":"mock","prompt":"From a file"}`},
		{"payload", "", []string{"-b", "mock", "--prompt", "x", "--payload", `{"n":12345678901234567890,"a":"old"}`, "-p", "a=b=c,d", "-p", "e="},
			`{"backend":"mock","prompt":"x","payload":{"a":"b=c,d","e":"","n":12345678901234567890}}`},
		{"files", "", []string{"-b", "mock", "--prompt", "x", "-f", "prompt.txt", "-f", "docs:a.md", "-f", "/etc/hostname"},
			`{"backend":"mock","prompt":"x","payload":{"file_paths":["` + dir + `/prompt.txt","docs:a.md","/etc/hostname"]}}`},
		{"schema and policies", "", []string{"-b", "mock", "--prompt", "x", "--output-schema", "@schema.json", "--missing-key", "note",
			"--session-policy", "fresh", "--not-before", "2030-01-31T18:00:00Z"},
			`{"backend":"mock","prompt":"x","output_schema":{"type":"object"},"missing_key":"note","session_policy":"fresh",
			"not_before":"2030-01-31T18:00:00Z"}`},
		{"everything else", "", []string{
			"-b", "claude", "--prompt", "x", "--model", "m", "--system-prompt", "s", "--working-directory", "docs:sub",
			"--max-turns", "3", "--max-cost-usd", "0.5", "--timeout", "1m30s", "--idle-timeout", "20", "--startup-timeout", "5",
			"--cache", "24h", "--delay", "2s",
			"--deadline", "2030-01-31T18:00:00Z", "--expires-at", "2030-01-31T17:00:00Z", "--max-retries", "0", "--queue", "slow",
			"--priority", "0", "-l", "team=a b", "--on-denied", "note",
		}, `{"backend":"claude","prompt":"x","model":"m","system_prompt":"s","working_directory":"docs:sub","max_turns":3,
			"max_cost_usd":0.5,"timeout":90,"idle_timeout":20,"startup_timeout":5,"cache":86400,"delay":2,"deadline":"2030-01-31T18:00:00Z","expires_at":"2030-01-31T17:00:00Z","max_retries":0,
			"queue":"slow","priority":0,"labels":{"team":"a b"},"on_denied":"note"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			command, err := parseSubmit(t, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			body, err := command.submission(strings.NewReader(tc.stdin))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(normal(t, tc.want), normal(t, marshal(t, body))); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

func marshal(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// normal is a document with sorted keys and numbers as written.
func normal(t *testing.T, document string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(document))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return marshal(t, value)
}

func TestSubmitRefusesWhatCannotBe(t *testing.T) {
	for name, args := range map[string][]string{
		"no prompt":           {"-b", "mock"},
		"payload is no JSON":  {"-b", "mock", "--prompt", "x", "--payload", "{"},
		"payload is a list":   {"-b", "mock", "--prompt", "x", "--payload", "[1]"},
		"payload is null":     {"-b", "mock", "--prompt", "x", "--payload", "null"},
		"two payloads":        {"-b", "mock", "--prompt", "x", "--payload", "{} {}"},
		"pair without =":      {"-b", "mock", "--prompt", "x", "-p", "a"},
		"label without key":   {"-b", "mock", "--prompt", "x", "-l", "=a"},
		"timeout":             {"-b", "mock", "--prompt", "x", "--timeout", "soon"},
		"deadline":            {"-b", "mock", "--prompt", "x", "--deadline", "tomorrow"},
		"expiry":              {"-b", "mock", "--prompt", "x", "--expires-at", "tomorrow"},
		"schema":              {"-b", "mock", "--prompt", "x", "--output-schema", "{"},
		"schema file":         {"-b", "mock", "--prompt", "x", "--output-schema", "@/does/not/exist"},
		"prompt file":         {"-b", "mock", "--prompt-file", "/does/not/exist"},
		"files by two routes": {"-b", "mock", "--prompt", "x", "-f", "a", "--payload", `{"file_paths":[]}`},
	} {
		command, err := parseSubmit(t, args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := command.submission(strings.NewReader("")); exitCode(err) != exitUsage {
			t.Errorf("%s: exit code %d, want %d (%v)", name, exitCode(err), exitUsage, err)
		}
	}
	if _, err := parseSubmit(t, "--prompt", "x"); err == nil {
		t.Error("a submit without a backend was taken")
	}
	if _, err := parseSubmit(t, "-b", "mock", "--prompt", "x", "--on-denied", "ignore"); err == nil || !strings.Contains(err.Error(), "--on-denied") {
		t.Errorf("on_denied that does not exist: %v", err)
	}
	if _, err := parseSubmit(t, "-b", "mock", "--prompt", "x", "--prompt-file", "y"); err == nil {
		t.Error("two prompts were taken")
	}
}

const idA, idB = "01970000-0000-7000-8000-00000000000a", "01970000-0000-7000-8000-00000000000b"

func TestSubmitPrintsTheIDAndSendsAKey(t *testing.T) {
	var keys []string
	remote := serveRoutes(t, map[string]http.HandlerFunc{"POST /work-units": func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"id":"`+idA+`","status":"queued"}`)
	}})
	s := newStage(t)
	command := SubmitCommand{Remote: remote, Backend: "mock", Prompt: "x"}
	for range 2 {
		if err := command.Run(s.App); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.out.String(); got != idA+"\n"+idA+"\n" {
		t.Errorf("printed %q", got)
	}
	if keys[0] == "" || keys[0] == keys[1] {
		t.Errorf("keys %q must be new each time", keys)
	}
}
