package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func (l *fixture) endpoint(events ...string) work.Endpoint {
	l.t.Helper()
	e, err := l.Endpoints.Add(l.t.Context(), work.Endpoint{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant,
		URL: "https://example.com/" + uuid.NewString(), Events: events}, "whsec_c2VjcmV0")
	l.must(err)
	return e
}

func (l *fixture) deliveries(f DeliveryFilter) []work.Delivery {
	l.t.Helper()
	f.Tenant = work.DefaultTenant
	list, _, err := l.Deliveries.List(l.t.Context(), f)
	l.must(err)
	return list
}

func (l *fixture) claimDelivery(receiver uuid.UUID) *ClaimedDelivery {
	l.t.Helper()
	d, err := l.Deliveries.Claim(l.t.Context(), receiver, l.process, time.Hour, "whsec_ZnJlc2g=")
	l.must(err)
	return d
}

func (l *fixture) tried(t Try) work.DeliveryState {
	l.t.Helper()
	state, err := l.Deliveries.Finish(l.t.Context(), t)
	l.must(err)
	return state
}

// Whichever way a unit ends, there is one message about it, made by the same
// transaction.
func TestEveryEndOfAUnitIsAnnounced(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	e := l.endpoint("work_unit.*")
	callback := "https://Example.com:8443/done?token=1"
	called := func(n *NewUnit) { n.CallbackURL = &callback }
	finish := func(next work.State, status work.RunStatus, failure *work.Failure) uuid.UUID {
		u := l.put(called)
		c := l.take(u.ID, l.process)
		_, err := l.Runs.Finish(ctx, Finish{UnitID: u.ID, RunID: c.RunID, Attempt: c.RunCount, Status: status, Next: next, Error: failure})
		l.must(err)
		return u.ID
	}
	ends := map[uuid.UUID]string{
		finish(work.Succeeded, work.RunSucceeded, nil):                                                     "succeeded",
		finish(work.Failed, work.RunFailed, work.Fail(work.ClassRefusal, strings.Repeat("no \x01", 1000))): "failed",
		finish(work.TimedOut, work.RunTimedOut, work.Fail(work.ClassTimeout, "slow")):                      "timed_out",
	}
	queued := l.put(called)
	_, err := l.Units.Cancel(ctx, work.DefaultTenant, queued.ID)
	l.must(err)
	ends[queued.ID] = "cancelled"
	for range 3 {
		u := l.put(called)
		ends[u.ID] = "cancelled"
	}
	_, _, err = l.Units.CancelAll(ctx, UnitFilter{Tenant: work.DefaultTenant, States: []work.State{work.Queued}})
	l.must(err)
	soon := time.Now().Add(20 * time.Millisecond)
	late := l.put(called, func(n *NewUnit) { n.Deadline = &soon })
	ends[late.ID] = "timed_out"
	time.Sleep(time.Until(soon))
	_, err = l.Units.ExpireDeadlines(ctx)
	l.must(err)
	lost := l.put(called)
	l.take(lost.ID, l.register(-time.Second))
	l.exec(`UPDATE work_units SET deaths = 2 WHERE id = $1`, lost.ID)
	_, err = l.Runs.ExpireLeases(ctx)
	l.must(err)
	ends[lost.ID] = "failed"
	reused := newUnit(called).ID // as a cache would: it is final from the start
	l.exec(`INSERT INTO work_units SELECT (jsonb_populate_record(u, jsonb_build_object('id', $1::uuid))).* FROM work_units u WHERE state = 'succeeded' LIMIT 1`, reused)
	ends[reused] = "succeeded"

	for id, end := range ends {
		got := l.deliveries(DeliveryFilter{Unit: id})
		if len(got) != 2 {
			t.Errorf("%s: %d deliveries, want one to the endpoint and one to the callback: %+v", end, len(got), got)
			continue
		}
		for _, d := range got {
			whole, err := l.Deliveries.Get(ctx, work.DefaultTenant, d.ID)
			l.must(err)
			var body struct {
				Type      string
				Timestamp time.Time
				Data      struct {
					ID     uuid.UUID
					Status string
					URL    string
					Error  *work.Failure
				}
			}
			l.must(json.Unmarshal([]byte(*whole.Body), &body))
			if d.EventType != "work_unit."+end || body.Type != d.EventType || body.Data.Status != end || body.Data.ID != id ||
				d.State != work.DeliveryPending ||
				body.Data.URL != "/work-units/"+id.String() || time.Since(body.Timestamp) > time.Hour || len(*whole.Body) > 20_000 {
				t.Errorf("%s: %s: %s", end, d.EventType, *whole.Body)
			}
			if failed := end == "failed" || end == "timed_out"; failed != (body.Data.Error != nil) {
				t.Errorf("%s: error %v", end, body.Data.Error)
			}
			if want := work.WebhookID(d.ID); d.WebhookID != want || d.ID.Version() != 7 || strings.ContainsAny(want, ".-") {
				t.Errorf("id %s, webhook-id %s", d.ID, d.WebhookID)
			}
			if d.EndpointID == nil && d.URL != callback || d.EndpointID != nil && (*d.EndpointID != e.ID || d.URL != e.URL) {
				t.Errorf("to %v %s", d.EndpointID, d.URL)
			}
		}
	}
	// A unit that runs again and ends again is told of again.
	_, err = l.Units.Retry(ctx, work.DefaultTenant, queued.ID, Changes{})
	l.must(err)
	_, err = l.Units.Cancel(ctx, work.DefaultTenant, queued.ID)
	l.must(err)
	if n := len(l.deliveries(DeliveryFilter{Unit: queued.ID})); n != 4 {
		t.Errorf("%d deliveries after a retry, want 4", n)
	}
}

