package fakemodel

import (
	"strings"
	"time"
)

// Turn is one answer of the model.
//
// Which turn answers a request depends on the request alone: turn n answers
// the request that holds n assistant messages after its prompt, and the last
// turn answers all that come later. The prompt is the last user message with
// the mark [[script:NAME]], else the last plain one: text, no tool result. So
// a client's retry meets the same turn again.
//
// A turn with Times fails that often, counted over all conversations of the
// script, then it is gone and the next turn has its place:
//
//	s.Script(Turn{Status: 429, Times: 2}, Turn{Text: "done"})
//
// answers the first two requests with 429 and every later one with "done".
type Turn struct {
	Text     string
	Thinking string
	Calls    []Call // tool_use blocks, in order
	// TextBytes: that many bytes of filler in one block instead of Text.
	TextBytes int

	// Status: an API error instead of an answer, such as 400, 401, 429, 529.
	Status       int
	ErrorType    string // default by Status; without Status an error event in the middle of the stream
	ErrorMessage string
	Headers      map[string]string // such as retry-after
	// Cut: the answer ends in the middle, without message_stop.
	Cut bool
	// Broken: the connection breaks where the answer ends, with Cut in its
	// middle.
	Broken bool
	// Raw is sent in place of an answer, as an event stream.
	Raw string
	// Times is how often the turn answers before the next takes its place;
	// 0: always.
	Times int

	Silence time.Duration // wait before the first byte
	Drip    time.Duration // pause between text deltas

	StopReason   string  // in Anthropic's words; default end_turn, or tool_use with Calls
	InputTokens  int     // default 100
	OutputTokens int     // default 10
	CachedTokens int     // input read from the cache, beside InputTokens
	CostUSD      float64 // as OpenRouter reckons it; 0: not told
}

// Call is a tool the model asks for.
type Call struct {
	ID    string // default: made up, unique per server
	Name  string
	Input any // nil: {}
}

func (t Turn) text() string {
	if t.TextBytes == 0 {
		return t.Text
	}
	const filler = "The quick brown fox jumps over the lazy dog. "
	return strings.Repeat(filler, t.TextBytes/len(filler)+1)[:t.TextBytes]
}

func (t Turn) withDefaults() Turn {
	if t.StopReason == "" {
		t.StopReason = "end_turn"
		if len(t.Calls) > 0 {
			t.StopReason = "tool_use"
		}
	}
	if t.InputTokens == 0 {
		t.InputTokens = 100
	}
	if t.OutputTokens == 0 {
		t.OutputTokens = 10
	}
	return t
}

type script struct {
	turns []Turn
}

// take returns the turn with this index and counts its use.
func (s *script) take(index int) Turn {
	at := s.place(index)
	turn := s.turns[at]
	if turn.Times == 0 {
		return turn
	}
	if s.turns[at].Times--; s.turns[at].Times == 0 && at+1 < len(s.turns) {
		s.turns = append(s.turns[:at:at], s.turns[at+1:]...)
	}
	return turn
}

// place finds where turn number index stands: a turn with Times shares the
// number of the turn that will take its place.
func (s *script) place(index int) int {
	at := 0
	for ; index > 0; index-- {
		for at < len(s.turns)-1 && s.turns[at].Times > 0 {
			at++
		}
		if at == len(s.turns)-1 {
			break
		}
		at++
	}
	return at
}
