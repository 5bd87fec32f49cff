package live

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/internal/work"
	"piecework/store"
)

// Resume is where a stream goes on.
type Resume struct {
	LastEventID string `header:"Last-Event-ID" doc:"Go on after the event of this id; browsers send it when they come again"`
	After       string `query:"after" doc:"The same for the first call; the header counts more"`
}

type unitEventsInput struct {
	query.ByID
	Resume
}

// StreamUnit streams a unit: how it is, then what changes.
func (h *Hub) StreamUnit(ctx context.Context, in *unitEventsInput) (*huma.StreamResponse, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	at, ok := parseUnitCursor(cmp.Or(in.LastEventID, in.After, unitCursor{}.String()))
	if !ok && in.LastEventID == "" {
		return nil, problem.Parameter("after", "must be the id of an event of this stream")
	}
	r := &unitReader{reader: newReader[unitCursor](newWake()), unit: id, tenant: work.DefaultTenant, at: at}
	if err := h.followUnit(ctx, r); err != nil {
		h.leaveUnit(r)
		return nil, err
	}
	return streamed(eventStream{wake: r.wake, sources: []source{h.unitSource(ctx, r)}, leave: func() { h.leaveUnit(r) }}), nil
}

func (h *Hub) unitSource(ctx context.Context, r *unitReader) source {
	return r.source(func(at unitCursor) { r.at = at }, func() error { return h.followUnit(ctx, r) })
}

type eventsInput struct {
	Resume
	Worker  string   `query:"worker"`
	Backend string   `query:"backend"`
	Label   []string `query:"label,explode" doc:"name:value; several must all fit" example:"team:legal"`
}

// StreamUnits streams what becomes of all units.
func (h *Hub) StreamUnits(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	labels, err := query.Labels(in.Label)
	if err != nil {
		return nil, err
	}
	r := &feedReader{reader: newReader[store.Moment](newWake()), filter: feedFilter{
		tenant: work.DefaultTenant, worker: in.Worker, backend: in.Backend, labels: labels}}
	if id := cmp.Or(in.LastEventID, in.After); id != "" {
		at, err := store.ParseMoment(id)
		if err != nil && in.LastEventID == "" {
			return nil, problem.Parameter("after", "must be the id of an event of this stream")
		}
		r.at, r.resumes = at, true // where there is no such moment, the feed says that more was missed than it can send
	}
	if err := h.feed.follow(ctx, r); err != nil {
		h.feed.leave(r)
		return nil, err
	}
	return streamed(eventStream{wake: r.wake, sources: []source{h.feedSource(ctx, r)}, leave: func() { h.feed.leave(r) }}), nil
}

func (h *Hub) feedSource(ctx context.Context, r *feedReader) source {
	return r.source(func(at store.Moment) { r.at, r.resumes = at, true }, func() error { return h.feed.follow(ctx, r) })
}

// StreamPage streams what a page shows, as one stream: all units, and the unit
// that is open with the batch it is of; or a batch with its units, or all
// batches. A page that comes again asks for its list anew, so only the unit's
// place counts, which is the id of the last event that was of the unit.
func (h *Hub) StreamPage(c echo.Context) (err error) {
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
			if r.batch, err = query.ID(text); err != nil {
				return err
			}
		}
		if whole != "" {
			units.filter.batched, units.filter.batch = true, r.batch
		}
		h.batches.follow(r)
		left = append(left, func() { h.batches.leave(r) })
		stream.sources = append(stream.sources, r.source(func(struct{}) {}, func() error { return nil }))
	}
	left = append(left, func() { h.feed.leave(units) })
	if err := h.feed.follow(ctx, units); err != nil {
		return err
	}
	stream.sources = append(stream.sources, h.feedSource(ctx, units))
	if text := c.QueryParam("unit"); text != "" {
		id, err := query.ID(text)
		if err != nil {
			return err
		}
		at, ok := parseUnitCursor(cmp.Or(c.QueryParam("after"), unitCursor{}.String()))
		if !ok {
			return problem.Parameter("after", "must be the id of an event of this unit")
		}
		unit := &unitReader{reader: newReader[unitCursor](stream.wake), unit: id, tenant: work.DefaultTenant, at: at}
		left = append(left, func() { h.leaveUnit(unit) })
		if err := h.followUnit(ctx, unit); err != nil {
			return err
		}
		stream.sources = append(stream.sources, h.unitSource(ctx, unit))
	}
	stream.begin(c)
	c.Response().WriteHeader(http.StatusOK)
	return nil
}

// eventStream is what an answer of events sends.
type eventStream struct {
	wake    chan struct{}
	sources []source
	leave   func() // when it ends
}

const streamKey = "eventStream" // of echo's context

// begin leaves the stream to SendEvents.
func (s eventStream) begin(c echo.Context) {
	header := c.Response().Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	c.Set(streamKey, s)
}

// streamed answers with events.
func streamed(s eventStream) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		s.begin(humaecho.Unwrap(ctx))
		ctx.SetStatus(http.StatusOK)
	}}
}

// SendEvents sends the events of an answer when all who looked at the request
// have returned: a stream is open for long, and would keep their stack.
func (h *Hub) SendEvents(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if s, ok := c.Get(streamKey).(eventStream); ok {
			h.send(c, s)
		}
		return err
	}
}

func (h *Hub) send(c echo.Context, s eventStream) {
	defer s.leave()
	ctx := c.Request().Context()
	if _, only := ctx.Value(headOnly{}).(bool); only {
		return
	}
	h.open.Inc()
	defer h.open.Dec()
	if err := h.serve(ctx, c.Response(), s.wake, s.sources...); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		h.log.Debug("event stream ends", "err", err, "request_id", problem.RequestID(c))
	}
}

// headOnly marks a request for which net/http keeps the body back.
type headOnly struct{}

// HeadOnly marks a request that is HEAD, and handled as GET: a stream has no
// end, so nothing of it is made.
func HeadOnly(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), headOnly{}, true))
}
