package prompt_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"testing"

	"piecework/internal/prompt"
)

// A payload is read as encoding/json reads it: what is JSON, which of two equal
// names counts, and what a text is.
func FuzzPayload(f *testing.F) {
	for _, seed := range []string{
		payload, ``, ` `, `{}`, `[]`, `{"a":1,"a":"2","b":{"a":null,"a":[1,2,"x"]}}`, `{"a":[{"b":"\ud83d\ude00\ud800\n\u0041\/"}],"\u0062":"c"}`,
		`[1,[2,[3]],{}]`, `"te\txt"`, `-1.5e3`, `true`, `{"a":1,}`, `{"a":1]`, `{"a" 1}`, `{1:2}`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1}}`,
		`[1]]`, `{"a":1} 2`, `nul`, `01`,
		`{"a":`, `{"a"`, `{`, `[`, `"`, `"\x"`, "\"\x01\"", "{\"a\":\"\xff\xc3\",\"\xff\":1}", "{ \"a\" :\t[ 1 , { \"b\" : 2 } ]\n}",
		"\v{}", "\u0085{}", `{"a_b":{"x-y":[[],{},""]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, err := prompt.Render("", raw, prompt.Fail)
		value := bytes.TrimSpace(raw)
		if valid := json.Valid(value) || len(value) == 0; valid != (err == nil) {
			t.Fatalf("%q: %v, and it is JSON: %t", raw, err, valid)
		}
		if err == nil && len(value) > 0 {
			sameAs(t, raw, "payload", value, 0)
		}
	})
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// sameAs compares what a placeholder is filled with, and the values in it.
func sameAs(t *testing.T, raw []byte, path string, value json.RawMessage, depth int) {
	t.Helper()
	want := ""
	var fields map[string]json.RawMessage
	var items []json.RawMessage
	switch value[0] {
	case '"':
		_ = json.Unmarshal(value, &want)
	case '{':
		_ = json.Unmarshal(value, &fields)
	case '[':
		_ = json.Unmarshal(value, &items)
	}
	if value[0] != '"' {
		var compact bytes.Buffer
		_ = json.Compact(&compact, value)
		want = compact.String()
	}
	if depth > 0 || fields["payload"] == nil {
		if got, err := prompt.Render("{"+path+"}", raw, prompt.Fail); err != nil || got != want {
			t.Fatalf("%q: {%s} is %q, %v; want %q", raw, path, got, err, want)
		}
	}
	if fields["payload"] != nil || depth > 5 {
		return // the name of the whole is one of its fields
	}
	for name, field := range fields {
		if plainName.MatchString(name) {
			sameAs(t, raw, path+"."+name, bytes.TrimSpace(field), depth+1)
		}
	}
	for i, item := range items {
		sameAs(t, raw, path+"."+strconv.Itoa(i), bytes.TrimSpace(item), depth+1)
	}
}
