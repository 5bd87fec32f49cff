package api

import (
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/testkit"
)

// A check of the result is looked at when the unit is submitted, by every way
// that units come in.
func TestAcceptanceCheck(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, test := range []struct{ fields, pointer, words string }{
		{`,"accept":{}`, "#/accept", "checks nothing"},
		{`,"accept":{"expression":"json.a ="}`, "#/accept/expression", ""},
		{`,"accept":{"output_matches":"("}`, "#/accept/output_matches", "RE2"},
		{`,"accept":{"file_exists":"/etc/passwd"}`, "#/accept/file_exists", "inside the unit's directory"},
		{`,"accept":{"command":"true"}`, "#/accept/command", "PIECEWORK_ACCEPT_COMMANDS"},
	} {
		f.post("/work-units", mock(test.fields)).refused(422, test.pointer, test.words)
	}
	f.post("/work-units", `{"backend":"openai","prompt":"x","accept":{"file_exists":"a"}}`).refused(422, "#/accept/file_exists", "writes no files")
	f.post("/work-units", `{"backend":"openai","request":{"endpoint":"/v1/chat/completions","body":{"model":"m"}},"accept":{"file_exists":"a"}}`).refused(422, "#/accept", "has no directory")
	id := f.submit(mock(`,"accept":{"expression":"json.ok","file_exists":"out/*.md"}`))
	var u map[string]json.RawMessage
	if err := json.Unmarshal(f.get("/work-units/"+id.String()).body, &u); err != nil || string(u["accept"]) != `{"expression":"json.ok","file_exists":"out/*.md"}` {
		t.Errorf("the unit has %s, error %v", u["accept"], err)
	}
	if list := string(f.get("/work-units").body); strings.Contains(list, "json.ok") {
		t.Error("lists have the check, and could be long")
	}
	allowed := openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) { o.AcceptCommands = true })
	allowed.submit(mock(`,"accept":{"command":["make","test"],"timeout":"10m"}`))
}
