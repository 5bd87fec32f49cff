package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

func keyed(key, body string) func(*NewUnit) {
	return func(n *NewUnit) { n.IdempotencyKey, n.BodyHash = key, []byte(body) }
}

func TestAcceptKeepsEverything(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	money, retries := 1.5, 0
	due, deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond),
		time.Now().Add(2*time.Hour).UTC().Truncate(time.Microsecond)
	n := newUnit(func(n *NewUnit) {
		n.Title = `<b>&"title"\u0000` // the backslash is one, not an escape
		n.Spec = work.Spec{Backend: "claude", Worker: "w", Model: "m", Prompt: "{doc} <&>", SystemPrompt: "be brief",
			Payload: json.RawMessage(`{"b":1.10,"a":"<p>&amp;</p>","a":12345678901234567890}`), WorkingDirectory: "/tmp",
			OutputSchema: json.RawMessage(`{"type":"object"}`), MaxTurns: 3, MaxCostUSD: &money, Timeout: 1.5, IdleTimeout: 2, StartupTimeout: 3,
			MissingKey: "note", SessionPolicy: work.Fresh, OnDenied: work.OnDeniedNote, MaxRetries: &retries, Queue: "q", Priority: 9,
			Labels:    json.RawMessage(`{"a": "b"}`),
			NotBefore: &due, Deadline: &deadline, ExpiresAt: &deadline}
	})
	accepted, replayed, err := l.Units.Accept(t.Context(), n)
	l.must(err)
	got := l.unit(n.ID)
	for name, u := range map[string]work.Unit{"answer": accepted, "row": got} {
		spec, want := u.Spec, n.Spec
		if !spec.NotBefore.Equal(due) || !spec.Deadline.Equal(deadline) || !spec.ExpiresAt.Equal(deadline) {
			t.Errorf("%s: not before %v, deadline %v, expires at %v", name, spec.NotBefore, spec.Deadline, spec.ExpiresAt)
		}
		spec.NotBefore, spec.Deadline, spec.ExpiresAt, want.NotBefore, want.Deadline, want.ExpiresAt = nil, nil, nil, nil, nil, nil
		a, _ := json.Marshal(spec)
		b, _ := json.Marshal(want)
		if string(a) != string(b) || string(spec.Payload) != string(n.Payload) || u.Title != n.Title || replayed {
			t.Errorf("%s: %q %s\nwant %s", name, u.Title, a, b)
		}
	}
	if got.State != work.Queued || got.Dispatch != 1 || got.CreatedAt.IsZero() {
		t.Errorf("state %s, dispatch %d, created %v", got.State, got.Dispatch, got.CreatedAt)
	}
}

