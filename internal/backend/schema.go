package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
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

// narrowSchema returns a schema in the form to which the APIs can hold a model
// token by token: plain keywords, objects that are closed and have all their
// properties. An object that is silent about further properties gets closed,
// which loses no answer. Nil when the schema says more than that; then the
// words, and our own check, have to do.
func narrowSchema(raw json.RawMessage) map[string]any {
	var schema map[string]any
	if json.Unmarshal(raw, &schema) != nil || schema["type"] != "object" || !narrow(schema) {
		return nil
	}
	return schema
}

func narrow(node any) bool {
	schema, ok := node.(map[string]any)
	if !ok {
		return false // true and false are schemas too
	}
	for keyword, value := range schema {
		switch keyword {
		case "type", "required", "additionalProperties", "enum", "const", "description", "title", "$ref":
		case "$schema", "$id":
			delete(schema, keyword)
		case "items":
			if !narrow(value) {
				return false
			}
		case "properties", "$defs", "definitions":
			named, ok := value.(map[string]any)
			if !ok || !narrowAll(maps.Values(named)) {
				return false
			}
		case "anyOf":
			several, ok := value.([]any)
			if !ok || !narrowAll(slices.Values(several)) {
				return false
			}
		default:
			return false
		}
	}
	return closed(schema)
}

func narrowAll(nodes iter.Seq[any]) bool {
	for node := range nodes {
		if !narrow(node) {
			return false
		}
	}
	return true
}

// closed closes an object, and tells whether it can be and requires all it has.
func closed(schema map[string]any) bool {
	properties, _ := schema["properties"].(map[string]any)
	if schema["type"] != "object" && properties == nil {
		return true
	}
	further, said := schema["additionalProperties"]
	if said && further != false || !said && properties == nil {
		return false
	}
	schema["additionalProperties"] = false
	required, _ := schema["required"].([]any)
	for name := range properties {
		if !slices.Contains(required, any(name)) {
			return false
		}
	}
	return true
}
