package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// MCPServer is a server of the Model Context Protocol that an operator lets
// agents use: a program that speaks over its standard input and output, or an
// address. Env and Headers may hold secrets.
type MCPServer struct {
	Name    string            `json:"-"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

var serverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// maxServersFile bounds the file of MCP servers, in bytes.
const maxServersFile = 1 << 20

// ReadMCPServers reads a file {"NAME": {"command", "args", "env"} or
// {"url", "headers"}, …}. Its errors name no value of the file.
func ReadMCPServers(path string) (map[string]MCPServer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxServersFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxServersFile {
		return nil, fmt.Errorf("has more than %d bytes", maxServersFile)
	}
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	servers := map[string]MCPServer{}
	if err := strict.Decode(&servers); err != nil {
		return nil, errors.New(`is not of the form {"NAME": {"command": "…", "args": ["…"], "env": {"NAME": "…"}} or {"url": "…", "headers": {"NAME": "…"}}}: ` + err.Error())
	}
	for name, s := range servers {
		address, err := url.Parse(s.URL)
		switch {
		case !serverName.MatchString(name):
			return nil, fmt.Errorf("%.70q: a name has 1 to 64 letters, digits, _ and -", name)
		case (s.Command == "") == (s.URL == ""):
			return nil, fmt.Errorf("%s: give it a command or a url", name)
		case s.URL != "" && (err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Host == ""):
			return nil, fmt.Errorf("%s: its url is no http or https address", name)
		case s.URL != "" && (len(s.Args) > 0 || len(s.Env) > 0) || s.Command != "" && len(s.Headers) > 0:
			return nil, fmt.Errorf("%s: args and env go with command, headers with url", name)
		}
		s.Name = name
		servers[name] = s
	}
	return servers, nil
}

// Secrets are the values of the server that must not be shown.
func (s MCPServer) Secrets() (secrets []string) {
	for _, value := range slices.Concat(slices.Collect(maps.Values(s.Env)), slices.Collect(maps.Values(s.Headers))) {
		if len(value) >= leastSecret {
			secrets = append(secrets, value)
		}
		if _, token, ok := strings.Cut(value, " "); ok && len(token) >= leastSecret { // Bearer …
			secrets = append(secrets, token)
		}
	}
	return secrets
}

// leastSecret is how long a value is that is taken for a secret: a shorter one
// could be a word of any text.
const leastSecret = 8

// serversAs makes an object of a request's MCP servers in an agent's own form.
func serversAs(r Request, form func(MCPServer) map[string]any) map[string]any {
	servers := map[string]any{}
	for _, s := range r.MCPServers {
		entry := form(s)
		for _, name := range slices.Collect(maps.Keys(entry)) {
			if empty(entry[name]) {
				delete(entry, name)
			}
		}
		servers[s.Name] = entry
	}
	return servers
}

func empty(value any) bool {
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

// claudeServer is also Cursor's form, which needs no type.
func claudeServer(s MCPServer) map[string]any {
	entry := map[string]any{"command": s.Command, "args": s.Args, "env": s.Env, "url": s.URL, "headers": s.Headers}
	if s.URL != "" {
		entry["type"] = "http"
	}
	return entry
}

func geminiServer(s MCPServer) map[string]any {
	return map[string]any{"command": s.Command, "args": s.Args, "env": s.Env, "httpUrl": s.URL, "headers": s.Headers, "trust": true}
}

func openCodeServer(s MCPServer) map[string]any {
	if s.URL != "" {
		return map[string]any{"type": "remote", "url": s.URL, "headers": s.Headers, "enabled": true}
	}
	return map[string]any{"type": "local", "command": append([]string{s.Command}, s.Args...), "environment": s.Env, "enabled": true}
}

// codexServers are the servers as tables of Codex's configuration.
func codexServers(servers []MCPServer) string {
	var toml strings.Builder
	pairs := func(name string, values map[string]string) {
		if len(values) == 0 {
			return
		}
		var all []string
		for _, key := range slices.Sorted(maps.Keys(values)) {
			all = append(all, tomlString(key)+" = "+tomlString(values[key]))
		}
		fmt.Fprintf(&toml, "%s = { %s }\n", name, strings.Join(all, ", "))
	}
	for _, s := range servers {
		fmt.Fprintf(&toml, "\n[mcp_servers.%s]\n", s.Name)
		if s.URL != "" {
			fmt.Fprintf(&toml, "url = %s\n", tomlString(s.URL))
			pairs("http_headers", s.Headers)
			continue
		}
		fmt.Fprintf(&toml, "command = %s\n", tomlString(s.Command))
		if len(s.Args) > 0 {
			args := make([]string, len(s.Args))
			for i, arg := range s.Args {
				args[i] = tomlString(arg)
			}
			fmt.Fprintf(&toml, "args = [%s]\n", strings.Join(args, ", "))
		}
		pairs("env", s.Env)
	}
	return toml.String()
}

// putServers writes the request's MCP servers into a file of the unit's home,
// where ps does not show them.
func (h home) putServers(name string, req Request, form func(MCPServer) map[string]any) (path string, err error) {
	if err := makeDir(filepath.Dir(filepath.Join(h.dir, name))); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"mcpServers": serversAs(req, form)})
	if err != nil {
		return "", err
	}
	return h.put(name, string(text))
}
