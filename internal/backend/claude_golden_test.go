package backend

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

	"piecework/internal/transcript"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The recordings are what Claude Code 2.1.329 said to a fake model, cut down.
func TestClaudeGolden(t *testing.T) {
	recordings, err := filepath.Glob("testdata/claude/*.jsonl")
	if err != nil || len(recordings) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, recording := range recordings {
		t.Run(strings.TrimSuffix(filepath.Base(recording), ".jsonl"), func(t *testing.T) {
			got := replay(t, recording)
			golden := strings.TrimSuffix(recording, ".jsonl") + ".golden.json"
			if *update {
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
		})
	}
}

func replay(t *testing.T, recording string) []byte {
	t.Helper()
	lines, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	req := Request{SessionID: "11111111-1111-4111-8111-111111111111", MaxTurns: 2}
	if strings.Contains(recording, "schema") {
		req.OutputSchema = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)
	}
	schema, failure := objectSchema("claude", req.OutputSchema)
	if failure != nil {
		t.Fatal(failure)
	}
	steps := transcript.NewWriter(nil, nil)
	told := newClaudeTold(req, schema, steps)
	final := false
	for line := range bytes.Lines(lines) {
		final = told.line(line)
	}
	if !final {
		t.Error("the last line is not the last word")
	}
	result := told.end(ending{})
	steps.Close()
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
