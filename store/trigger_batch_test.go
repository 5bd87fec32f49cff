package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"piecework/internal/work"
)

// deliver hands in a delivery that makes a batch.
func (l *fixture) deliver(trigger, delivery string, change ...func(*NewBatch)) (work.TriggerDelivery, error) {
	n := NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "a batch",
		Protocol: work.ProtocolNative}, Items: json.RawMessage(`[1,2]`)}
	for _, f := range change {
		f(&n)
	}
	return l.Triggers.AddBatch(l.t.Context(), n, work.TriggerDelivery{ID: n.ID, Tenant: n.Tenant, Trigger: trigger, Delivery: delivery,
		Event: "push"})
}

func TestTriggersOfBatchesAreKept(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	put := work.Trigger{Tenant: work.DefaultTenant, Name: "lists", Scheme: work.Scheme{Preset: "github"},
		Secrets: []work.Secret{{Fingerprint: "aa"}}, Sealed: [][]byte{{'p'}},
		Batch: json.RawMessage(`{"items":"body.list"}`)}
	_, err := l.Triggers.Put(t.Context(), put)
	l.must(err)
	read, err := l.Triggers.Get(t.Context(), work.DefaultTenant, "lists")
	if l.must(err); read.Unit != nil || string(read.Batch) != string(put.Batch) {
		t.Errorf("%+v", read)
	}
	put.Unit, put.Batch, put.Sealed, put.Secrets = new(newUnit().Spec), nil, nil, nil
	if saved, err := l.Triggers.Put(t.Context(), put); err != nil || saved.Unit == nil || saved.Batch != nil {
		t.Errorf("%+v, error %v", saved, err)
	}
}

// Many processes that get the same deliveries at once make one batch of each.
func TestADeliveryMakesOneBatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	const names, times = 5, 40
	fixtures := []*fixture{l, openFixture(t, l.url), openFixture(t, l.url)}
	ids := make([][times]uuid.UUID, names)
	fresh := make([]int, names*times)
	var all errgroup.Group
	for i, n := range rand.Perm(names * times) {
		all.Go(func() error {
			id := uuid.Must(uuid.NewV7())
			d, err := fixtures[i%len(fixtures)].deliver("t", fmt.Sprint("d", n%names), func(b *NewBatch) { b.ID = id })
			if err != nil || d.BatchID == nil {
				return fmt.Errorf("%+v: %w", d, err)
			}
			if ids[n%names][n/names] = *d.BatchID; *d.BatchID == id {
				fresh[n] = 1
			}
			return nil
		})
	}
	l.must(all.Wait())
	made := 0
	for _, n := range fresh {
		made += n
	}
	if n := get[int](l, `SELECT count(*) FROM batches`); n != names || made != names {
		t.Errorf("%d batches, %d callers were told that theirs is new; want %d", n, made, names)
	}
	for i, same := range ids {
		for _, id := range same {
			if id != same[0] {
				t.Fatalf("delivery %d made %v and %v", i, id, same[0])
			}
		}
	}
	for _, d := range l.cameFor("t") {
		if d.Duplicates != times-1 || d.Outcome != work.DeliveryAccepted || d.BatchID == nil || d.UnitID != nil {
			t.Errorf("%+v", d)
		}
	}
}

// The note and the batch are one statement: without a batch there is no note
// that would keep a repeat from making it.
func TestADeliveryWhoseBatchFailsMayComeAgain(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	if _, err := l.deliver("t", "d", func(b *NewBatch) { b.Protocol = "none" }); err == nil {
		t.Fatal("a batch of no protocol was made")
	}
	if got := l.cameFor("t"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	l.decline("t", "d", work.DeliveryFiltered)
	d, err := l.deliver("t", "d")
	if l.must(err); d.BatchID == nil {
		t.Errorf("%+v", d)
	}
	if got := l.cameFor("t"); len(got) != 1 || got[0].Duplicates != 1 || *got[0].BatchID != *d.BatchID {
		t.Errorf("%+v", got)
	}
	// An answer that was lost: the statement comes again as it was.
	if again, err := l.deliver("t", "d", func(b *NewBatch) { b.ID = d.ID }); err != nil || again.ID != d.ID || again.Duplicates != 1 {
		t.Errorf("%+v, error %v", again, err)
	}
}

// A trigger that made units makes batches now, or the other way round: what a
// delivery has made before stays.
func TestADeliveryMakesAUnitOrABatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u := l.put(ofDelivery("t", "unit"))
	if d, err := l.deliver("t", "unit"); err != nil || d.UnitID == nil || *d.UnitID != u.ID || d.BatchID != nil || d.Duplicates != 1 {
		t.Errorf("%+v, error %v", d, err)
	}
	made, err := l.deliver("t", "batch")
	l.must(err)
	n := newUnit(ofDelivery("t", "batch"))
	if _, _, err := l.Units.Accept(t.Context(), n); !errors.Is(err, ErrMadeBatch) {
		t.Errorf("error %v", err)
	}
	n.Delivery.ID = n.ID
	if d, err := l.Triggers.Redelivered(t.Context(), *n.Delivery); err != nil || d.BatchID == nil || *d.BatchID != *made.BatchID {
		t.Errorf("%+v, error %v", d, err)
	}
	if units, batches := get[int](l, `SELECT count(*) FROM work_units`), get[int](l, `SELECT count(*) FROM batches`); units != 1 || batches != 1 {
		t.Errorf("%d units, %d batches", units, batches)
	}
}

// The items are kept until units were made of them, and no longer.
func TestItemsOfABatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	made, err := l.deliver("t", "d")
	l.must(err)
	f, err := l.Batches.ClaimEnumeration(t.Context(), l.process)
	if l.must(err); f == nil || f.ID != *made.BatchID {
		t.Fatalf("%+v", f)
	}
	if items, err := l.Batches.Items(t.Context(), f.ID); err != nil || string(items) != `[1,2]` {
		t.Errorf("%s, error %v", items, err)
	}
	l.fillMore(f.ID, 0, 2)
	l.must(l.Batches.FinishEnumeration(t.Context(), f.ID, l.process))
	if items, err := l.Batches.Items(t.Context(), f.ID); err != nil || string(items) != `[]` {
		t.Errorf("%s, error %v", items, err)
	}
}
