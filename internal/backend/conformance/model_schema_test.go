package conformance

import (
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

const goodCity = `{"city":"Ulm","people":129000}`

func TestModelFitsTheSchema(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Text: "```json\n" + goodCity + "\n```"})
		req := backendtest.NewRequest(t, "Which city?")
		req.SystemPrompt, req.OutputSchema = "Be brief.", json.RawMessage(backendtest.CitySchema)
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantSuccess(t, goodCity)
		r := model.Requests()[0]
		if !strings.HasPrefix(r.System, "Be brief.\n\n") || !strings.Contains(r.System, backendtest.CitySchema) {
			t.Errorf("the system prompt is %q", r.System)
		}
		if body := string(r.Body); !strings.Contains(body, `"json_schema"`) || !strings.Contains(body, `"additionalProperties":false`) {
			t.Errorf("the API is not held to the schema: %s", body)
		}
	})
}

func TestModelRepairsItsAnswer(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		model.ScriptFor("city", fakemodel.Turn{Text: `{"city":"Ulm"}`}, fakemodel.Turn{Text: goodCity})
		req := backendtest.NewRequest(t, "Which city? [[script:city]]")
		req.OutputSchema = json.RawMessage(backendtest.CitySchema)
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantSuccess(t, goodCity)
		got.WantStep(t, transcript.UserText, "people")
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
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Text: "It is Ulm."})
		req := backendtest.NewRequest(t, "Which city?")
		req.OutputSchema = json.RawMessage(backendtest.CitySchema)
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantFailure(t, work.ClassSchemaInvalid, "not JSON")
		if got.Output != "It is Ulm." || len(model.Requests()) != 2 {
			t.Errorf("output %q after %d calls", got.Output, len(model.Requests()))
		}
		model.Forget()
		req.MaxTurns = 1
		backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassSchemaInvalid, "not JSON")
		if len(model.Requests()) != 1 {
			t.Errorf("%d calls with max_turns 1", len(model.Requests()))
		}
		model.Forget()
		req.OutputSchema = json.RawMessage(`{"type":"nonsense"}`)
		backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassInvalidRequest, "output_schema")
		if len(model.Requests()) != 0 {
			t.Error("the model was called for a schema that is none")
		}
	})
}

// What the APIs cannot be held to is said in words, and checked all the same.
func TestSchemaInWordsOnly(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		model.ScriptFor("count", fakemodel.Turn{Text: `[1,2,3]`}, fakemodel.Turn{Text: `[1,2]`})
		req := backendtest.NewRequest(t, "Count. [[script:count]]")
		req.OutputSchema = json.RawMessage(`{"type":"array","items":{"type":"integer"},"maxItems":2}`)
		backendtest.Execute(t.Context(), t, b, req).WantSuccess(t, "[1,2]")
		if body := string(model.Requests()[0].Body); strings.Contains(body, `"json_schema"`) {
			t.Errorf("the API was given a schema that it refuses: %s", body)
		}
	})
}
