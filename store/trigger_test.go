package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"piecework/internal/work"
)

func ofDelivery(trigger, delivery string) func(*NewUnit) {
	return func(n *NewUnit) {
		n.Delivery = &work.TriggerDelivery{Tenant: n.Tenant, Trigger: trigger, Delivery: delivery, Event: "push"}
	}
}

func (l *fixture) cameFor(trigger string) []work.TriggerDelivery {
	l.t.Helper()
	list, _, err := l.Triggers.Received(l.t.Context(), TriggerDeliveryFilter{Tenant: work.DefaultTenant, Trigger: trigger, Limit: 100})
	l.must(err)
	return list
}

func (l *fixture) decline(trigger, delivery, outcome string) work.TriggerDelivery {
	l.t.Helper()
	d, err := l.Triggers.Decline(l.t.Context(), work.TriggerDelivery{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant,
		Trigger: trigger, Delivery: delivery, Event: "push", Outcome: outcome})
	l.must(err)
	return d
}

func TestTriggersAreKept(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	put := work.Trigger{Tenant: work.DefaultTenant, Name: "reviews", Scheme: work.Scheme{Preset: "hmac", Header: "X-Signature", Tolerance: 5},
		Secrets: []work.Secret{{Fingerprint: "aa"}, {Fingerprint: "bb"}}, Sealed: [][]byte{{'p', 0, 1, 0xff}, {'p', 2}},
		Events: []string{"pull_request", "x.*"}, Filter: `body.a == "<"`, EventFrom: "body.type", DeliveryFrom: "body.id",
		Mapping: map[string]string{"title": "body.title"}, MaxBodyBytes: 5 << 20, Unit: new(newUnit().Spec)}
	saved, err := l.Triggers.Put(t.Context(), put)
	l.must(err)
	read, err := l.Triggers.Get(t.Context(), work.DefaultTenant, "reviews")
	l.must(err)
	put.CreatedAt, put.UpdatedAt = read.CreatedAt, read.UpdatedAt
	if diff := cmp.Diff(put, read); diff != "" || !cmp.Equal(saved, read) || read.CreatedAt.IsZero() {
		t.Errorf("(-put +read):\n%s", diff)
	}
	put.Sealed, put.Secrets, put.Paused, put.Events, put.MaxBodyBytes = nil, nil, true, []string{}, work.MaxTriggerBody
	if saved, err = l.Triggers.Put(t.Context(), put); err != nil || !saved.Paused || len(saved.Sealed) != 2 || len(saved.Secrets) != 2 ||
		len(saved.Events) != 0 || saved.MaxBodyBytes != work.MaxTriggerBody {
		t.Errorf("without secrets: %+v, error %v", saved, err)
	}
	put.Name = "other"
	if _, err := l.Triggers.Put(t.Context(), put); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a new one without secrets: error %v", err)
	}
	if list, err := l.Triggers.List(t.Context(), work.DefaultTenant); err != nil || len(list) != 1 {
		t.Errorf("%+v, error %v", list, err)
	}
	if list, err := l.Triggers.List(t.Context(), "other"); err != nil || len(list) != 0 {
		t.Errorf("another tenant's: %+v, error %v", list, err)
	}
	l.must(l.Triggers.Delete(t.Context(), work.DefaultTenant, "reviews"))
	if err := l.Triggers.Delete(t.Context(), work.DefaultTenant, "reviews"); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

