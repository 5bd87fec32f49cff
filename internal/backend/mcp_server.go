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
		return nil, errors.New(`is not of the form {"NAME": {"command": "…", "args": ["…"], "env": {"NAME": "…"}} ` +
			`or {"url": "…", "headers": {"NAME": "…"}}}: ` + err.Error())
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
