package view

import "github.com/danielgtaylor/huma/v2"

// Enum is the values of a field, for the description.
func Enum[S ~string](values []S) []any {
	all := make([]any, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}

// NextCursor describes the field next of a list.
func NextCursor() *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "uuid", Nullable: true,
		Description: "Give it as after to get the next page; null on the last"}
}

// OrNull describes what may also be null.
func OrNull(s *huma.Schema) *huma.Schema {
	return &huma.Schema{AnyOf: []*huma.Schema{s, {Type: "null"}}}
}
