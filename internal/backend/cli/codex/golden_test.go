package codex

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "codex", listen) }

// listen lays the thread's record, where there is one, where the client
// would have written it.
func listen(t *testing.T, recording string, req backend.Request, steps *transcript.Writer) *cli.Handler {
	home := home{config: t.TempDir()}
	record, err := os.ReadFile(strings.TrimSuffix(recording, ".jsonl") + ".rollout.jsonl")
	if err == nil {
		dir := filepath.Join(home.config, "sessions", "2026", "11", "21")
		if err := cli.MakeDir(dir); err != nil {
			t.Fatal(err)
		}
		lines, err := os.ReadFile(recording)
		if err != nil {
			t.Fatal(err)
		}
		var first event
		line, _, _ := bytes.Cut(lines, []byte("\n"))
		if err := json.Unmarshal(line, &first); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "rollout-2026-11-21T07-52-43-"+first.ThreadID+".jsonl")
		if err := os.WriteFile(path, record, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cli.NewHandler(newParser(home, cli.NewOutput(req, nil, steps, nil)))
}
