package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// The events. Those of a unit: eventUnit, eventRun, eventStep, eventEnd; those
// of all units: eventHello, eventUnits. A reader that is too slow for either
// hears eventLagged.
const (
	eventUnit    = "unit"    // the unit's own row changed; unitEvent
	eventRun     = "run"     // a run began, went on or ended; runItem
	eventStep    = "step"    // a step is new, or has grown; stepEvent
	eventDraft   = "draft"   // words that are in no step yet; draftEvent; without an id
	eventEnd     = "end"     // the unit is final and all of it was told; endEvent
	eventHello   = "hello"   // the stream begins here
	eventUnits   = "units"   // units that are new or changed; unitsEvent
	eventBatches = "batches" // for pages: the row of a batch has changed
	eventLagged  = "lagged"  // more was missed than is told again
)

// unitEvent is a unit in a list, with what its newest run does.
type unitEvent struct {
	unitItem
	LiveStatus *string `json:"live_status" doc:"What its newest run does, or did last"`
	ToolCalls  int     `json:"tool_calls" doc:"Of its newest run"`
}

func newUnitEvent(u store.LiveUnit) unitEvent {
	return unitEvent{unitItem: unitItem{Unit: u.Unit}, LiveStatus: u.LiveStatus, ToolCalls: u.ToolCalls}
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

// unitCursor is a place in the story of a unit, and the id of the event that
// leads there. Attempt and Rev are counted; of the others it matters only
// whether they are still the same.
type unitCursor struct {
	Unit    int64 // store.LiveUnit.Changed of the unit that was told; 0: it was not
	Attempt int   // the run that is being told; 0: none yet
	Run     int64 // store.LiveRun.Changed of that run as it was told
	Rev     int   // of its transcript
	Ended   bool  // the end was told
}

func (c unitCursor) String() string {
	id := fmt.Sprintf("%d.%d.%d.%d", c.Unit, c.Attempt, c.Run, c.Rev)
	if c.Ended {
		id += ".end"
	}
	return id
}

func parseUnitCursor(text string) (c unitCursor, ok bool) {
	text, c.Ended = strings.CutSuffix(text, ".end")
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return unitCursor{}, false
	}
	var numbers [4]int64
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 63)
		if err != nil || i%2 == 1 && n > 1<<31-1 {
			return unitCursor{}, false
		}
		numbers[i] = int64(n)
	}
	c.Unit, c.Attempt, c.Run, c.Rev = numbers[0], int(numbers[1]), numbers[2], int(numbers[3])
	return c, true
}

// unitNews is what one look at a unit has found: its row, its runs, and of each
// run the steps that somebody may not know.
type unitNews struct {
	unit  store.LiveUnit
	runs  []store.LiveRun
	steps [][]transcript.Step
}

func (n *unitNews) head() store.Head {
	return store.Head{ID: n.unit.ID, Changed: n.unit.Changed, RunChanged: n.unit.RunChanged}
}

// begin returns the first run that somebody at a place wants, and the place as
// far as it exists. Somebody without a place, or with one in a run that there is
// not, begins with the newest run.
func (n *unitNews) begin(at unitCursor) (int, unitCursor) {
	newest := len(n.runs) - 1
	if at == (unitCursor{}) || newest < 0 && at.Attempt > 0 || newest >= 0 && at.Attempt > n.runs[newest].Attempt {
		return max(newest, 0), unitCursor{}
	}
	for i, run := range n.runs {
		if run.Attempt < at.Attempt {
			continue
		}
		if run.Attempt == at.Attempt && run.Rev != nil {
			at.Rev = min(at.Rev, *run.Rev)
		}
		return i, at
	}
	return 0, at
}

// from tells whether somebody at a place wants steps of run i, and after which
// revision.
func (n *unitNews) from(i int, at unitCursor) (rev int, wants bool) {
	first, at := n.begin(at)
	if i == first && n.runs[i].Attempt == at.Attempt {
		return at.Rev, true
	}
	return 0, i >= first
}