func TestBatchesAreAnnounced(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	e := l.endpoint("batch.*")
	callback := "https://example.com/batch"
	id := l.batch(3, func(b *NewBatch) { b.TestFirst = 1 })
	l.exec(`UPDATE batches SET callback_url = $1`, callback)
	l.works(l.advance(id).Messages, nil, 0)
	l.advance(id)
	l.is(id, work.BatchAwaitingApproval)
	_, err := l.Batches.Approve(t.Context(), work.DefaultTenant, id, BatchChanges{})
	l.must(err)
	l.works(l.advance(id).Messages, func(i int) bool { return i == 0 }, 0)
	l.advance(id)
	l.is(id, work.BatchCompletedWithFailures)
	got := map[string]int{}
	for _, d := range l.deliveries(DeliveryFilter{Batch: id}) {
		got[d.EventType]++
		if d.EndpointID == nil && d.URL != callback || d.EndpointID != nil && *d.EndpointID != e.ID || *d.BatchID != id || d.UnitID != nil {
			t.Errorf("%+v", d)
		}
		whole, err := l.Deliveries.Get(t.Context(), work.DefaultTenant, d.ID)
		l.must(err)
		if !strings.Contains(*whole.Body, `"url": "/batches/`+id.String()) {
			t.Error(*whole.Body)
		}
	}
	if got["batch.awaiting_approval"] != 2 || got["batch.completed_with_failures"] != 2 || len(got) != 2 {
		t.Errorf("announced %v", got)
	}
}