// Many processes that get the same deliveries at once, in any order and beside
// other units, make one unit of each.
func TestADeliveryMakesOneUnit(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	const names, times = 20, 50
	fixtures := []*fixture{l, openFixture(t, l.url), openFixture(t, l.url)}
	ids := make([][]uuid.UUID, names)
	for i := range ids {
		ids[i] = make([]uuid.UUID, times)
	}
	fresh := make([]int, names*times)
	var all errgroup.Group
	for i, n := range rand.Perm(names * times) {
		all.Go(func() error {
			u, again, err := fixtures[i%len(fixtures)].Units.Accept(t.Context(), newUnit(ofDelivery("t", fmt.Sprint("d", n%names))))
			if err != nil {
				return err
			}
			if ids[n%names][n/names] = u.ID; !again {
				fresh[n] = 1
			}
			return nil
		})
		if i%10 == 0 {
			all.Go(func() error {
				_, _, err := l.Units.Accept(t.Context(), newUnit(func(u *NewUnit) { u.IdempotencyKey = fmt.Sprint("k", i%50) }))
				if errors.Is(err, ErrKeyReused) {
					err = nil
				}
				return err
			})
		}
	}
	l.must(all.Wait())
	for i, same := range ids {
		if made := slices.Compact(same); len(made) != 1 {
			t.Errorf("delivery %d made units %v", i, made)
		}
	}
	made := 0
	for _, n := range fresh {
		made += n
	}
	if n := get[int](l, `SELECT count(*) FROM work_units WHERE idempotency_key IS NULL`); n != names || made != names {
		t.Errorf("%d units, %d callers were told that theirs is new; want %d", n, made, names)
	}
	for _, d := range l.cameFor("t") {
		if d.Duplicates != times-1 || d.Outcome != work.DeliveryAccepted || d.UnitID == nil {
			t.Errorf("%+v", d)
		}
	}
	if u := l.put(ofDelivery("other", "d0")); u.ID == ids[0][0] {
		t.Error("another trigger's delivery of the same name is another")
	}
}

// The row and the unit are one statement: if there is no unit, there is no row
// that would keep a repeat from making it.
func TestADeliveryWhoseUnitFailsMayComeAgain(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	gone := uuid.Must(uuid.NewV7()).String()
	if _, _, err := l.Units.Accept(t.Context(), newUnit(ofDelivery("t", "d"), func(n *NewUnit) { n.Files = work.Refs{gone} })); err == nil {
		t.Fatal("a unit with a file that is not there was accepted")
	}
	if got := l.cameFor("t"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	l.put(ofDelivery("t", "d"))
	if got := l.cameFor("t"); len(got) != 1 || got[0].Duplicates != 0 {
		t.Errorf("%+v", got)
	}
}

func TestDeclinedDeliveries(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.decline("t", "d", work.DeliveryFiltered)
	if d := l.decline("t", "d", work.DeliveryFiltered); d.Outcome != work.DeliveryFiltered || d.Duplicates != 1 || d.UnitID != nil {
		t.Errorf("%+v", d)
	}
	u := l.put(ofDelivery("t", "d")) // the filter was changed, and the sender asked to send it again
	got := l.cameFor("t")
	if len(got) != 1 || got[0].Outcome != work.DeliveryAccepted || *got[0].UnitID != u.ID || got[0].Duplicates != 2 {
		t.Errorf("%+v", got)
	}
	if d := l.decline("t", "d", work.DeliveryPaused); d.Outcome != work.DeliveryAccepted || *d.UnitID != u.ID {
		t.Errorf("what was accepted is accepted: %+v", d)
	}
	var all errgroup.Group
	for i := range 40 {
		all.Go(func() error { l.decline("t", fmt.Sprint("many", i%4), work.DeliveryPaused); return nil })
	}
	l.must(all.Wait())
	page, next, err := l.Triggers.Received(t.Context(), TriggerDeliveryFilter{Tenant: work.DefaultTenant, Trigger: "t", Limit: 3})
	if err != nil || len(page) != 3 || next == nil {
		t.Fatalf("%+v, %v, error %v", page, next, err)
	}
	if page, next, err = l.Triggers.Received(t.Context(), TriggerDeliveryFilter{Tenant: work.DefaultTenant, Trigger: "t",
		After: *next}); err != nil || len(page) != 2 || next != nil {
		t.Errorf("%+v, %v, error %v", page, next, err)
	}
}

func TestPruneDeliveries(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for i := range 5 {
		l.decline("t", fmt.Sprint(i), work.DeliveryFiltered)
	}
	l.exec(`UPDATE trigger_deliveries SET received_at = received_at - interval '8 days' WHERE delivery < '3'`)
	for _, want := range []int{2, 1, 0} {
		if n, err := l.Retention.PruneTriggerDeliveries(t.Context(), time.Now().Add(-7*24*time.Hour), 2); err != nil || n != want {
			t.Errorf("%d, error %v; want %d", n, err, want)
		}
	}
	if got := l.cameFor("t"); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}
