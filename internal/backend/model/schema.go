package model

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
)

// strictSchema returns a schema in the form to which the APIs can hold a model
// token by token: plain keywords, objects that are closed and have all their
// properties. An object that is silent about further properties gets closed,
// which loses no answer. Nil when the schema says more than that; then the
// words, and our own check, have to do.
func strictSchema(raw json.RawMessage) map[string]any {
	var schema map[string]any
	if json.Unmarshal(raw, &schema) != nil || schema["type"] != "object" || !restrict(schema) {
		return nil
	}
	return schema
}

func restrict(node any) bool {
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
			if !restrict(value) {
				return false
			}
		case "properties", "$defs", "definitions":
			named, ok := value.(map[string]any)
			if !ok || !restrictAll(maps.Values(named)) {
				return false
			}
		case "anyOf":
			several, ok := value.([]any)
			if !ok || !restrictAll(slices.Values(several)) {
				return false
			}
		default:
			return false
		}
	}
	return closeObject(schema)
}

func restrictAll(nodes iter.Seq[any]) bool {
	for node := range nodes {
		if !restrict(node) {
			return false
		}
	}
	return true
}

// closeObject closes an object, and tells whether it can be and requires all it has.
func closeObject(schema map[string]any) bool {
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
