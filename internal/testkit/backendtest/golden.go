package backendtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

var Update = flag.Bool("update", false, "write the golden files anew")

// Golden replays the recordings in testdata, and compares what an adapter
// made of them. The recordings are what Claude Code 2.1.329, Codex 0.169.0,
// opencode 1.18.33 and Gemini CLI 0.61.0 said to a fake model, cut down. Those of
// Cursor are made up in its documented shape.
func Golden(t *testing.T, name string, listen func(*testing.T, string, backend.Request, *transcript.Writer) *cli.Handler) {
	t.Helper()
	recordings, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(recordings) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, recording := range recordings {
		if strings.HasSuffix(recording, ".rollout.jsonl") {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(recording), ".jsonl"), func(t *testing.T) {
			req := backend.Request{SessionID: "11111111-1111-4111-8111-111111111111", MaxTurns: 9, Attempt: 1}
			if name == "claude" {
				req.MaxTurns = 2
			}
			steps := transcript.NewWriter(nil, nil)
			got := replay(t, name, recording, listen(t, recording, req, steps), steps)
			CompareGolden(t, strings.TrimSuffix(recording, ".jsonl")+".golden.json", got)
		})
	}
}

func CompareGolden(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

func replay(t *testing.T, name, recording string, h *cli.Handler, steps *transcript.Writer) []byte {
	t.Helper()
	lines, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	final := false
	for line := range bytes.Lines(lines) {
		final = h.Line(line)
	}
	var how cli.Ending
	if strings.HasSuffix(recording, "stopped.jsonl") {
		how.Stopped = work.ErrShutdown
	}
	denied := name == "opencode" && strings.Contains(recording, "denied") // it ends there, without a word
	if final != (how.Stopped == nil && !denied) {
		t.Errorf("the last line is the final result: %v", final)
	}
	var reached *work.Failure
	if name == "opencode" { // the runner would have asked by now
		reached = h.Check()
	}
	if reached != nil {
		how.Stopped = reached
	}
	result := h.Result(how)
	if reached != nil {
		result.Error, result.Success = reached, false
	}
	steps.Close()
	if name != "claude" && name != "cursor" || how.Stopped != nil {
		result.Metadata.DurationMS = 0 // by our clock
	}
	if result.Error != nil && !result.Error.ResetAt.IsZero() {
		result.Error.ResetAt = time.Unix(1800000000, 0).UTC()
	}
	written := steps.Steps()
	for i := range written {
		written[i].Time = time.Time{}
	}
	out, err := json.MarshalIndent(map[string]any{"result": result, "steps": written}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}
