package backend

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReadMCPServers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	read := func(text string) (map[string]MCPServer, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadMCPServers(path)
	}
	servers, err := read(`{"a":{"command":"x","env":{"K":"long-secret","N":"1"}},"b":{"url":"https://e.org/mcp","headers":{"Authorization":"Bearer token-1234"}}}`)
	if err != nil || servers["a"].Name != "a" {
		t.Fatalf("%+v, %v", servers, err)
	}
	if got := servers["a"].Secrets(); !slices.Equal(got, []string{"long-secret"}) {
		t.Errorf("secrets %q", got)
	}
	if got := servers["b"].Secrets(); !slices.Contains(got, "token-1234") {
		t.Errorf("secrets %q", got)
	}
	for _, text := range []string{`[]`, `{"a":{}}`, `{"a":{"command":"x","url":"http://e"}}`, `{"a b":{"command":"x"}}`, `{"a":{"url":"ftp://e"}}`,
		`{"a":{"url":"http://e","env":{"A":"hidden-value"}}}`, `{"a":{"command":"x","header":{"A":"hidden-value"}}}`} {
		if _, err := read(text); err == nil || strings.Contains(err.Error(), "hidden-value") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
