package jobs

import (
	"context"
	"encoding/json"
	"io"
	"iter"

	"piecework/internal/backend"
	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/store"
)

// AnthropicSource is where the units of a batch of Anthropic's API come from.
type AnthropicSource struct {
	Type     string `json:"type"` // TypeAnthropic
	Path     string `json:"path"`
	Requests int    `json:"requests"`
}

// MessageRequest is one request of such a batch.
type MessageRequest struct {
	CustomID string          `json:"custom_id"`
	Params   json.RawMessage `json:"params"`
}

// anthropicItems are the lines of a batch of Anthropic's API, which were looked at when it came.
func (s *Submitter) anthropicItems(ctx context.Context, b *work.Batch, file io.ReadSeeker, from source.Place) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for line, err := range source.Lines(file, from) {
			it := item{line: line.Next.Line, next: line.Next}
			if err == nil {
				it.customID, it.unit, err = s.parseAnthropicLine(ctx, b, line.Text)
			}
			if !yield(it, err) {
				return
			}
		}
	}
}

func (s *Submitter) parseAnthropicLine(ctx context.Context, b *work.Batch, line []byte) (id string, n *store.NewUnit, err error) {
	var r MessageRequest
	if err := json.Unmarshal(line, &r); err != nil {
		return "", nil, err
	}
	call := work.Call{Endpoint: work.EndpointMessages, Body: r.Params}
	unit := UnitBody{Backend: "anthropic", Deadline: b.ExpiresAt}
	if backendOf(backend.CallModel(&call)) == "mock" {
		unit.Backend = "mock"
	}
	unit.Request, _ = json.Marshal(call) // it was JSON
	made, err := s.NewUnit(ctx, &unit)
	return r.CustomID, &made, err
}