func TestEndpointsGetWhatTheyAskFor(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	all, failed, batches, off := l.endpoint("*"), l.endpoint("work_unit.failed", "work_unit.timed_out"), l.endpoint("batch.*"), l.endpoint("*")
	_, err := l.Endpoints.Put(t.Context(), off, true)
	l.must(err)
	l.exec(`SELECT announce('default', 'work_unit.failed', '{"n":1}', $1, NULL, NULL)`, uuid.New())
	l.exec(`SELECT announce('default', 'batch.completed', '{"n":2}', NULL, $1, 'http://example.com/x')`, uuid.New())
	l.exec(`SELECT announce('another', 'batch.completed', '{"n":3}', NULL, NULL, NULL)`)
	for _, test := range []struct {
		endpoint work.Endpoint
		want     []string
	}{{all, []string{"batch.completed", "work_unit.failed"}}, {failed, []string{"work_unit.failed"}}, {batches, []string{"batch.completed"}}, {off, nil}} {
		var got []string
		for _, d := range l.deliveries(DeliveryFilter{Endpoint: test.endpoint.ID}) {
			got = append(got, d.EventType)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%v got %v, want %v", test.endpoint.Events, got, test.want)
		}
	}
	if n := len(l.deliveries(DeliveryFilter{})); n != 5 {
		t.Errorf("%d deliveries, want 5 with the callback", n)
	}
	if test, err := l.Deliveries.AddTest(t.Context(), work.DefaultTenant, batches.ID); err != nil || test.EventType != work.EventTest ||
		*test.EndpointID != batches.ID {
		t.Errorf("%+v, error %v", test, err)
	}
	if _, err := l.Deliveries.AddTest(t.Context(), work.DefaultTenant, off.ID); !errors.Is(err, work.ErrConflict) {
		t.Errorf("error %v", err)
	}
}

// The fence: of two that try the same, the number of the attempt decides.
func TestATryIsNotedByItsNumber(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	e := l.endpoint("*")
	l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL)`)
	first := l.claimDelivery(e.ID)
	if first == nil || first.Attempts != 1 || first.Secrets.Secret == "" || len(first.Body) == 0 {
		t.Fatalf("%+v", first)
	}
	if again := l.claimDelivery(e.ID); again != nil {
		t.Errorf("claimed twice: %+v", again)
	}
	l.exec(`UPDATE webhook_deliveries SET lease_until = clock_timestamp() - interval '1 second'`)
	if n, err := l.Deliveries.ExpireLeases(ctx); n != 1 || err != nil {
		t.Errorf("%d expired, error %v", n, err)
	}
	second := l.claimDelivery(e.ID)
	if second.Attempts != 2 || second.Failed != 0 || second.WebhookID != first.WebhookID || string(second.Body) != string(first.Body) {
		t.Errorf("%+v", second)
	}
	if _, err := l.Deliveries.Finish(ctx, Try{ID: first.ID, Attempt: 1, Status: 500, Error: "late"}); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("the first was noted: %v", err)
	}
	if state := l.tried(Try{ID: second.ID, Attempt: 2, Status: 503, Error: "busy", Response: "later\x00",
		Wait: time.Hour}); state != work.DeliveryPending {
		t.Errorf("state %s", state)
	}
	if d := l.deliveries(DeliveryFilter{})[0]; *d.LastStatus != 503 || *d.LastError != "busy" || *d.Response != "later" ||
		time.Until(*d.NextAt) < 50*time.Minute || l.claimDelivery(e.ID) != nil {
		t.Errorf("%+v", d)
	}
	if _, err := l.Deliveries.Redeliver(ctx, work.DefaultTenant, second.ID); err != nil {
		t.Error(err)
	}
	third := l.claimDelivery(e.ID)
	if state := l.tried(Try{ID: third.ID, Attempt: 3, Status: 204, Delivered: true}); state != work.DeliveryDelivered {
		t.Errorf("state %s", state)
	}
	if d := l.deliveries(DeliveryFilter{States: []work.DeliveryState{work.DeliveryDelivered}}); len(d) != 1 || d[0].DeliveredAt == nil ||
		d[0].NextAt != nil {
		t.Errorf("%+v", d)
	}
	// A worker process that has died gives up what it was at.
	l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL)`)
	dead := l.register(-time.Second)
	if d, err := l.Deliveries.Claim(ctx, e.ID, dead, time.Hour, ""); d == nil || err != nil {
		t.Fatal(err)
	}
	if n, err := l.Deliveries.ExpireLeases(ctx); n != 1 || err != nil {
		t.Errorf("%d expired, error %v", n, err)
	}
}

