package backend

import (
	"slices"

	"piecework/internal/work"
)

// capabilities is what each backend can do. What is missing here is refused
// when a unit asks for it, or explained in docs/backends.md.
var capabilities = map[string][]work.Capability{
	"claude":    {work.CanFiles, work.CanImages, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"codex":     {work.CanFiles, work.CanImages, work.CanTools, work.CanResume, work.CanSchema, work.CanTurns},
	"cursor":    {work.CanFiles, work.CanTools, work.CanResume, work.CanTurns},
	"opencode":  {work.CanFiles, work.CanImages, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"gemini":    {work.CanFiles, work.CanTools, work.CanResume, work.CanSchema, work.CanTurns},
	"anthropic": {work.CanFiles, work.CanImages, work.CanPDFs, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"openai":    {work.CanFiles, work.CanImages, work.CanPDFs, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"mock":      {work.CanFiles, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
}

// Capabilities lists what a backend can do; none for a name that is no backend.
func Capabilities(name string) []work.Capability {
	return append([]work.Capability{}, capabilities[name]...)
}

// Can tells whether a backend can do what a unit asks of it.
func Can(name string, c work.Capability) bool { return slices.Contains(capabilities[name], c) }
