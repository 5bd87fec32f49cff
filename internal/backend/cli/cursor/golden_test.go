package cursor

import (
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "cursor", listen) }

func listen(_ *testing.T, _ string, req backend.Request, steps *transcript.Writer) *cli.Handler {
	return cli.NewHandler(newParser(cli.NewOutput(req, nil, steps, nil)))
}
