package cursor

import (
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "cursor", listen) }

func listen(_ *testing.T, _ string, req backend.Request, steps *transcript.Writer) backendtest.Recorder {
	told := newParser(req, nil, steps)
	return backendtest.Recorder{Line: told.line, End: told.end}
}
