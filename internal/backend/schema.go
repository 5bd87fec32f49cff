package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/work"
)

// CompileSchema reads an output schema. What it refers to must lie within it:
// a schema comes from a caller, and a loader would open files for it.
func CompileSchema(raw json.RawMessage) (*jsonschema.Schema, *work.Failure) {
	invalid := func(err error) *work.Failure {
		return work.Fail(work.ClassInvalidRequest, "output_schema is no JSON Schema: "+err.Error())
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, invalid(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	const here = "mem:///output_schema" // a relative name would become a path of this machine, and be shown
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
	_, failure := CompileSchema(raw)
	return failure
}

// noLoader keeps a schema from making us read files or call out.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("$ref to %s: only references within the schema are followed", url)
}

// CheckOutput tells how an answer does not fit the schema, nil when it does.
func CheckOutput(schema *jsonschema.Schema, output string) *work.Failure {
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

// SchemaPrompt tells a model in words what output_schema asks.
func SchemaPrompt(raw json.RawMessage) string {
	return "Answer with one JSON value that fits the following JSON Schema and with nothing else: " +
		"no explanation, no code fence.\n" + string(raw)
}

// Unfence takes an answer out of the code fence that models like to put
// around JSON.
func Unfence(text string) string {
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
