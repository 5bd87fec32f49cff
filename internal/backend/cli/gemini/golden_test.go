package gemini

import (
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "gemini", listen) }

func listen(t *testing.T, _ string, req backend.Request, steps *transcript.Writer) backendtest.Recorder {
	told := newParser(req, nil, openRecord(t.TempDir(), req.SessionID), steps)
	return backendtest.Recorder{Line: told.line, End: told.end}
}
