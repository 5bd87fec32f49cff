package live

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"piecework/api/view"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// The events. Those of a unit: eventUnit, eventRun, eventStep, eventEnd; those
// of all units: eventHello, eventUnits. A reader that is too slow for either
// gets eventLagged.
const (
	eventUnit    = "unit"    // the unit's own row changed; unitEvent
	eventRun     = "run"     // a run began, went on or ended; runItem
	eventStep    = "step"    // a step is new, or has grown; stepEvent
	eventDraft   = "draft"   // words that are in no step yet; draftEvent; without an id
	eventEnd     = "end"     // the unit is final and all of it was sent; endEvent
	eventHello   = "hello"   // the stream begins here
	eventUnits   = "units"   // units that are new or changed; unitsEvent
	eventBatches = "batches" // for pages: the row of a batch has changed
	eventLagged  = "lagged"  // more was missed than is sent again
)

// unitEvent is a unit in a list, with what its newest run does.
type unitEvent struct {
	view.UnitItem
	LiveStatus *string `json:"live_status" doc:"What its newest run does, or did last"`
	ToolCalls  int     `json:"tool_calls" doc:"Of its newest run"`
}

func newUnitEvent(u store.LiveUnit) unitEvent {
	return unitEvent{UnitItem: view.UnitItem{Unit: u.Unit}, LiveStatus: u.LiveStatus, ToolCalls: u.ToolCalls}
}

// stepEvent is a step and where it belongs.
type stepEvent struct {
	RunID   uuid.UUID `json:"run_id"`
	Attempt int       `json:"attempt"`
	transcript.Step
}

// draftEvent is words that are being written.
type draftEvent struct {
	Attempt int    `json:"attempt"`
	Rev     int    `json:"rev" doc:"Of the transcript that they come after: a step with a higher one has them"`
	Type    string `json:"type" enum:"action,reasoning" doc:"Of the step that they will be in"`
	Text    string `json:"text" doc:"All that is in no step yet, in place of what the draft before said"`
}

type endEvent struct {
	ID     uuid.UUID  `json:"id"`
	Status work.State `json:"status"`
}

type unitsEvent struct {
	Items []unitEvent `json:"items" nullable:"false"`
}

// put writes one event.
func put(out *bytes.Buffer, event string, id fmt.Stringer, data any) {
	fmt.Fprintf(out, "id: %s\nevent: %s\ndata: ", id, event)
	_ = json.NewEncoder(out).Encode(data) // our own types; the encoder ends the line
	out.WriteByte('\n')
}

func event(name string, id fmt.Stringer, data any) []byte {
	var out bytes.Buffer
	put(&out, name, id, data)
	return bytes.Clone(out.Bytes())
}
