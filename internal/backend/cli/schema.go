package cli

import (
	"encoding/json"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// ObjectSchema compiles an output schema and sees that its answers are
// objects: agents have the model answer in one, claude by a tool call's input,
// codex by a response format that takes nothing else.
func ObjectSchema(agent string, raw json.RawMessage) (*jsonschema.Schema, *work.Failure) {
	if len(raw) == 0 {
		return nil, nil
	}
	schema, failure := backend.CompileSchema(raw)
	if failure != nil {
		return nil, failure
	}
	if schema.Types != nil && !slices.Contains(schema.Types.ToStrings(), "object") {
		return nil, work.Fail(work.ClassInvalidRequest,
			agent+" answers in objects: give output_schema the type \"object\" and put the value in a property")
	}
	return schema, nil
}

// SchemaOf compiles a request's output schema; nil when it has none.
func SchemaOf(req backend.Request) (*jsonschema.Schema, *work.Failure) {
	if len(req.OutputSchema) == 0 {
		return nil, nil
	}
	return backend.CompileSchema(req.OutputSchema)
}

// WithSchema adds a request's output schema to its prompt, for an agent that
// takes none.
func WithSchema(prompt string, req backend.Request) string {
	if len(req.OutputSchema) == 0 {
		return prompt
	}
	return prompt + "\n\n" + backend.SchemaPrompt(req.OutputSchema)
}
