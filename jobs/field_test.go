package jobs

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

// everything asks for all that a unit can ask for, and for nothing as it would be
// without being asked for.
const everything = `{"backend":"claude","prompt":"Read {a}","payload":{"a":1},"files":[],"model":"m","system_prompt":"s","working_directory":"docs:",
	"output_schema":{"type":"object"},"accept":{"output_matches":"x"},"project_settings":"read","mcp_servers":["tools"],"missing_key":"note",
	"session_policy":"fresh","on_denied":"note","max_turns":3,"max_cost_usd":1.5,"timeout":7,"idle_timeout":8,"startup_timeout":9,
	"deadline":"2999-01-01T00:00:00Z","expires_at":"2998-01-01T00:00:00Z","not_before":"2997-01-01T00:00:00Z","max_retries":4,"queue":"slow",
	"priority":8,"callback_url":"https://example.com/","labels":{"a":"b"}}`

// Every field of a unit can be asked for, and gets to the unit.
func TestEveryFieldIsTaken(t *testing.T) {
	t.Parallel()
	s := newSubmitter(t, t.TempDir())
	s.MCPServers, s.Webhooks, s.ProjectSettings = []string{"tools"}, webhook.Guard{}, work.SettingsIgnore
	if prices, err := backend.ReadPrices([]byte(`{"m":{"input":1,"output":1}}`)); err == nil {
		s.Prices = prices
	}
	made := func(body string) map[string]string {
		n, wrong, err := s.unitFrom(t.Context(), []byte(body))
		if err != nil || len(wrong) > 0 {
			t.Fatal(wrong, err)
		}
		return fieldsOf(t, n.Spec)
	}
	plain, full := made(`{"backend":"mock","prompt":"x"}`), made(everything)
	// A request stands for a prompt, and files, cache and mode are tried elsewhere.
	apart := []string{"worker", "request", "files", "cache_ttl", "lane"}
	taken := fieldNames(reflect.TypeFor[UnitBody]())
	for _, name := range fieldNames(reflect.TypeFor[work.Spec]()) {
		switch {
		case !slices.Contains(taken, name):
			t.Errorf("nobody can ask for %s: add it to UnitBody", name)
		case !slices.Contains(apart, name) && plain[name] == full[name]:
			t.Errorf("%s is asked for and does not get to the unit: NewUnit leaves it out, or everything lacks it", name)
		}
	}
}

func fieldsOf(t *testing.T, s work.Spec) map[string]string {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for name, value := range fields {
		all[name] = string(value)
	}
	return all
}

func fieldNames(of reflect.Type) (names []string) {
	for f := range of.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}
