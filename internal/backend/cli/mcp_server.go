package cli

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"

	"piecework/internal/backend"
)

// MCPServersAs makes an object of a request's MCP servers in an agent's own form.
func MCPServersAs(r backend.Request, form func(backend.MCPServer) map[string]any) map[string]any {
	servers := map[string]any{}
	for _, s := range r.MCPServers {
		entry := form(s)
		for _, name := range slices.Collect(maps.Keys(entry)) {
			if isEmpty(entry[name]) {
				delete(entry, name)
			}
		}
		servers[s.Name] = entry
	}
	return servers
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case string:
		return v == ""
	case []string:
		return len(v) == 0
	case map[string]string:
		return len(v) == 0
	}
	return false
}

// MCPServerJSON is also Cursor's form, which needs no type.
func MCPServerJSON(s backend.MCPServer) map[string]any {
	entry := map[string]any{"command": s.Command, "args": s.Args, "env": s.Env, "url": s.URL, "headers": s.Headers}
	if s.URL != "" {
		entry["type"] = "http"
	}
	return entry
}

// WriteMCPServers writes the request's MCP servers into a file of the unit's home,
// where ps does not show them.
func (h Home) WriteMCPServers(name string, req backend.Request, form func(backend.MCPServer) map[string]any) (path string, err error) {
	if err := MakeDir(filepath.Dir(filepath.Join(h.Dir, name))); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"mcpServers": MCPServersAs(req, form)})
	if err != nil {
		return "", err
	}
	return h.WriteFile(name, string(text))
}
