package model

import (
	"encoding/json"
	"testing"

	"piecework/internal/testkit/backendtest"
)

func TestNarrowSchema(t *testing.T) {
	for raw, want := range map[string]string{
		backendtest.CitySchema: `{"additionalProperties":false,"properties":{"city":{"type":"string"},"people":{"type":"integer"}},"required":["city","people"],"type":"object"}`,
		`{"type":"object","properties":{"a":{"type":"string"}}}`:                                                            "null", // optional
		`{"type":"object","properties":{"a":{"type":"string","pattern":"x"}},"required":["a"]}`:                             "null",
		`{"type":"object","properties":{"a":{"type":"object"}},"required":["a"]}`:                                           "null", // open
		`{"type":"object","additionalProperties":true,"properties":{}}`:                                                     "null",
		`{"type":"object","properties":{"a":{"type":"array","items":{"oneOf":[]}}},"required":["a"]}`:                       "null",
		`{"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"enum":["x"]}]}},"required":["a"],"$schema":"http"}`: `{"additionalProperties":false,"properties":{"a":{"anyOf":[{"type":"null"},{"enum":["x"]}]}},"required":["a"],"type":"object"}`,
		`true`: "null",
	} {
		if got, _ := json.Marshal(strictSchema(json.RawMessage(raw))); string(got) != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", raw, got, want)
		}
	}
}
