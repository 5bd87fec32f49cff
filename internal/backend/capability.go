package backend

import (
	"encoding/json"
	"slices"

	"piecework/internal/work"
)

// profile is what is known of a backend by its name alone: what a unit may ask
// of it, before any backend exists.
type profile struct {
	capabilities []work.Capability
	endpoints    []string // where the requests of units may go
	// projectFiles are what it reads of the directory it works in: what it is
	// told there, and how it is set up.
	projectFiles  []string
	alwaysProject bool // its client has no switch for projectFiles
	byTokens      bool // it tells tokens and no cost
	scripted      bool // it does what payload.mock says
}

// profiles has a row for each backend. A capability that is missing here is
// refused when a unit asks for it, or explained in docs/backends.md.
var profiles = map[string]profile{
	"claude": {
		capabilities: []work.Capability{
			work.CanFiles, work.CanImages, work.CanPDFs, work.CanTools, work.CanResume,
			work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns,
		},
		projectFiles: []string{"CLAUDE.md", "CLAUDE.local.md", ".claude", ".mcp.json"},
	},
	"codex": {
		capabilities: []work.Capability{
			work.CanFiles, work.CanImages, work.CanTools, work.CanResume,
			work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns,
		},
		projectFiles: []string{"AGENTS.md", "AGENTS.override.md", ".codex"},
		byTokens:     true,
	},
	"cursor": {
		capabilities:  []work.Capability{work.CanFiles, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanTurns},
		projectFiles:  []string{"AGENTS.md", "CLAUDE.md", ".cursor", ".cursorrules"},
		alwaysProject: true,
		byTokens:      true,
	},
	"opencode": {
		capabilities: []work.Capability{
			work.CanFiles, work.CanImages, work.CanTools, work.CanResume,
			work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns,
		},
		projectFiles: []string{"AGENTS.md", "CLAUDE.md", "opencode.json", "opencode.jsonc", ".opencode"},
	},
	"gemini": {
		capabilities: []work.Capability{
			work.CanFiles, work.CanTools, work.CanResume, work.CanSchema,
			work.CanCost, work.CanMaxCost, work.CanTurns,
		},
		projectFiles:  []string{"GEMINI.md", ".gemini"},
		alwaysProject: true,
		byTokens:      true,
	},
	"anthropic": {
		capabilities: []work.Capability{
			work.CanFiles, work.CanImages, work.CanPDFs, work.CanSchema, work.CanCost,
			work.CanMaxCost, work.CanTurns, work.CanRequest, work.CanBatchLane,
		},
		endpoints: []string{work.EndpointMessages, work.EndpointChat},
		byTokens:  true,
	},
	"openai": { // a server behind it may tell its own cost
		capabilities: []work.Capability{
			work.CanFiles, work.CanImages, work.CanPDFs, work.CanSchema, work.CanCost,
			work.CanMaxCost, work.CanTurns, work.CanRequest, work.CanBatchLane,
		},
		endpoints: []string{work.EndpointChat, work.EndpointResponses, work.EndpointEmbeddings},
	},
	"mock": {
		capabilities: []work.Capability{work.CanFiles, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns, work.CanRequest},
		endpoints:    []string{work.EndpointChat, work.EndpointResponses, work.EndpointEmbeddings, work.EndpointMessages},
		scripted:     true,
	},
}

// Names lists every backend, in the order documents show them.
var Names = []string{"claude", "codex", "cursor", "opencode", "gemini", "anthropic", "openai", "mock"}

// Capabilities lists what a backend can do; none for a name that is no backend.
func Capabilities(name string) []work.Capability {
	return append([]work.Capability{}, profiles[name].capabilities...)
}

// Can tells whether a backend can do what a unit asks of it.
func Can(name string, c work.Capability) bool {
	return slices.Contains(profiles[name].capabilities, c)
}

// Endpoints lists where a backend takes the request of a unit; none when it
// takes no requests.
func Endpoints(name string) []string { return append([]string{}, profiles[name].endpoints...) }

// ProjectFiles lists what a backend reads of the directory of a unit whose
// project settings are read; none when it reads none.
func ProjectFiles(name string) []string { return slices.Clone(profiles[name].projectFiles) }

// MustReadProject tells whether a backend reads the instructions of its directory
// whatever it is told: the client has no switch for it.
func MustReadProject(name string) bool { return profiles[name].alwaysProject }

// WritesFiles tells whether the runs of a backend can leave files in their
// directory.
func WritesFiles(name string) bool { return profiles[name].scripted || Can(name, work.CanTools) }

// ReadsPayload tells whether a backend looks at the payload itself. To the
// others only what the prompt takes from it is known.
func ReadsPayload(name string) bool { return profiles[name].scripted }

// UsesDirectory tells whether a run of a backend with this payload needs a
// directory of its own. Making and removing one is a fifth of what a short call of
// a model API takes.
func UsesDirectory(name string, payload json.RawMessage) bool {
	if !profiles[name].scripted {
		return Can(name, work.CanTools)
	}
	var asked struct {
		Mock struct {
			Files map[string]string `json:"files"`
		} `json:"mock"`
	}
	return json.Unmarshal(payload, &asked) == nil && len(asked.Mock.Files) > 0
}