func TestAnEndpointThatIsGoneGetsNothingMore(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	gone, deleted := l.endpoint("*"), l.endpoint("*")
	for range 3 {
		l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL)`)
	}
	taken := l.claimDelivery(gone.ID)
	if disabled, err := l.Endpoints.DisableGone(ctx, gone.ID, "https://example.com/before"); disabled || err != nil {
		t.Errorf("disabled by an address that it has no more: %v", err)
	}
	if disabled, err := l.Endpoints.DisableGone(ctx, gone.ID, gone.URL); !disabled || err != nil {
		t.Errorf("not disabled: %v", err)
	}
	l.must(l.Endpoints.Delete(ctx, work.DefaultTenant, deleted.ID))
	if err := l.Endpoints.Delete(ctx, work.DefaultTenant, deleted.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	for _, e := range []work.Endpoint{gone, deleted} {
		for _, d := range l.deliveries(DeliveryFilter{Endpoint: e.ID}) {
			if d.State != work.DeliveryCancelled {
				t.Errorf("%s is %s", d.ID, d.State)
			}
			if _, err := l.Deliveries.Redeliver(ctx, work.DefaultTenant, d.ID); d.ID != taken.ID && !errors.Is(err, work.ErrConflict) {
				t.Errorf("redelivered: %v", err)
			}
		}
	}
	// One that was on its way arrived all the same.
	if state := l.tried(Try{ID: taken.ID, Attempt: 1, Status: 200, Delivered: true}); state != work.DeliveryDelivered {
		t.Errorf("state %s", state)
	}
	// One that was written while the endpoint was being disabled is found out at its claim.
	l.exec(`UPDATE webhook_deliveries SET state = 'pending' WHERE endpoint_id = $1 AND state = 'cancelled'`, gone.ID)
	if d := l.claimDelivery(gone.ID); d != nil {
		t.Errorf("claimed %+v", d)
	}
	if _, err := l.Endpoints.Put(ctx, gone, false); err != nil {
		t.Error(err)
	}
	if n, err := l.Deliveries.RedeliverAll(ctx, DeliveryFilter{Tenant: work.DefaultTenant, Endpoint: gone.ID,
		States: []work.DeliveryState{work.DeliveryCancelled}}); n != 2 || err != nil {
		t.Errorf("%d redelivered, error %v", n, err)
	}
	if l.claimDelivery(gone.ID) == nil {
		t.Error("nothing to claim after it was enabled again")
	}
}

// A receiver with a long backlog leaves the messages of others room, and a message
// that was rung is not rung again at once.
func TestBellsOfDeliveriesAreFair(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	busy, quiet := l.endpoint("work_unit.*"), l.endpoint("batch.*")
	for range 50 {
		l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL)`)
	}
	l.exec(`SELECT announce('default', 'batch.failed', '{}', NULL, NULL, NULL)`)
	count := func() map[uuid.UUID]int {
		bells, err := l.Deliveries.Redispatch(ctx, 4)
		l.must(err)
		counts := map[uuid.UUID]int{}
		for _, b := range bells {
			counts[b.Receiver]++
		}
		return counts
	}
	if c := count(); c[busy.ID] != 4 || c[quiet.ID] != 1 {
		t.Errorf("bells %v", c)
	}
	if c := count(); c[busy.ID] != 4 || c[quiet.ID] != 0 {
		t.Errorf("bells %v", c)
	}
	l.must(l.Deliveries.RecheckAll(ctx))
	if c := count(); c[quiet.ID] != 1 {
		t.Errorf("bells %v", c)
	}
	due, err := l.Deliveries.DueReceivers(ctx, 10)
	if l.must(err); len(due) != 2 {
		t.Errorf("receivers %v", due)
	}
	l.must(l.Deliveries.Defer(ctx, busy.ID, time.Minute))
	if due, err = l.Deliveries.DueReceivers(ctx, 10); err != nil || len(due) != 1 || due[0] != quiet.ID {
		t.Errorf("receivers %v, error %v", due, err)
	}
	if l.claimDelivery(busy.ID) != nil || l.claimDelivery(quiet.ID) == nil {
		t.Error("what was put off is claimed, or the other is not")
	}
}

