package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/work"
)

// compileSchema reads an output schema. What it refers to must lie within it:
// a schema comes from a caller, and a loader would open files for it.
func compileSchema(raw json.RawMessage) (*jsonschema.Schema, *work.Failure) {
	invalid := func(err error) *work.Failure {
		return work.Fail(work.ClassInvalidRequest, "output_schema is no JSON Schema: "+err.Error())
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, invalid(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	const here = "output_schema"
	if err := compiler.AddResource(here, doc); err != nil {
		return nil, invalid(err)
	}
	schema, err := compiler.Compile(here)
	if err != nil {
		return nil, invalid(err)
	}
	return schema, nil
}

// CheckSchema tells why an output_schema cannot be used, nil when it can.
func CheckSchema(raw json.RawMessage) *work.Failure {
	_, failure := compileSchema(raw)
	return failure
}

// noLoader keeps a schema from making us read files or call out.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("$ref to %s: only references within the schema are followed", url)
}

// checkOutput tells how an answer does not fit the schema, nil when it does.
func checkOutput(schema *jsonschema.Schema, output string) *work.Failure {
	answer, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(output)))
	if err != nil {
		return work.Fail(work.ClassSchemaInvalid, "the answer is not JSON: "+err.Error())
	}
	var invalid *jsonschema.ValidationError
	if err := schema.Validate(answer); errors.As(err, &invalid) {
		return work.Fail(work.ClassSchemaInvalid, fmt.Sprintf("the answer does not fit output_schema: %v", invalid))
	} else if err != nil {
		return work.Fail(work.ClassSchemaInvalid, "the answer could not be checked: "+err.Error())
	}
	return nil
}

// objectSchema compiles an output schema and sees that its answers are
// objects: agents have the model answer in one, claude by a tool call's input,
// codex by a response format that takes nothing else.
func objectSchema(agent string, raw json.RawMessage) (*jsonschema.Schema, *work.Failure) {
	if len(raw) == 0 {
		return nil, nil
	}
	schema, failure := compileSchema(raw)
	if failure != nil {
		return nil, failure
	}
	if schema.Types != nil && !slices.Contains(schema.Types.ToStrings(), "object") {
		return nil, work.Fail(work.ClassInvalidRequest,
			agent+" answers in objects: give output_schema the type \"object\" and put the value in a property")
	}
	return schema, nil
}

// schemaOf compiles a request's output schema; nil when it has none.
func schemaOf(req Request) (*jsonschema.Schema, *work.Failure) {
	if len(req.OutputSchema) == 0 {
		return nil, nil
	}
	return compileSchema(req.OutputSchema)
}

// withSchema adds a request's output schema to its prompt, for an agent that
// takes none.
func withSchema(prompt string, req Request) string {
	if len(req.OutputSchema) == 0 {
		return prompt
	}
	return prompt + "\n\n" + schemaWords(req.OutputSchema)
}

// schemaWords tells a model in words what output_schema asks.
func schemaWords(raw json.RawMessage) string {
	return "Answer with one JSON value that fits the following JSON Schema and with nothing else: " +
		"no explanation, no code fence.\n" + string(raw)
}

// unfenced takes an answer out of the code fence that models like to put
// around JSON.
func unfenced(text string) string {
	inner := strings.TrimSpace(text)
	body, fenced := strings.CutPrefix(inner, "```")
	body, ended := strings.CutSuffix(body, "```")
	if !fenced || !ended {
		return inner
	}
	if info, rest, found := strings.Cut(body, "\n"); found && !strings.ContainsAny(info, "{[\"") {
		body = rest
	}
	return strings.TrimSpace(body)
}
