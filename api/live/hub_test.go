package live

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, url)
	return err
}

// testHub is a hub that looks when a test makes it, without Redis.
type testHub struct {
	*Hub
	metrics *prometheus.Registry
}

func newHub(t *testing.T) testHub {
	t.Helper()
	s, err := store.Open(t.Context(), testkit.DB(t, migrate), 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	bell, err := queue.Connect("redis://127.0.0.1:1/0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bell.Close() })
	metrics := prometheus.NewRegistry()
	return testHub{New(s, bell, slog.New(slog.DiscardHandler), metrics), metrics}
}

func (h testHub) accept(t *testing.T) uuid.UUID {
	t.Helper()
	u, _, err := h.store.Units.Accept(t.Context(), store.NewUnit{Unit: work.Unit{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant,
		Title: "a unit", Spec: work.Spec{
			Backend: "mock", Prompt: "p", Payload: json.RawMessage("{}"), Timeout: 60, IdleTimeout: 60, MissingKey: "fail",
			Queue: work.DefaultQueue, Priority: work.DefaultPriority, Labels: json.RawMessage("{}")}}})
	if err != nil {
		t.Fatal(err)
	}
	return u.ID
}

func (h testHub) follower(t *testing.T, unit uuid.UUID, at unitCursor) *unitReader {
	t.Helper()
	r := &unitReader{reader: newReader[unitCursor](newWake()), unit: unit, tenant: work.DefaultTenant, at: at}
	if err := h.followUnit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// readsOf counts how often do reads from the store.
func (h testHub) readsOf(t *testing.T, do func()) float64 {
	t.Helper()
	count := func() float64 {
		families, err := h.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "piecework_event_reads_total" {
				return family.GetMetric()[0].GetCounter().GetValue()
			}
		}
		t.Fatal("there is no metric of reads")
		return 0
	}
	before := count()
	do()
	return count() - before
}

func TestReadersShareOneRead(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	unit := h.accept(t)
	var readers []*unitReader
	for range 20 {
		r := h.follower(t, unit, unitCursor{})
		if queue, _, _ := r.next(); len(queue) != 1 {
			t.Fatalf("%d bundles", len(queue))
		}
		readers = append(readers, r)
	}
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, unit); err != nil {
		t.Fatal(err)
	}
	if reads := h.readsOf(t, func() { h.Notify(unit); h.round(t.Context()) }); reads != 1 {
		t.Errorf("%v reads for %d readers", reads, len(readers))
	}
	for _, r := range readers {
		if queue, behind, err := r.next(); len(queue) != 1 || behind || err != nil {
			t.Errorf("%d bundles, behind %t, %v", len(queue), behind, err)
		}
		h.leaveUnit(r)
	}
	if len(h.units) != 0 {
		t.Errorf("%d units are followed by nobody", len(h.units))
	}
	if reads := h.readsOf(t, func() { h.poll(t.Context()); h.Notify(unit); h.round(t.Context()) }); reads != 0 {
		t.Errorf("%v reads for nobody", reads)
	}
}

// A place that somebody made up leads no other reader away.
func TestReadersStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	unit := h.accept(t)
	r := h.follower(t, unit, unitCursor{})
	queue, _, _ := r.next()
	at := queue[len(queue)-1].at
	h.follower(t, unit, unitCursor{Unit: 1, Attempt: 5, Run: 99, Rev: 5})
	h.follower(t, unit, at)
	if head := r.topic.head; head != at {
		t.Errorf("readers are at %s, not at %s", head, at)
	}
}

// Whoever asks for the head of a stream only must not be followed for ever.
func TestHeadOfAStreamLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	unit := h.accept(t)
	for _, query := range []string{"", "?unit=" + unit.String(), "?batch=all"} {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		c := echo.New().NewContext(HeadOnly(httptest.NewRequestWithContext(ctx, "GET", "/live"+query, nil)), httptest.NewRecorder())
		if err := h.SendEvents(h.StreamPage)(c); err != nil || ctx.Err() != nil {
			t.Error(err, ctx.Err())
		}
		cancel()
	}
	if len(h.units) != 0 || len(h.feed.readers) != 0 || h.batches.followed() {
		t.Errorf("%d units and %d readers of all units are followed", len(h.units), len(h.feed.readers))
	}
}
