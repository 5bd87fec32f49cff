package gemini

import (
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "gemini", listen) }

func listen(t *testing.T, _ string, req backend.Request, steps *transcript.Writer) *cli.Handler {
	return cli.NewHandler(newParser(openRecord(t.TempDir(), req.SessionID), cli.NewOutput(req, nil, steps, nil)))
}
