package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

const (
	projectWords = "In this project every answer ends with the word heliotrope."
	serverSecret = "mcp-secret-value-17"
)

// inProject gives a request a directory with instructions and settings.
func inProject(t *testing.T, name string, req *backend.Request) {
	t.Helper()
	req.Dir = t.TempDir()
	for _, file := range backend.ProjectFiles(name) {
		path, text := filepath.Join(req.Dir, file), "{}"
		switch {
		case strings.HasSuffix(file, ".md") && !strings.Contains(file, "override"):
			text = projectWords
		case !strings.Contains(strings.TrimPrefix(file, "."), "."):
			continue // a directory
		case strings.Contains(file, "override"):
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A run says which instructions of its directory it was given, and which not.
func TestProjectIsNoted(t *testing.T) {
	for _, name := range dialects {
		for _, settings := range []string{"", work.SettingsIgnore, work.SettingsRead} {
			t.Run(name+" "+settings, func(t *testing.T) {
				t.Parallel()
				b := fakeAs(t, name)
				req := backendtest.NewRequest(t, backendtest.Script("init", "result fine"))
				inProject(t, name, &req)
				req.ProjectSettings = settings
				got := backendtest.Execute(t.Context(), t, b, req)
				said := strings.Join(got.Texts(transcript.SystemText), "\n")
				reads := settings == work.SettingsRead || backend.MustReadProject(name)
				if !strings.Contains(said, backend.ProjectFiles(name)[0]) || strings.Contains(said, "does not read") == reads {
					t.Errorf("the transcript says %q", said)
				}
			})
		}
	}
}

// Every agent gets the servers that a unit names, and no secret of theirs by its
// command line or its environment, which its commands see.
func TestMCPServersReachAgents(t *testing.T) {
	files := map[string]string{"claude": "mcp-servers.json", "codex": ".codex/config.toml", "cursor": ".cursor/mcp.json",
		"opencode": ".config/opencode/opencode.json", "gemini": ".gemini/settings.json"}
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fakeAs(t, name)
			req := backendtest.NewRequest(t, backendtest.Script("init", "args", "env", "result fine"))
			req.MCPServers = []backend.MCPServer{
				{Name: "tickets", Command: "tickets-mcp", Args: []string{"--all"}, Env: map[string]string{"TICKETS_TOKEN": serverSecret}},
				{Name: "wiki", URL: "https://wiki.example/mcp", Headers: map[string]string{"Authorization": "Bearer " + serverSecret}},
			}
			got := backendtest.Execute(t.Context(), t, b, req)
			if text, _ := json.Marshal(got.Steps); strings.Contains(string(text), serverSecret) {
				t.Errorf("arguments or environment hold a secret: %s", text)
			}
			path := filepath.Join(req.Home, files[name])
			config, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"tickets", "tickets-mcp", "--all", "TICKETS_TOKEN", serverSecret, "wiki", "https://wiki.example/mcp", "Authorization"} {
				if !strings.Contains(string(config), want) {
					t.Errorf("%s lacks %s: %s", files[name], want, config)
				}
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, error %v", info.Mode(), err)
			}
		})
	}
}

// What the real clients send to the model of the instructions in a directory.
func TestRealProject(t *testing.T) {
	for _, s := range realStages() {
		for _, settings := range []string{work.SettingsIgnore, work.SettingsRead} {
			t.Run(s.name+" "+settings, func(t *testing.T) {
				t.Parallel()
				s := s.open(t)
				req := backendtest.NewRequest(t, "do it")
				inProject(t, s.name, &req)
				req.ProjectSettings = settings
				s.play(t, &req, []action{{says: "done"}})
				got := backendtest.Execute(t.Context(), t, s.b, req)
				wantOutcome(t, got, s, outcome{output: "done"}, nil)
				sent := ""
				for _, r := range s.model.Requests() {
					sent += string(r.Body)
				}
				if reads := strings.Contains(sent, "heliotrope"); reads != (settings == work.SettingsRead || backend.MustReadProject(s.name)) {
					t.Errorf("the instructions reached the model: %v", reads)
				}
			})
		}
	}
}

// mcpProgram is an MCP server with one tool.
const mcpProgram = `import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "lookup_ticket", "description": "looks a ticket up", "inputSchema": {"type": "object", "properties": {}}}]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": "ticket of " + os.environ["TICKETS_USER"]}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`

// The real clients offer the tools of a unit's MCP servers to the model.
func TestRealMCPServer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "server.py")
	if err := os.WriteFile(program, []byte(mcpProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range realStages() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s := s.open(t)
			req := backendtest.NewRequest(t, "do it")
			req.MCPServers = []backend.MCPServer{{Name: "tickets", Command: "python3", Args: []string{program}, Env: map[string]string{"TICKETS_USER": "ann"}}}
			s.play(t, &req, []action{{says: "done"}})
			if s.name == "claude" { // which tells the model of a tool when it is asked for
				const tool = "mcp__tickets__lookup_ticket"
				s.model.ScriptFor("case", fakemodel.Turn{Calls: []fakemodel.Call{{Name: "ToolSearch", Input: map[string]any{"query": "select:" + tool, "max_results": 1}}}},
					fakemodel.Turn{Calls: []fakemodel.Call{{Name: tool, Input: map[string]any{}}}}, fakemodel.Turn{Text: "done"})
			}
			got := backendtest.Execute(t.Context(), t, s.b, req)
			wantOutcome(t, got, s, outcome{output: "done"}, nil)
			if s.name == "claude" {
				got.WantStep(t, transcript.ToolResult, "ticket of ann")
			}
			sent := ""
			for _, r := range s.model.Requests() {
				sent += string(r.Body)
			}
			if !strings.Contains(sent, "lookup_ticket") {
				t.Error("the tool is not offered")
			}
		})
	}
}
