package claude

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
)

// What it costs to hear a message that comes in many lines grows with the lines,
// not with their square. It is measured in bytes that were allocated.
func TestManyLinesOfOneMessageAreLinear(t *testing.T) {
	hear := func(lines int) uint64 {
		told := newParser(cli.NewOutput(backend.Request{}, nil, transcript.NewWriter(nil, func(s string) string { return s }), nil))
		handler := cli.NewHandler(told)
		line := []byte(fmt.Sprintf(`{"type":"assistant","message":{"id":"msg_1","content":[{"type":"text","text":%q}]}}`, strings.Repeat("x", 1000)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range lines {
			handler.Line(line)
		}
		runtime.ReadMemStats(&after)
		if told.text.Len() != 1000*lines {
			t.Errorf("%d bytes of text from %d lines", told.text.Len(), lines)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	const lines = 1000
	once, twice := hear(lines), hear(2*lines)
	if twice > 3*once {
		t.Errorf("%d lines took %d bytes, twice as many %d", lines, once, twice)
	}
}
