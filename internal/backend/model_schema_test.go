package backend

import (
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

const citySchema = `{"type":"object","properties":{"city":{"type":"string"},"people":{"type":"integer"}},"required":["city","people"]}`

const goodCity = `{"city":"Ulm","people":129000}`

func TestModelFitsTheSchema(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b Backend, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Text: "```json\n" + goodCity + "\n```"})
		req := request(t, "Which city?")
		req.SystemPrompt, req.OutputSchema = "Be brief.", json.RawMessage(citySchema)
		got := try(t.Context(), t, b, req)
		got.wantSuccess(t, goodCity)
		r := model.Requests()[0]
		if !strings.HasPrefix(r.System, "Be brief.\n\n") || !strings.Contains(r.System, citySchema) {
			t.Errorf("the system prompt is %q", r.System)
		}
		if body := string(r.Body); !strings.Contains(body, `"json_schema"`) || !strings.Contains(body, `"additionalProperties":false`) {
			t.Errorf("the API is not held to the schema: %s", body)
		}
	})
}

func TestModelRepairsItsAnswer(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b Backend, model *fakemodel.Server) {
		model.ScriptFor("city", fakemodel.Turn{Text: `{"city":"Ulm"}`}, fakemodel.Turn{Text: goodCity})
		req := request(t, "Which city? [[script:city]]")
		req.OutputSchema = json.RawMessage(citySchema)
		got := try(t.Context(), t, b, req)
		got.wantSuccess(t, goodCity)
		got.wantStep(t, transcript.UserText, "people")
		if got.Metadata.NumTurns != 2 || got.Metadata.Usage.InputTokens != 200 || got.Metadata.Usage.OutputTokens != 20 {
			t.Errorf("metadata %+v", got.Metadata)
		}
		messages := model.Requests()[1].Messages
		if len(messages) != 3 || messages[0].Text() != req.Prompt || messages[1].Text() != `{"city":"Ulm"}` ||
			!strings.Contains(messages[2].Text(), "people") || strings.Contains(messages[2].Text(), "file:") {
			t.Errorf("the model was asked %+v", messages)
		}
	})
}

func TestModelNeverFitsTheSchema(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b Backend, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Text: "It is Ulm."})
		req := request(t, "Which city?")
		req.OutputSchema = json.RawMessage(citySchema)
		got := try(t.Context(), t, b, req)
		got.wantFailure(t, work.ClassSchemaInvalid, "not JSON")
		if got.Output != "It is Ulm." || len(model.Requests()) != 2 {
			t.Errorf("output %q after %d calls", got.Output, len(model.Requests()))
		}
		model.Forget()
		req.MaxTurns = 1
		try(t.Context(), t, b, req).wantFailure(t, work.ClassSchemaInvalid, "not JSON")
		if len(model.Requests()) != 1 {
			t.Errorf("%d calls with max_turns 1", len(model.Requests()))
		}
		model.Forget()
		req.OutputSchema = json.RawMessage(`{"type":"nonsense"}`)
		try(t.Context(), t, b, req).wantFailure(t, work.ClassInvalidRequest, "output_schema")
		if len(model.Requests()) != 0 {
			t.Error("the model was called for a schema that is none")
		}
	})
}

// What the APIs cannot be held to is said in words, and checked all the same.
func TestSchemaInWordsOnly(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b Backend, model *fakemodel.Server) {
		model.ScriptFor("count", fakemodel.Turn{Text: `[1,2,3]`}, fakemodel.Turn{Text: `[1,2]`})
		req := request(t, "Count. [[script:count]]")
		req.OutputSchema = json.RawMessage(`{"type":"array","items":{"type":"integer"},"maxItems":2}`)
		try(t.Context(), t, b, req).wantSuccess(t, "[1,2]")
		if body := string(model.Requests()[0].Body); strings.Contains(body, `"json_schema"`) {
			t.Errorf("the API was given a schema that it refuses: %s", body)
		}
	})
}

func TestNarrowSchema(t *testing.T) {
	for raw, want := range map[string]string{
		citySchema: `{"additionalProperties":false,"properties":{"city":{"type":"string"},"people":{"type":"integer"}},"required":["city","people"],"type":"object"}`,
		`{"type":"object","properties":{"a":{"type":"string"}}}`:                                                            "null", // optional
		`{"type":"object","properties":{"a":{"type":"string","pattern":"x"}},"required":["a"]}`:                             "null",
		`{"type":"object","properties":{"a":{"type":"object"}},"required":["a"]}`:                                           "null", // open
		`{"type":"object","additionalProperties":true,"properties":{}}`:                                                     "null",
		`{"type":"object","properties":{"a":{"type":"array","items":{"oneOf":[]}}},"required":["a"]}`:                       "null",
		`{"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"enum":["x"]}]}},"required":["a"],"$schema":"http"}`: `{"additionalProperties":false,"properties":{"a":{"anyOf":[{"type":"null"},{"enum":["x"]}]}},"required":["a"],"type":"object"}`,
		`true`: "null",
	} {
		if got, _ := json.Marshal(narrowSchema(json.RawMessage(raw))); string(got) != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", raw, got, want)
		}
	}
}

func TestUnfenced(t *testing.T) {
	for text, want := range map[string]string{
		" {} \n": "{}", "```json\n{}\n```": "{}", "```\n[1]\n```\n": "[1]", "```{\"a\":1}```": `{"a":1}`,
		"here: ```{}```": "here: ```{}```", "```json": "```json",
	} {
		if got := unfenced(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
