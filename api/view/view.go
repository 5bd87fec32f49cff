// Package view has units and runs as lists and event streams show them, what the
// rest of a batch will probably take, and how such fields are described.
package view

import (
	"piecework/internal/work"
)

// UnitItem is a unit in a list: fields of these names hide those that may be
// large, which the list has not read.
type UnitItem struct {
	work.Unit
	Payload      leftOut `json:"payload,omitempty" hidden:"true"`
	SystemPrompt leftOut `json:"system_prompt,omitempty" hidden:"true"`
	OutputSchema leftOut `json:"output_schema,omitempty" hidden:"true"`
	Accept       leftOut `json:"accept,omitempty" hidden:"true"`
	Request      leftOut `json:"request,omitempty" hidden:"true"`
	Output       leftOut `json:"output,omitempty" hidden:"true"`
}

// leftOut is a field that is never there.
type leftOut bool

// RunItem is a run in a list: fields of these names hide those that may be
// large, which the list has not read.
type RunItem struct {
	work.Run
	RenderedPrompt leftOut `json:"rendered_prompt,omitempty" hidden:"true"`
	Result         leftOut `json:"result,omitempty" hidden:"true"`
}