// Callers that arrive while a statement is under way share the next one.
func TestAcceptInFewStatements(t *testing.T) {
	t.Parallel()
	const callers = 200
	url := testkit.DB(t, migrate)
	l, spy := newTap(t, url)
	other := openFixture(t, url)
	tx, err := other.db.BeginTxx(t.Context(), nil)
	l.must(err)
	_, err = tx.ExecContext(t.Context(), `LOCK TABLE work_units IN ACCESS EXCLUSIVE MODE`)
	l.must(err)
	var all sync.WaitGroup
	call := func() {
		if _, _, err := l.Units.Accept(t.Context(), newUnit()); err != nil {
			t.Error(err)
		}
	}
	all.Go(call)
	testkit.Eventually(t, "a statement is under way", func() bool { return other.waiting() == 1 })
	for range callers - 1 {
		all.Go(call)
	}
	testkit.Eventually(t, "all others wait", func() bool {
		return l.Units.accept.Waiting() == callers-1
	})
	l.must(tx.Rollback())
	all.Wait()
	if n := len(spy.hear()); n != 2 {
		t.Errorf("%d statements for %d callers", n, callers)
	}
	if n := get[int](l, `SELECT count(*) FROM work_units`); n != callers {
		t.Errorf("%d units", n)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	processes := []*fixture{l, openFixture(t, l.url)}
	var mu sync.Mutex
	var all sync.WaitGroup
	ids, fresh := map[uuid.UUID]int{}, 0
	for i := range 100 {
		all.Go(func() {
			u, replayed, err := processes[i%2].Units.Accept(t.Context(), newUnit(keyed("key", "body")))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			ids[u.ID]++
			if !replayed {
				fresh++
			}
		})
	}
	all.Wait()
	if len(ids) != 1 || fresh != 1 || get[int](l, `SELECT count(*) FROM work_units`) != 1 {
		t.Errorf("units %v, %d of them new", ids, fresh)
	}
	if _, _, err := l.Units.Accept(t.Context(), newUnit(keyed("key", "another body"))); !errors.Is(err, ErrKeyReused) {
		t.Errorf("another body: %v", err)
	}
	if _, replayed, err := l.Units.Accept(t.Context(), newUnit(keyed("key", "body"),
		func(n *NewUnit) { n.Tenant = "other" })); err != nil || replayed {
		t.Errorf("another tenant's key: replayed %t, error %v", replayed, err)
	}
	for _, replay := range []bool{false, true} { // what Postgres text cannot hold is the same key both times
		if _, replayed, err := l.Units.Accept(t.Context(), newUnit(keyed("k\xffe\x00y", "body"))); err != nil || replayed != replay {
			t.Errorf("odd key: replayed %t, error %v", replayed, err)
		}
	}
}

// Processes that insert the same keys meet them in one order, or each would
// wait for the other.
func TestAcceptOrdersKeys(t *testing.T) {
	t.Parallel()
	l, spy := newTap(t, testkit.DB(t, migrate))
	var rows []NewUnit
	for i := range 100 {
		rows = append(rows, newUnit(keyed(fmt.Sprint(i/2), "body"), func(n *NewUnit) { n.Tenant = fmt.Sprint(i % 2) }))
	}
	var orders []string
	for range 2 {
		if _, err := l.Units.acceptAll(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		var sent []unitIn
		l.must(json.Unmarshal([]byte(spy.hear()[0].args[0].(string)), &sent))
		var order []string
		for _, u := range sent {
			order = append(order, u.Tenant+"/"+*u.IdempotencyKey)
		}
		orders = append(orders, fmt.Sprint(order))
		slices.Reverse(rows)
	}
	if orders[0] != orders[1] {
		t.Errorf("one order is %s\nthe other    %s", orders[0], orders[1])
	}
}

// One statement carries rows of many callers; what is wrong with one is
// nobody else's trouble.
func TestAcceptBadRowFailsAlone(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.put(keyed("used", "body"))
	bad := map[string]NewUnit{
		"NUL":        newUnit(func(n *NewUnit) { n.Prompt = "a\x00b" }),
		"no JSON":    newUnit(func(n *NewUnit) { n.Payload = json.RawMessage(`{`) }),
		"constraint": newUnit(func(n *NewUnit) { n.Priority = 12 }),
		"range":      newUnit(func(n *NewUnit) { n.MaxTurns = 1 << 40 }),
		"key":        newUnit(keyed("used", "other")),
	}
	var all sync.WaitGroup
	for name, n := range bad {
		all.Go(func() {
			if _, _, err := l.Units.Accept(t.Context(), n); err == nil {
				t.Errorf("%s was accepted", name)
			}
		})
	}
	for range 50 {
		all.Go(func() {
			if _, _, err := l.Units.Accept(t.Context(), newUnit()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := get[int](l, `SELECT count(*) FROM work_units`); n != 51 {
		t.Errorf("%d units, want 51", n)
	}
}

// The driver repeats a statement when the connection breaks, also one that was
// committed: then the unit is there already and is the caller's own.
func TestAcceptRepeatedByTheDriver(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	n := newUnit()
	for range 2 {
		u, replayed, err := l.Units.Accept(t.Context(), n)
		if err != nil || replayed || u.ID != n.ID {
			t.Errorf("unit %s, replayed %t, error %v", u.ID, replayed, err)
		}
	}
}

func TestAcceptDelay(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u := l.put(func(n *NewUnit) { n.Delay = 3600 })
	if u.NotBefore == nil || time.Until(*u.NotBefore) < 50*time.Minute {
		t.Errorf("not before %v", u.NotBefore)
	}
	if !get[bool](l, `SELECT check_at = not_before FROM work_units`) {
		t.Error("its bell is looked for before it is due")
	}
	if l.take(u.ID, l.process) != nil {
		t.Error("claimed before it was due")
	}
}

func TestAcceptLargeUnits(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	big := strings.Repeat("é", 4<<20)
	var all sync.WaitGroup
	for range 9 { // more than go into one statement
		all.Go(func() {
			u, _, err := l.Units.Accept(t.Context(), newUnit(func(n *NewUnit) { n.Prompt = big }))
			if err != nil || u.Prompt != big {
				t.Errorf("prompt of %d bytes, error %v", len(u.Prompt), err)
			}
		})
	}
	all.Wait()
}

func TestCancel(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	queued := l.put()
	for range 2 { // the second finds it done
		u, err := l.Units.Cancel(t.Context(), work.DefaultTenant, queued.ID)
		if err != nil || u.State != work.Cancelled || u.FinishedAt == nil {
			t.Fatalf("queued unit is %s, error %v", u.State, err)
		}
	}
	c := l.run()
	u, err := l.Units.Cancel(t.Context(), work.DefaultTenant, c.ID)
	if err != nil || u.State != work.Running || u.CancelRequestedAt == nil {
		t.Errorf("running unit is %s, asked at %v, error %v", u.State, u.CancelRequestedAt, err)
	}
	again, err := l.Units.Cancel(t.Context(), work.DefaultTenant, c.ID)
	if err != nil || !again.CancelRequestedAt.Equal(*u.CancelRequestedAt) {
		t.Errorf("asked again: %v, error %v", again.CancelRequestedAt, err)
	}
	l.end(ending(c, work.Succeeded), Recorded) // it was faster
	if _, err := l.Units.Cancel(t.Context(), work.DefaultTenant, c.ID); !errors.Is(err, work.ErrConflict) {
		t.Errorf("succeeded unit: %v", err)
	}
	for tenant, id := range map[string]uuid.UUID{"other": c.ID, work.DefaultTenant: uuid.New()} {
		if _, err := l.Units.Cancel(t.Context(), tenant, id); !errors.Is(err, work.ErrNotFound) {
			t.Errorf("unit %s of %s: %v", id, tenant, err)
		}
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.end(ending(c, work.Failed, func(f *Finish) { f.Crashes, f.Waits, f.Losses = 2, 1, 1; f.SessionID, f.Resumable = "s", true }), Recorded)
	u, err := l.Units.Retry(t.Context(), work.DefaultTenant, c.ID, Changes{})
	l.must(err)
	if u.State != work.Queued || u.Failures+u.Losses+u.Waits+u.Crashes != 0 || u.Error != nil || u.FinishedAt != nil || u.Dispatch != 2 ||
		u.RunCount != 1 {
		t.Errorf("after a retry: %+v", u)
	}
	if got := get[string](l, `SELECT resume_session FROM work_units WHERE id = $1`, c.ID); got != "s" {
		t.Errorf("resumes session %q", got)
	}
	if _, err := l.Units.Retry(t.Context(), work.DefaultTenant, c.ID, Changes{}); !errors.Is(err, work.ErrConflict) {
		t.Errorf("retry of a queued unit: %v", err)
	}
	second := l.take(c.ID, l.process)
	if second.RunCount != 2 || second.ResumeSession != "s" {
		t.Errorf("attempt %d resumes %q", second.RunCount, second.ResumeSession)
	}
	l.end(ending(second, work.Failed), Recorded)
	model, prompt, turns := "m", "p", 7
	if u, err = l.Units.Retry(t.Context(), work.DefaultTenant, c.ID,
		Changes{Model: &model, Prompt: &prompt, MaxTurns: &turns}); err != nil ||
		u.Model != "m" || u.Prompt != "p" || u.MaxTurns != 7 {
		t.Errorf("changed to %q %q %d, error %v", u.Model, u.Prompt, u.MaxTurns, err)
	}
	if third := l.take(c.ID, l.process); third.ResumeSession != "" {
		t.Errorf("another prompt goes on with session %q", third.ResumeSession)
	}
	if _, err := l.Units.Retry(t.Context(), work.DefaultTenant, uuid.New(), Changes{}); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("retry of nothing: %v", err)
	}
}

func TestUnitOfAnotherTenant(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u := l.put()
	if _, err := l.Units.Get(t.Context(), "other", u.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

// A unit's place counts those that are due and go before it.
func TestPlace(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	soon := time.Now().Add(time.Hour)
	l.put()
	l.put(func(n *NewUnit) { n.Priority = 9 })
	l.put(func(n *NewUnit) { n.NotBefore = &soon })
	l.put(func(n *NewUnit) { n.Backend = "claude" })
	l.put(func(n *NewUnit) { n.Queue = "other" })
	l.run()
	u := l.put()
	l.put()
	l.put(func(n *NewUnit) { n.Priority = 1 })
	late := l.put(func(n *NewUnit) { n.NotBefore = &soon })
	for _, test := range []struct {
		of   work.Unit
		want Place
	}{{u, Place{Ahead: 2}}, {late, Place{Ahead: 4, Scheduled: true}}} {
		if got, err := l.Queues.Place(t.Context(), test.of); err != nil || got != test.want {
			t.Errorf("place %+v, want %+v, error %v", got, test.want, err)
		}
	}
}
