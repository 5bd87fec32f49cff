package jobs

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, url)
	return err
}

func connect(t *testing.T, url string) *Bell {
	t.Helper()
	b, err := Connect(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// house is a ledger, a Redis and a reconciler between them.
type house struct {
	t     *testing.T
	url   string // of the ledger
	store *store.Store
	redis *testkit.RedisServer // nil when there are several
	bell  *Bell
	rec   *Reconciler
}

func newHouse(t *testing.T) *house {
	t.Helper()
	server := testkit.StartRedis(t)
	h := newHouseAt(t, server.URL)
	h.redis = server
	return h
}

func newHouseAt(t *testing.T, redis string) *house {
	t.Helper()
	url := testkit.DB(t, migrate)
	s, err := store.Open(t.Context(), url, 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	h := &house{t: t, url: url, store: s, bell: connect(t, redis)}
	h.rec = &Reconciler{Store: s, Bell: h.bell, Log: slog.New(slog.DiscardHandler)}
	return h
}

// real skips a test of what only a real server does.
func (h *house) real() {
	h.t.Helper()
	if !h.redis.Real() {
		h.t.Skip("no redis-server or valkey-server on PATH")
	}
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) exec(statement string) {
	h.t.Helper()
	testkit.Exec(h.t, h.url, statement)
}

func (h *house) put() work.Unit {
	h.t.Helper()
	u, _, err := h.store.Units.Accept(h.t.Context(), store.NewUnit{Unit: work.Unit{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "t", Spec: work.Spec{
			Backend: "mock", Payload: json.RawMessage(`{}`), Timeout: 60, IdleTimeout: 60, MissingKey: "fail",
			Queue: work.DefaultQueue, Priority: work.DefaultPriority, Labels: json.RawMessage(`{}`),
		},
	}})
	h.must(err)
	return u
}

func (h *house) unit(id uuid.UUID) work.Unit {
	h.t.Helper()
	u, err := h.store.Units.Get(h.t.Context(), work.DefaultTenant, id)
	h.must(err)
	return u
}

func (h *house) ring(u work.Unit) {
	h.t.Helper()
	h.must(h.bell.Ring(h.t.Context(), store.MessageOf(u)))
}

func (h *house) once() {
	h.t.Helper()
	h.must(h.rec.Once(h.t.Context()))
}

func (h *house) pending(units ...work.Unit) (n int) {
	h.t.Helper()
	bells := make([]store.Message, len(units))
	for i, u := range units {
		bells[i] = store.MessageOf(h.unit(u.ID))
	}
	states, err := h.bell.pending(h.t.Context(), bells)
	h.must(err)
	for _, p := range states {
		if p {
			n++
		}
	}
	return n
}

// refuseWrites makes Redis answer every write with an error.
func (h *house) refuseWrites(refuse bool) {
	h.t.Helper()
	replicas := "0"
	if refuse {
		replicas = "1"
	}
	h.must(h.bell.redis.ConfigSet(h.t.Context(), "min-replicas-to-write", replicas).Err())
}

func TestTaskID(t *testing.T) {
	t.Parallel()
	unit := uuid.MustParse("01234567-89ab-7cde-8f01-23456789abcd")
	if got, want := TaskID(unit, 12), "0123456789ab7cde8f0123456789abcd.12"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if a, b := TaskID(unit, 1), TaskID(unit, 2); a == b || strings.Contains(a, "-") {
		t.Errorf("%s and %s", a, b)
	}
}

func TestLanes(t *testing.T) {
	t.Parallel()
	b := &Bell{}
	lanes := b.Lanes(map[string]int{"a": 1, "b": 2}, []string{"mock", "claude"})
	for lane, want := range map[string]int{"a:mock:high": 6, "a:claude": 3, "b:mock:low": 2, "b:claude:high": 12} {
		if lanes[lane] != want {
			t.Errorf("lane %s weighs %d, want %d", lane, lanes[lane], want)
		}
	}
	if len(lanes) != 12 {
		t.Errorf("lanes %v", lanes)
	}
	for priority := range 10 {
		if lanes[b.Lane("a", "mock", priority)] == 0 {
			t.Errorf("nobody listens to priority %d", priority)
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	server := testkit.StartRedis(t)
	b := connect(t, server.URL)
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := b.Probe(left); err == nil || !b.Up() {
		t.Errorf("a caller that left: error %v, up %t", err, b.Up())
	}
	server.Stop()
	if err := b.Probe(t.Context()); err == nil || b.Up() {
		t.Errorf("stopped: error %v, up %t", err, b.Up())
	}
	server.Start()
	if err := b.Probe(t.Context()); err != nil || !b.Up() {
		t.Errorf("started again: error %v, up %t", err, b.Up())
	}
}

// A Redis that answers PING and refuses writes is away.
func TestProbeWrites(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.real()
	h.refuseWrites(true)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go h.bell.WatchRedis(ctx)
	testkit.Eventually(t, "it counts as away", func() bool { return !h.bell.Up() })
	h.refuseWrites(false)
	testkit.Eventually(t, "it counts as there", h.bell.Up)
}
