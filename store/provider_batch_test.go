package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func (l *fixture) patient(change ...func(*NewUnit)) work.Unit {
	l.t.Helper()
	return l.put(append([]func(*NewUnit){func(n *NewUnit) { n.Lane = work.LaneBatch }}, change...)...)
}

func (l *fixture) packed(process uuid.UUID) *ProviderBatch {
	l.t.Helper()
	_, err := l.ProviderBatches.Pack(l.t.Context(), "mock", 100)
	l.must(err)
	b, err := l.ProviderBatches.Claim(l.t.Context(), process, []string{"mock"})
	l.must(err)
	return b
}

// A unit of the batch lane is no one's to claim and no message's, until it is
// answered; then it is like any other.
func TestWaitingForAProvidersBatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u := l.patient()
	if u.State != work.Waiting || u.Lane != work.LaneBatch || l.take(u.ID, l.process) != nil {
		t.Fatalf("it is %s, lane %s", u.State, u.Lane)
	}
	if due, _, err := l.Queues.Unchecked(t.Context(), CheckCursor{}, 10); err != nil || len(due) != 0 {
		t.Errorf("bells %v are looked for, %v", due, err)
	}
	b := l.packed(l.process)
	if again, err := l.ProviderBatches.Claim(t.Context(), l.register(time.Hour), []string{"mock"}); err != nil || again != nil {
		t.Errorf("a batch that is held was given to another: %v, %v", again, err)
	}
	if again, err := l.ProviderBatches.Claim(t.Context(), l.process, []string{"mock"}); err != nil || again == nil || again.ID != b.ID {
		t.Errorf("who could not let go of a batch does not get it again: %v, %v", again, err)
	}
	answer := ProviderAnswer{UnitID: u.ID, Status: 200, RequestID: "r\x00", Body: []byte(`{"a":1}`)}
	other := ProviderAnswer{UnitID: u.ID, Status: 500, Body: []byte(`{"b":2}`)}
	l.must(l.ProviderBatches.AddAnswers(t.Context(), b.ID, []ProviderAnswer{{UnitID: uuid.New(), Body: []byte("stranger")}, answer, other}))
	l.must(l.ProviderBatches.AddAnswers(t.Context(), b.ID, []ProviderAnswer{other}))
	got, err := l.ProviderBatches.Answer(t.Context(), u.ID)
	if err != nil || got == nil || got.Status != 200 || string(got.Body) != `{"a":1}` || got.RequestID != "r" {
		t.Errorf("answer %+v, %v", got, err)
	}
	if due, _, err := l.Queues.Unchecked(t.Context(), CheckCursor{}, 10); err != nil || len(due) != 1 {
		t.Errorf("bells %v are looked for, %v", due, err)
	}
	_, err = l.ProviderBatches.Finish(t.Context(), l.process, b.ID, nil)
	l.must(err)
	gone := l.patient()
	next := l.packed(l.process)
	l.must(l.ProviderBatches.AddAnswers(t.Context(), next.ID, []ProviderAnswer{{UnitID: gone.ID, Status: 200, Body: []byte("{}")}}))
	_, err = l.Units.Cancel(t.Context(), gone.Tenant, gone.ID)
	l.must(err)
	_, err = l.Retention.PruneAnswers(t.Context(), 10)
	l.must(err)
	if n := get[int](l, `SELECT count(*) FROM provider_answers`); n != 2 {
		t.Errorf("%d answers are kept; want that of the unit which has not run, and that whose cost nobody has told", n)
	}
	c := l.take(u.ID, l.process)
	if c == nil || c.Lane != work.LaneBatch {
		t.Fatalf("claimed %v", c)
	}
	l.end(ending(c, work.Failed), Recorded)
	if u, err := l.Units.Retry(t.Context(), u.Tenant, u.ID, Changes{}); err != nil || u.State != work.Waiting {
		t.Errorf("after a retry it is %s, %v", u.State, err)
	}
	if got, err := l.ProviderBatches.Answer(t.Context(), u.ID); err != nil || got != nil {
		t.Errorf("the answer to the question before is still there: %v, %v", got, err)
	}
	if lane, err := l.ProviderBatches.LaneOf(t.Context(), u.ID); err != nil || lane.Batch != nil || lane.Ends != nil {
		t.Errorf("lane %+v, %v", lane, err)
	}
}

// What a dead worker process held is another's; it cannot change it any more.
func TestProviderBatchOfADeadProcess(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u := l.patient()
	dead := l.register(-time.Second)
	b := l.packed(dead)
	next, err := l.ProviderBatches.Claim(t.Context(), l.process, []string{"mock"})
	if err != nil || next == nil || next.ID != b.ID {
		t.Fatalf("held %v, %v", next, err)
	}
	if err := l.ProviderBatches.Sending(t.Context(), dead, b.ID, 1); !errors.Is(err, work.ErrConflict) {
		t.Errorf("the dead one sends it: %v", err)
	}
	if n, err := l.ProviderBatches.Finish(t.Context(), dead, b.ID, nil); n != 0 || err != nil {
		t.Errorf("the dead one ends it: %d, %v", n, err)
	}
	if n, err := l.ProviderBatches.Finish(t.Context(), l.process, b.ID, nil); n != 1 || err != nil {
		t.Errorf("%d units run live, %v", n, err)
	}
	if l.take(u.ID, l.process) == nil {
		t.Error("a unit that its batch did not answer cannot be claimed")
	}
}

