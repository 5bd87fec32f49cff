package api

import (
	"encoding/json"
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// What an agent reads of its directory is the unit's wish, else the server's.
func TestProjectSettings(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, migrate)
	unit := func(backend, fields string) string { return `{"backend":"` + backend + `","prompt":"x"` + fields + `}` }
	for _, test := range []struct{ server, backend, fields, want string }{
		{"", "claude", ``, "ignore"},
		{"ignore", "claude", `,"project_settings":"read"`, "read"},
		{"read", "claude", ``, "read"},
		{"read", "claude", `,"project_settings":"ignore"`, "ignore"},
		{"never", "claude", ``, "ignore"},
		{"ignore", "cursor", ``, "read"},
		{"read", "openai", ``, ""},
	} {
		f := openFront(t, database, nowhere, func(o *Options) { o.ProjectSettings = test.server })
		var u work.Unit
		if err := json.Unmarshal(f.get("/work-units/"+f.submit(unit(test.backend, test.fields)).String()).body, &u); err != nil ||
			u.ProjectSettings != test.want {
			t.Errorf("%+v: %q, error %v", test, u.ProjectSettings, err)
		}
	}
	f := openFront(t, database, nowhere, func(o *Options) {
		o.ProjectSettings, o.MCPServers = work.SettingsNever, []string{"tickets", "wiki"}
	})
	for _, test := range []struct{ backend, fields, pointer, words string }{
		{"claude", `,"project_settings":"read"`, "#/project_settings", "PIECEWORK_PROJECT_SETTINGS"},
		{"cursor", ``, "#/backend", "whatever it is told"},
		{"gemini", `,"project_settings":"ignore"`, "#/project_settings", "whatever it is told"},
		{"openai", `,"project_settings":"read"`, "#/project_settings", "reads no directory"},
		{"claude", `,"mcp_servers":["nothing"]`, "#/mcp_servers/0", "choose of tickets, wiki"},
		{"claude", `,"mcp_servers":["wiki","wiki"]`, "#/mcp_servers/1", "twice"},
		{"mock", `,"mcp_servers":["wiki"]`, "#/mcp_servers", "no MCP servers"},
	} {
		f.post("/work-units", unit(test.backend, test.fields)).refused(422, test.pointer, test.words)
	}
	f.submit(unit("codex", `,"mcp_servers":["tickets","wiki"]`))
}
