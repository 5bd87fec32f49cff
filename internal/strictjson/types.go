package strictjson

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"piecework/internal/work"
)

// Object is a JSON object kept as it was sent; null is none.
type Object json.RawMessage

func (o *Object) UnmarshalJSON(data []byte) error {
	*o = nil
	if string(data) != "null" {
		*o = slices.Clone(data)
	}
	return nil
}

func (o Object) MarshalJSON() ([]byte, error) { return json.RawMessage(o).MarshalJSON() }

// Schema describes an object of any fields.
func (Object) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

// Texts is an object of texts. What makes one is looked at apart: huma loses its way among names with
// dots, which labels often have, so it must not follow this schema.
type Texts Object

func (t *Texts) UnmarshalJSON(data []byte) error { return (*Object)(t).UnmarshalJSON(data) }

func (t Texts) MarshalJSON() ([]byte, error) { return json.RawMessage(t).MarshalJSON() }

// Schema describes an object of strings.
func (Texts) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: map[string]any{"type": "string", "maxLength": MaxText}}
}

// Duration is seconds as a number, or a Go duration as a string, as it was
// sent: a check of its own says better what is wrong with it than a schema does, so
// huma must not follow this one.
type Duration json.RawMessage

func (d *Duration) UnmarshalJSON(data []byte) error { *d = slices.Clone(data); return nil }

// Schema describes both forms.
func (Duration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Extensions: map[string]any{"oneOf": []any{
		map[string]any{"type": "number", "description": "seconds"},
		map[string]any{"type": "string", "description": "a Go duration such as 1h30m, or seconds"},
	}}}
}

// Limits on one of Texts, in bytes.
const (
	MaxTextName = 64
	MaxText     = 256
)

// CheckTexts refuses what is no object of short texts.
func CheckTexts(place string, object json.RawMessage) error {
	if shortTexts(object) {
		return nil
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(object, &given); err != nil {
		return work.Invalidf(place, "must be an object of texts")
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		var value *string
		pointer := place + "/" + Escape(name)
		switch err := json.Unmarshal(given[name], &value); {
		case err != nil || value == nil:
			return work.Invalidf(pointer, "it is a text; put quotes around it")
		case name == "" || len(name) > MaxTextName:
			return work.Invalidf(place, "%.64q: a name has 1 to %d bytes", name, MaxTextName)
		case len(*value) > MaxText:
			return work.Invalidf(pointer, "it has at most %d bytes", MaxText)
		}
	}
	return nil
}

// shortTexts holds for an object of texts with which all is well: almost every one.
func shortTexts(object json.RawMessage) bool {
	var given map[string]*string
	if json.Unmarshal(object, &given) != nil || given == nil {
		return false
	}
	for name, value := range given {
		if value == nil || name == "" || len(name) > MaxTextName || len(*value) > MaxText {
			return false
		}
	}
	return true
}
