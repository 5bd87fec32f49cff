package opencode

import (
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
)

func TestGolden(t *testing.T) { backendtest.Golden(t, "opencode", listen) }

func listen(_ *testing.T, _ string, req backend.Request, steps *transcript.Writer) backendtest.Recorder {
	told := newParser(req, nil, steps)
	return backendtest.Recorder{Line: told.line, End: func(how cli.Ending) backend.Result {
		reached := told.check() // the runner would have asked by now
		if reached != nil {
			how.Stopped = reached
		}
		result := told.end(how)
		if reached != nil {
			result.Error, result.Success = reached, false
		}
		return result
	}}
}