// Where the provider keeps no key, one batch may be taken for another: who knows
// better corrects it.
func TestProviderBatchTakenForAnother(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	send := func() uuid.UUID {
		l.patient()
		b := l.packed(l.process)
		l.must(l.ProviderBatches.Sending(t.Context(), l.process, b.ID, 1))
		return b.ID
	}
	remotes := func(want ...string) {
		t.Helper()
		if got := get[string](l, `SELECT string_agg(coalesce(remote_id, 'none'), ' ' ORDER BY id) FROM provider_batches`); got != strings.Join(want, " ") {
			t.Errorf("they are at the provider as %s; want %s", got, want)
		}
	}
	hold := func(id uuid.UUID) { l.exec(`UPDATE provider_batches SET holder = $1 WHERE id = $2`, l.process, id) }
	trade := func(batch, owner uuid.UUID, want bool) {
		t.Helper()
		if traded, err := l.ProviderBatches.Swap(t.Context(), l.process, batch, owner); traded != want || err != nil {
			t.Errorf("traded %t, %v; want %t", traded, err, want)
		}
	}
	first := send()
	l.must(l.ProviderBatches.Sent(t.Context(), l.process, first, "x", time.Hour))
	second := send()
	l.must(l.ProviderBatches.Sent(t.Context(), l.process, second, "x", time.Hour))
	remotes("none", "x")
	if b, err := l.ProviderBatches.Claim(t.Context(), l.process, []string{"mock"}); err != nil || b == nil || b.ID != first ||
		b.SendingAt == nil || b.SentAt != nil {
		t.Errorf("%+v, %v is looked for; want %s", b, err, first)
	}
	l.must(l.ProviderBatches.Sent(t.Context(), l.process, first, "y", time.Hour))
	remotes("y", "x")
	trade(first, second, false) // nobody holds it
	hold(first)
	trade(first, uuid.Nil, false)
	trade(first, first, false)
	trade(first, second, true)
	remotes("x", "y")
	hold(second)
	_, err := l.ProviderBatches.Finish(t.Context(), l.process, second, nil)
	l.must(err)
	hold(first)
	trade(first, second, false)
	remotes("x", "y")
}

func TestLateUnitsRunLive(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	in := func(d time.Duration) func(*NewUnit) {
		end := time.Now().Add(d)
		return func(n *NewUnit) { n.Deadline = &end }
	}
	never, day, hour := l.patient(), l.patient(in(24*time.Hour)), l.patient(in(time.Hour))
	live := func(want ...uuid.UUID) {
		t.Helper()
		n, err := l.ProviderBatches.UnpackLate(t.Context())
		if err != nil || int(n) != len(want) {
			t.Errorf("%d units run live, %v; want %d", n, err, len(want))
		}
		for _, id := range want {
			if u := l.unit(id); u.State != work.Queued {
				t.Errorf("unit %s is %s", id, u.State)
			}
		}
	}
	age := func(by string) {
		l.exec(`UPDATE work_units SET created_at = created_at - $1::interval, deadline = deadline - $1::interval`, by)
	}
	live()
	age("29 minutes")
	live()
	age("2 minutes")
	live(hour.ID) // half of its time is over
	age("22 hours")
	live()
	age("31 minutes")
	live(day.ID) // an hour is left
	if u := l.unit(never.ID); u.State != work.Waiting {
		t.Errorf("the one without an end is %s", u.State)
	}
}

// A batch's window does not bound what waits for a provider, and its test runs
// live.
func TestBatchInTheLane(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	b := l.batch(work.BatchWindow+10, func(b *NewBatch) { b.TestFirst = 2 })
	l.exec(`UPDATE work_units SET lane = 'batch'`)
	test := l.advance(b)
	if len(test.Messages) != 2 {
		t.Fatalf("%d bells for a test of two", len(test.Messages))
	}
	for _, bell := range test.Messages {
		l.end(ending(l.take(bell.UnitID, l.process), work.Succeeded), Recorded)
	}
	for l.advance(b).More {
	}
	_, err := l.Batches.Approve(t.Context(), work.DefaultTenant, b, BatchChanges{})
	l.must(err)
	for a := l.advance(b); a.More; a = l.advance(b) {
		if len(a.Messages) > 0 {
			t.Fatalf("%d bells for units that wait", len(a.Messages))
		}
	}
	if n := get[int](l, `SELECT count(*) FROM work_units WHERE state = 'waiting'`); n != work.BatchWindow+8 {
		t.Errorf("%d units wait", n)
	}
	_, err = l.Batches.Pause(t.Context(), work.DefaultTenant, b, "me", "")
	l.must(err)
	if n := get[int](l, `SELECT count(*) FROM work_units WHERE state = 'queued' AND held`); n != work.BatchWindow+8 {
		t.Errorf("a pause took %d units back", n)
	}
}