func TestSecretsOverlap(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	e := l.endpoint("*")
	rotated, err := l.Endpoints.Rotate(ctx, work.DefaultTenant, e.ID, "whsec_bmV3", time.Hour)
	if err != nil || rotated.Secret != "whsec_bmV3" || *rotated.Previous != "whsec_c2VjcmV0" || rotated.PreviousUntil == nil {
		t.Errorf("%+v, error %v", rotated, err)
	}
	l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL)`)
	if d := l.claimDelivery(e.ID); !slices.Equal(d.Secrets.All(), []string{"whsec_bmV3", "whsec_c2VjcmV0"}) {
		t.Errorf("signed by %v", d.Secrets.All())
	}
	if rotated, err = l.Endpoints.Rotate(ctx, work.DefaultTenant, e.ID, "whsec_bmV3ZXI=", 0); err != nil || rotated.Previous != nil {
		t.Errorf("%+v, error %v", rotated, err)
	}
	var made [10]work.Secrets
	var all sync.WaitGroup
	for i := range made {
		all.Go(func() {
			var err error
			if made[i], err = l.Endpoints.CallbackSecrets(ctx, work.DefaultTenant, "whsec_"+strings.Repeat("x", i+1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	again, err := l.Endpoints.CallbackSecrets(ctx, work.DefaultTenant, "whsec_never")
	l.must(err)
	for _, s := range made {
		if s.Secret != again.Secret {
			t.Errorf("%s and %s sign callbacks", s.Secret, again.Secret)
		}
	}
	if s, err := l.Endpoints.RotateCallbacks(ctx, work.DefaultTenant, "whsec_next", time.Hour); err != nil || *s.Previous != again.Secret {
		t.Errorf("%+v, error %v", s, err)
	}
}

func TestOldDeliveriesArePruned(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.endpoint("*")
	for range 3 {
		l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL)`)
	}
	l.exec(`UPDATE webhook_deliveries SET state = 'dead' WHERE id IN (SELECT id FROM webhook_deliveries ORDER BY id LIMIT 2)`)
	if n, err := l.Retention.PruneDeliveries(t.Context(), time.Now().Add(-time.Hour), 10); n > 0 || err != nil ||
		len(l.deliveries(DeliveryFilter{})) != 3 {
		t.Errorf("pruned what is young: %d, error %v", n, err)
	}
	if n, err := l.Retention.PruneDeliveries(t.Context(), time.Now().Add(time.Hour), 10); n != 2 || err != nil {
		t.Errorf("pruned %d, error %v", n, err)
	}
	if left := l.deliveries(DeliveryFilter{}); len(left) != 1 || left[0].State != work.DeliveryPending {
		t.Errorf("left %+v", left)
	}
}

// However long the backlog is, one statement doubts a bounded piece of it, and
// passes over what others hold.
func TestDoubtOfDeliveriesIsTakenPieceByPiece(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.endpoint("work_unit.*")
	l.exec(`SELECT announce('default', 'work_unit.failed', '{}', NULL, NULL, NULL) FROM generate_series(1, 2 * $1 + 500)`, maxRows)
	l.exec(`UPDATE webhook_deliveries SET check_at = next_at + interval '1 hour'`)
	l.exec(`CREATE FUNCTION piece() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
		IF (SELECT count(*) > 1000 FROM changed) THEN RAISE EXCEPTION ''too many rows in one statement''; END IF; RETURN NULL; END'`)
	l.exec(`CREATE TRIGGER piece AFTER UPDATE ON webhook_deliveries REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION piece()`)
	tx, err := l.db.BeginTxx(t.Context(), nil)
	l.must(err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), `SELECT FROM webhook_deliveries ORDER BY id LIMIT 3 FOR UPDATE`)
	l.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l.must(l.Deliveries.RecheckAll(ctx))
	var left int
	l.must(l.db.GetContext(ctx, &left, `SELECT count(*) FROM webhook_deliveries WHERE check_at > clock_timestamp()`))
	if left != 3 {
		t.Errorf("%d are not doubted, want the 3 that another holds", left)
	}
}
