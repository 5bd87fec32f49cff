package claude

import (
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "claude", listen) }

func listen(t *testing.T, recording string, req backend.Request, steps *transcript.Writer) *cli.Handler {
	if strings.Contains(recording, "schema") {
		req.OutputSchema = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)
	}
	schema, failure := cli.ObjectSchema("claude", req.OutputSchema)
	if failure != nil {
		t.Fatal(failure)
	}
	return cli.NewHandler(newParser(cli.NewOutput(req, schema, steps, nil)))
}
