package work

import (
	"encoding/json"
	"fmt"
)

// Call is one call of a model API as its caller wrote it: the body goes to the
// API unchanged, and the API's answer is the unit's output.
type Call struct {
	Endpoint string          `json:"endpoint"`
	Body     json.RawMessage `json:"body"`
}

// The endpoints that a call may go to.
const (
	EndpointChat       = "/v1/chat/completions"
	EndpointResponses  = "/v1/responses"
	EndpointEmbeddings = "/v1/embeddings"
	EndpointMessages   = "/v1/messages"
)

// Call is the unit's call; nil for a unit that has a prompt.
func (s *Spec) Call() (*Call, error) {
	if len(s.Request) == 0 {
		return nil, nil
	}
	var c Call
	if err := json.Unmarshal(s.Request, &c); err != nil {
		return nil, fmt.Errorf("read the unit's request: %w", err)
	}
	return &c, nil
}