// bundle is what somebody at a place does not know: the rest of the run that was
// being told, the runs after it, the unit, the end. Each event's id says what
// was told up to there, so that whoever breaks off goes on exactly there.
func (n *unitNews) bundle(at unitCursor) bundle[unitCursor] {
	var out bytes.Buffer
	first, at := n.begin(at)
	for i := first; i < len(n.runs); i++ {
		run := n.runs[i]
		if run.Attempt > at.Attempt {
			at = unitCursor{Unit: at.Unit, Attempt: run.Attempt, Run: run.Changed}
			put(&out, eventRun, at, runItem{Run: run.Run})
		}
		for _, s := range n.steps[i] {
			if s.Rev > at.Rev {
				at.Rev, at.Ended = s.Rev, false
				put(&out, eventStep, at, stepEvent{run.ID, run.Attempt, s})
			}
		}
		if run.Changed != at.Run {
			at.Run, at.Ended = run.Changed, false
			put(&out, eventRun, at, runItem{Run: run.Run})
		}
	}
	if n.unit.Changed != at.Unit {
		at.Unit, at.Ended = n.unit.Changed, false
		put(&out, eventUnit, at, newUnitEvent(n.unit))
	}
	if n.unit.State.Final() && !at.Ended {
		at.Ended = true
		put(&out, eventEnd, at, endEvent{n.unit.ID, n.unit.State})
	}
	return bundle[unitCursor]{out.Bytes(), at}
}

// put writes one event.
func put(out *bytes.Buffer, event string, id fmt.Stringer, data any) {
	fmt.Fprintf(out, "id: %s\nevent: %s\ndata: ", id, event)
	_ = json.NewEncoder(out).Encode(data) // our own types; the encoder ends the line
	out.WriteByte('\n')
}

type unitReader struct {
	reader[unitCursor]
	unit   uuid.UUID
	tenant string
	at     unitCursor
	topic  *unitTopic
}

// Resume is where a stream goes on.
type Resume struct {
	LastEventID string `header:"Last-Event-ID" doc:"Go on after the event of this id; browsers send it when they come again"`
	After       string `query:"after" doc:"The same for the first call; the header counts more"`
}

type unitEventsInput struct {
	ByID
	Resume
}

// followUnit streams a unit: how it is, then what changes.
func (a *API) followUnit(ctx context.Context, in *unitEventsInput) (*huma.StreamResponse, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	at, ok := parseUnitCursor(cmp.Or(in.LastEventID, in.After, unitCursor{}.String()))
	if !ok && in.LastEventID == "" {
		return nil, badParameter("after", "must be the id of an event of this stream")
	}
	r := &unitReader{reader: newReader[unitCursor](newWake()), unit: id, tenant: work.DefaultTenant, at: at}
	if err := a.hub.followUnit(ctx, r); err != nil {
		a.hub.leaveUnit(r)
		return nil, err
	}
	return streamed(eventStream{wake: r.wake, taps: []tap{a.hub.unitTap(ctx, r)}, leave: func() { a.hub.leaveUnit(r) }}), nil
}

func (h *hub) unitTap(ctx context.Context, r *unitReader) tap {
	return r.tap(func(at unitCursor) { r.at = at }, func() error { return h.followUnit(ctx, r) })
}

type eventsInput struct {
	Resume
	Worker  string   `query:"worker"`
	Backend string   `query:"backend"`
	Label   []string `query:"label,explode" doc:"name:value; several must all fit" example:"team:legal"`
}

// followUnits streams what becomes of all units.
func (a *API) followUnits(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	labels, err := parseLabels(in.Label)
	if err != nil {
		return nil, err
	}
	r := &feedReader{reader: newReader[store.Moment](newWake()), filter: feedFilter{
		tenant: work.DefaultTenant, worker: in.Worker, backend: in.Backend, labels: labels}}
	if id := cmp.Or(in.LastEventID, in.After); id != "" {
		at, err := store.ParseMoment(id)
		if err != nil && in.LastEventID == "" {
			return nil, badParameter("after", "must be the id of an event of this stream")
		}
		r.at, r.resumes = at, true // where there is no such moment, the feed says that more was missed than it can tell
	}
	if err := a.hub.feed.follow(ctx, r); err != nil {
		a.hub.feed.leave(r)
		return nil, err
	}
	return streamed(eventStream{wake: r.wake, taps: []tap{a.hub.feedTap(ctx, r)}, leave: func() { a.hub.feed.leave(r) }}), nil
}

func (h *hub) feedTap(ctx context.Context, r *feedReader) tap {
	return r.tap(func(at store.Moment) { r.at, r.resumes = at, true }, func() error { return h.feed.follow(ctx, r) })
}

