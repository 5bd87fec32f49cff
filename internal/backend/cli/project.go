package cli

import (
	"strings"

	"piecework/internal/backend"
)

// noteProject says in the transcript which instructions and settings of the
// directory the agent was given, or not.
func (u Unit) noteProject() {
	u.Req.Dir = u.Dir()
	root, err := u.Req.OpenDir()
	if err != nil { // its start will say what is wrong
		return
	}
	defer func() { _ = root.Close() }()
	var there []string
	for _, name := range backend.ProjectFiles(u.program.Name) {
		if _, err := root.Lstat(name); err == nil {
			there = append(there, name)
		}
	}
	switch {
	case len(there) == 0 || u.Req.Repair != nil:
	case u.Req.ReadsProject() || backend.MustReadProject(u.program.Name):
		u.Note("%s reads %s of the working directory.", u.program.Name, strings.Join(there, ", "))
	default:
		u.Note("%s does not read %s of the working directory: the unit's project_settings are ignore.", u.program.Name, strings.Join(there, ", "))
	}
}
