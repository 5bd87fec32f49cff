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
	"piecework/internal/work"
)

var update = flag.Bool("update", false, "write the golden files anew")

// ears are what an adapter hears a recording with.
type ears struct {
	line func([]byte) bool
	end  func(ending) Result
}

// runGolden replays the recordings in testdata, and compares what an adapter
// made of them. The recordings are what Claude Code 2.1.329, Codex 0.169.0,
// opencode 1.18.33 and Gemini CLI 0.61.0 said to a fake model, cut down. Those of
// Cursor are made up in its documented shape.
func runGolden(t *testing.T, name string, listen func(*testing.T, string, Request, *transcript.Writer) ears) {
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
			req := Request{SessionID: "11111111-1111-4111-8111-111111111111", MaxTurns: 9, Attempt: 1}
			if name == "claude" {
				req.MaxTurns = 2
			}
			steps := transcript.NewWriter(nil, nil)
			got := replay(t, name, recording, listen(t, recording, req, steps), steps)
			compareGolden(t, strings.TrimSuffix(recording, ".jsonl")+".golden.json", got)
		})
	}
}

func TestClaudeGolden(t *testing.T) { runGolden(t, "claude", hearClaude) }

func TestCodexGolden(t *testing.T) { runGolden(t, "codex", hearCodex) }

func TestCursorGolden(t *testing.T) { runGolden(t, "cursor", hearCursor) }

func TestOpenCodeGolden(t *testing.T) { runGolden(t, "opencode", hearOpenCode) }

func TestGeminiGolden(t *testing.T) { runGolden(t, "gemini", hearGemini) }

func compareGolden(t *testing.T, golden string, got []byte) {
	t.Helper()
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
}

func hearClaude(t *testing.T, recording string, req Request, steps *transcript.Writer) ears {
	if strings.Contains(recording, "schema") {
		req.OutputSchema = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)
	}
	schema, failure := objectSchema("claude", req.OutputSchema)
	if failure != nil {
		t.Fatal(failure)
	}
	told := newClaudeTold(req, schema, steps)
	return ears{told.line, told.end}
}

// hearCodex lays the thread's record, where there is one, where the client
// would have written it.
func hearCodex(t *testing.T, recording string, req Request, steps *transcript.Writer) ears {
	home := codexHome{config: t.TempDir()}
	record, err := os.ReadFile(strings.TrimSuffix(recording, ".jsonl") + ".rollout.jsonl")
	if err == nil {
		dir := filepath.Join(home.config, "sessions", "2026", "11", "21")
		if err := makeDir(dir); err != nil {
			t.Fatal(err)
		}
		lines, err := os.ReadFile(recording)
		if err != nil {
			t.Fatal(err)
		}
		var first codexEvent
		line, _, _ := bytes.Cut(lines, []byte("\n"))
		if err := json.Unmarshal(line, &first); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "rollout-2026-11-21T07-52-43-"+first.ThreadID+".jsonl")
		if err := os.WriteFile(path, record, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := newCodexTold(req, nil, home, steps)
	return ears{told.line, told.end}
}

func hearCursor(_ *testing.T, _ string, req Request, steps *transcript.Writer) ears {
	told := newCursorTold(req, nil, steps)
	return ears{told.line, told.end}
}

func hearOpenCode(_ *testing.T, _ string, req Request, steps *transcript.Writer) ears {
	told := newOpenCodeTold(req, nil, steps)
	return ears{told.line, func(how ending) Result {
		reached := told.check() // the runner would have asked by now
		if reached != nil {
			how.stopped = reached
		}
		result := told.end(how)
		if reached != nil {
			result.Error, result.Success = reached, false
		}
		return result
	}}
}

func hearGemini(t *testing.T, _ string, req Request, steps *transcript.Writer) ears {
	told := newGeminiTold(req, nil, openGeminiRecord(t.TempDir(), req.SessionID), steps)
	return ears{told.line, told.end}
}

func replay(t *testing.T, name, recording string, e ears, steps *transcript.Writer) []byte {
	t.Helper()
	lines, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	final := false
	for line := range bytes.Lines(lines) {
		final = e.line(line)
	}
	var how ending
	if strings.HasSuffix(recording, "stopped.jsonl") {
		how.stopped = work.ErrShutdown
	}
	denied := name == "opencode" && strings.Contains(recording, "denied") // it ends there, without a word
	if final != (how.stopped == nil && !denied) {
		t.Errorf("the last line is the last word: %v", final)
	}
	result := e.end(how)
	steps.Close()
	if name != "claude" && name != "cursor" || how.stopped != nil {
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
