package backend

import (
	"slices"
	"strings"

	"piecework/internal/work"
)

// projectFiles are what each agent reads of the directory it works in: what it
// is told there, and how it is set up.
var projectFiles = map[string][]string{
	"claude":   {"CLAUDE.md", "CLAUDE.local.md", ".claude", ".mcp.json"},
	"codex":    {"AGENTS.md", "AGENTS.override.md", ".codex"},
	"cursor":   {"AGENTS.md", "CLAUDE.md", ".cursor", ".cursorrules"},
	"opencode": {"AGENTS.md", "CLAUDE.md", "opencode.json", "opencode.jsonc", ".opencode"},
	"gemini":   {"GEMINI.md", ".gemini"},
}

// ProjectFiles lists what a backend reads of the directory of a unit whose
// project settings are read; none when it reads none.
func ProjectFiles(name string) []string { return slices.Clone(projectFiles[name]) }

// MustReadProject tells whether a backend reads the instructions of its directory
// whatever it is told: the client has no switch for it.
func MustReadProject(name string) bool { return name == "cursor" || name == "gemini" }

// readsProject tells whether a run reads the instructions and settings of its
// directory.
func (r Request) readsProject() bool { return r.ProjectSettings == work.SettingsRead }

// noteProject says in the transcript which instructions and settings of the
// directory the agent was given, or not.
func (u cliUnit) noteProject() {
	u.req.Dir = u.dir()
	root, err := u.req.openDir()
	if err != nil { // its start will say what is wrong
		return
	}
	defer func() { _ = root.Close() }()
	var there []string
	for _, name := range ProjectFiles(u.program.name) {
		if _, err := root.Lstat(name); err == nil {
			there = append(there, name)
		}
	}
	switch {
	case len(there) == 0 || u.req.Repair != nil:
	case u.req.readsProject() || MustReadProject(u.program.name):
		u.note("%s reads %s of the working directory.", u.program.name, strings.Join(there, ", "))
	default:
		u.note("%s does not read %s of the working directory: the unit's project_settings are ignore.", u.program.name, strings.Join(there, ", "))
	}
}
