package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"piecework/internal/backend"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/work"
)

// The same unit on every backend: unit, run and transcript have one shape.
func TestEveryBackendAnswersAlike(t *testing.T) {
	t.Parallel()
	model := fakemodel.Start(t)
	docs := t.TempDir()
	if err := os.WriteFile(filepath.Join(docs, "note.txt"), []byte("the word is heliotrope"), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"ANTHROPIC_API_KEY=sk-secret-value", "ANTHROPIC_BASE_URL=" + model.URL,
		"OPENAI_API_KEY=sk-secret-value", "OPENAI_BASE_URL=" + model.URL + "/v1", "PIECEWORK_ROOTS=docs=" + docs,
	}
	for _, agent := range []string{"claude", "codex", "cursor", "opencode", "gemini"} {
		env = append(env, "PIECEWORK_"+strings.ToUpper(agent)+"_PATH="+fakecli.BuildAs(t, agent))
	}
	p := launch(t, env, "dev", "--data", dataDir(t), "--listen", "127.0.0.1:0").up()
	var first []string
	for _, name := range backend.Names {
		_, answer := p.call("POST", "/work-units?wait=2m", fmt.Sprintf(
			`{"backend":%q,"prompt":"What is the word?","files":["docs:note.txt"],"timeout":"1m","labels":{"case":"alike"}}`, name))
		var u unitWithRuns
		if err := json.Unmarshal(answer, &u); err != nil {
			t.Fatalf("%s: %v: %s", name, err, answer)
		}
		if u.State != work.Succeeded || len(u.Runs) != 1 || u.Output == nil || *u.Output == "" || !u.Runs[0].HasTranscript {
			t.Errorf("%s: %s", name, answer)
			continue
		}
		_, run := p.call("GET", "/runs/"+u.Runs[0].ID.String(), "")
		_, transcript := p.call("GET", "/runs/"+u.Runs[0].ID.String()+"/transcript", "")
		shape := slices.Concat(shapeOf(t, "unit", answer), shapeOf(t, "run", run))
		if first == nil {
			first = shape
		}
		if diff := cmp.Diff(first, shape); diff != "" {
			t.Errorf("%s is not as %s: %s", name, backend.Names[0], diff)
		}
		if !strings.Contains(string(transcript), `"type":"action"`) {
			t.Errorf("%s: transcript %s", name, transcript)
		}
	}
}

// mayBeNull are the fields that some backends have nothing for, and their types
// elsewhere. A live status is there only if a step came before the end.
var mayBeNull = map[string]string{"model": "string", "session_id": "string", "total_cost_usd": "float64", "cost_usd": "float64", "live_status": "string"}

// shapeOf lists the fields of a JSON value with their types.
func shapeOf(t *testing.T, name string, text []byte) []string {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%s: %v: %s", name, err, text)
	}
	return fieldsOf(name, value)
}

func fieldsOf(at string, value any) (fields []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if key == "project_settings" { // of agents alone, which work in a directory
				continue
			}
			if kind, may := mayBeNull[key]; may && v[key] == nil {
				fields = append(fields, at+"."+key+" "+kind)
				continue
			}
			fields = append(fields, fieldsOf(at+"."+key, v[key])...)
		}
		return append(fields, at+" object")
	case []any:
		for n, item := range v {
			fields = append(fields, fieldsOf(fmt.Sprintf("%s.%d", at, n), item)...)
		}
		return append(fields, at+" list")
	}
	return []string{fmt.Sprintf("%s %T", at, value)}
}