// followPage streams what a page shows, as one stream: all units, and the unit
// that is open with the batch it is of; or a batch with its units, or all
// batches. A page that comes again asks for its list anew, so only the unit's
// place counts, which is the id of the last event that was of the unit.
func (a *API) followPage(c echo.Context) (err error) {
	ctx := c.Request().Context()
	stream := eventStream{wake: newWake()}
	var left []func()
	stream.leave = func() {
		for _, leave := range left {
			leave()
		}
	}
	defer func() {
		if err != nil {
			stream.leave()
		}
	}()
	units := &feedReader{reader: newReader[store.Moment](stream.wake), filter: feedFilter{tenant: work.DefaultTenant}}
	whole := c.QueryParam("batch")
	if text := cmp.Or(whole, c.QueryParam("of")); text != "" {
		r := &batchReader{reader: newReader[struct{}](stream.wake)}
		if text != allBatches {
			if r.batch, err = parseID(text); err != nil {
				return err
			}
		}
		if whole != "" {
			units.filter.batched, units.filter.batch = true, r.batch
		}
		a.hub.batches.follow(r)
		left = append(left, func() { a.hub.batches.leave(r) })
		stream.taps = append(stream.taps, r.tap(func(struct{}) {}, func() error { return nil }))
	}
	left = append(left, func() { a.hub.feed.leave(units) })
	if err := a.hub.feed.follow(ctx, units); err != nil {
		return err
	}
	stream.taps = append(stream.taps, a.hub.feedTap(ctx, units))
	if text := c.QueryParam("unit"); text != "" {
		id, err := parseID(text)
		if err != nil {
			return err
		}
		at, ok := parseUnitCursor(cmp.Or(c.QueryParam("after"), unitCursor{}.String()))
		if !ok {
			return badParameter("after", "must be the id of an event of this unit")
		}
		unit := &unitReader{reader: newReader[unitCursor](stream.wake), unit: id, tenant: work.DefaultTenant, at: at}
		left = append(left, func() { a.hub.leaveUnit(unit) })
		if err := a.hub.followUnit(ctx, unit); err != nil {
			return err
		}
		stream.taps = append(stream.taps, a.hub.unitTap(ctx, unit))
	}
	stream.begin(c)
	c.Response().WriteHeader(http.StatusOK)
	return nil
}

// eventStream is what an answer of events sends.
type eventStream struct {
	wake  chan struct{}
	taps  []tap
	leave func() // when it ends
}

const streamKey = "eventStream" // of echo's context

// begin leaves the stream to sendEvents.
func (s eventStream) begin(c echo.Context) {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	c.Set(streamKey, s)
}

// streamed answers with events.
func streamed(s eventStream) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		s.begin(humaecho.Unwrap(ctx))
		ctx.SetStatus(http.StatusOK)
	}}
}

// sendEvents sends the events of an answer when all who looked at the request
// have returned: a stream is open for long, and would keep their stack.
func (a *API) sendEvents(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if s, ok := c.Get(streamKey).(eventStream); ok {
			a.send(c, s)
		}
		return err
	}
}

func (a *API) send(c echo.Context, s eventStream) {
	defer s.leave()
	ctx := c.Request().Context()
	if _, only := ctx.Value(headOnly{}).(bool); only {
		return
	}
	a.hub.open.Inc()
	defer a.hub.open.Dec()
	if err := a.hub.serve(ctx, c.Response(), s.wake, s.taps...); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		a.Log.Debug("event stream ends", "err", err, "request_id", requestID(c))
	}
}

// headOnly marks a request for which net/http keeps the body back.
type headOnly struct{}

// describeLive adds the fields of a unit in a list, once they are described, to
// a live one's.
func describeLive(schemas map[string]*huma.Schema) {
	live, listed := schemas["LiveUnit"], schemas["UnitSummary"]
	maps.Copy(live.Properties, listed.Properties)
	live.Required = append(live.Required, listed.Required...)
	for _, field := range []*huma.Schema{schemas["LiveStep"].Properties["run_id"], schemas["UnitEnd"].Properties["id"]} {
		field.Format = "uuid"
	}
	schemas["UnitEnd"].Properties["status"].Enum = words(work.States)
	for _, name := range []string{"Step", "LiveStep"} {
		schemas[name].Properties["rev"].Description = "Counts the changes of the transcript: the step is what that change made of it"
	}
}

// describeEvents says what the streams send.
func describeEvents(doc *huma.OpenAPI) {
	schema := func(t reflect.Type) string {
		return "`" + strings.TrimPrefix(doc.Components.Schemas.Schema(t, true, "").Ref, "#/components/schemas/") + "`"
	}
	unit, run := schema(reflect.TypeFor[unitEvent]()), schema(reflect.TypeFor[runItem]())
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
