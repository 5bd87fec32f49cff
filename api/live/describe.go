package live

import (
	"maps"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"piecework/api/view"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// DescribeEvents says what the schemas of events lack. Those of units in lists are
// described before.
func DescribeEvents(schemas map[string]*huma.Schema) {
	live, listed := schemas["LiveUnit"], schemas["UnitSummary"]
	maps.Copy(live.Properties, listed.Properties)
	live.Required = append([]string{"live_status", "tool_calls"}, listed.Required...)
	for _, field := range []*huma.Schema{schemas["LiveStep"].Properties["run_id"], schemas["UnitEnd"].Properties["id"]} {
		field.Format = "uuid"
	}
	schemas["UnitEnd"].Properties["status"].Enum = view.Enum(work.States)
	for _, name := range []string{"Step", "LiveStep"} {
		schemas[name].Properties["rev"].Description = "Counts the changes of the transcript: the step is what that change made of it"
	}
}

// DescribeStreams says what the streams send.
func DescribeStreams(doc *huma.OpenAPI) {
	schema := func(t reflect.Type) string {
		return "`" + strings.TrimPrefix(doc.Components.Schemas.Schema(t, true, "").Ref, "#/components/schemas/") + "`"
	}
	unit, run := schema(reflect.TypeFor[unitEvent]()), schema(reflect.TypeFor[view.RunItem]())
	step, end := schema(reflect.TypeFor[stepEvent]()), schema(reflect.TypeFor[endEvent]())
	draft := schema(reflect.TypeFor[draftEvent]())
	units := schema(reflect.TypeFor[unitsEvent]())
	events := func(text string) *huma.Response {
		return &huma.Response{Description: text, Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}}}
	}
	const common = " `lagged`: the reader was too slow, or was away for too long; fetch anew what you show. " +
		"A comment comes after 15 seconds of silence. Every id names what was told up to its event, on any API process, for good: " +
		"give it back as Last-Event-ID, and what is missing follows."
	doc.Paths["/work-units/{id}/events"].Get.Responses["200"] = events("Server-sent events. How the unit is, then what changes: " +
		"`run` (" + run + "): a run began, went on or ended. `step` (" + step + "): a step is new, or has changed; " +
		"then it has the number of one before and a higher rev, and replaces it. `draft` (" + draft + "): words that a model " +
		"is writing and that are in no step yet; it has no id, comes only while Redis is there, and may be left out. `unit` (" + unit + "): the unit has changed. " +
		"`end` (" + end + "): the unit is final, and all of it was told; the stream goes on, for a retry may follow." + common)
	doc.Paths["/events"].Get.Responses["200"] = events("Server-sent events. `hello`: the stream begins here; fetch your list after it. " +
		"`units` (" + units + "): units that are new or have changed." + common)
}

// SchemaName is what a type of these events is called in the description; empty
// for others.
func SchemaName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[unitEvent]():
		return "LiveUnit"
	case reflect.TypeFor[unitsEvent]():
		return "LiveUnits"
	case reflect.TypeFor[stepEvent]():
		return "LiveStep"
	case reflect.TypeFor[draftEvent]():
		return "LiveDraft"
	case reflect.TypeFor[endEvent]():
		return "UnitEnd"
	}
	return ""
}

// Examples are events about a unit, by the names of their schemas.
func Examples(u work.Unit, run work.Run, step transcript.Step) map[string]any {
	changed := newUnitEvent(store.LiveUnit{Unit: u, ToolCalls: 1})
	return map[string]any{
		"LiveUnit":  changed,
		"LiveUnits": unitsEvent{[]unitEvent{changed}},
		"LiveStep":  stepEvent{run.ID, run.Attempt, step},
		"LiveDraft": draftEvent{run.Attempt, 3, transcript.Action, "The letter asks for"},
		"UnitEnd":   endEvent{u.ID, u.State},
	}
}
