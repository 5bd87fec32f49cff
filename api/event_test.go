package api

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

// told is one event as a browser sees it.
type told struct{ id, event, data string }

// short says what an event is about.
func (e told) short() string {
	var d struct {
		Status  string
		Attempt int
		Number  int
		Rev     int
		Items   []struct{ Title, Status string }
	}
	_ = json.Unmarshal([]byte(e.data), &d)
	switch e.event {
	case "step":
		return fmt.Sprintf("step %d.%d@%d", d.Attempt, d.Number, d.Rev)
	case "run":
		return fmt.Sprintf("run %d %s", d.Attempt, d.Status)
	case "units":
		var items []string
		for _, u := range d.Items {
			items = append(items, u.Title+"="+u.Status)
		}
		return "units " + strings.Join(items, " ")
	case "unit", "end":
		return e.event + " " + d.Status
	}
	return e.event
}

// listener is an open stream.
type listener struct {
	t      *testing.T
	events chan told
	close  context.CancelFunc
}

// listen opens a stream; headers come as name, value, name, value.
func (f *front) listen(path string, headers ...string) *listener {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", f.url+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		f.t.Fatal(err)
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || kind != "text/event-stream" {
		f.t.Fatalf("status %d, %s", resp.StatusCode, kind)
	}
	l := &listener{t: f.t, events: make(chan told, 10_000), close: cancel}
	f.t.Cleanup(cancel)
	go func() {
		defer close(l.events)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 16<<20)
		var e told
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.event = value
			case "data":
				e.data = value
			case "":
				if e.event != "" {
					l.events <- e
				}
				e = told{}
			}
		}
	}()
	return l
}

func (l *listener) next() told {
	l.t.Helper()
	select {
	case e, ok := <-l.events:
		if !ok {
			l.t.Fatal("the stream has ended")
		}
		return e
	case <-time.After(testkit.Patience):
		l.t.Fatal("no event")
	}
	return told{}
}

// until returns the events up to the one of that short form.
func (l *listener) until(last string) (events []told) {
	l.t.Helper()
	for {
		e := l.next()
		events = append(events, e)
		if e.short() == last {
			return events
		}
		if len(events) > 1000 {
			l.t.Fatalf("no %q in %q", last, shorts(events))
		}
	}
}

// ended returns when the stream is over.
func (l *listener) ended() {
	l.t.Helper()
	timeout := time.After(testkit.Patience)
	for {
		select {
		case _, ok := <-l.events:
			if !ok {
				return
			}
		case <-timeout:
			l.t.Fatal("the stream goes on")
		}
	}
}

func shorts(events []told) (all []string) {
	for _, e := range events {
		all = append(all, e.short())
	}
	return all
}

func (l *listener) hears(want ...string) []told {
	l.t.Helper()
	events := l.until(want[len(want)-1])
	if got := shorts(events); !slices.Equal(got, want) {
		l.t.Fatalf("heard %q\nwant  %q", got, want)
	}
	return events
}

// story is a run told through a writer, as a worker process does.
type story struct {
	f       *front
	c       *store.Claimed
	w       *transcript.Writer
	written int
}

func (f *front) story(unit uuid.UUID) *story {
	f.t.Helper()
	return &story{f: f, c: f.claim(unit), w: transcript.NewWriter(nil, nil)}
}

func (s *story) say(text string) {
	s.w.Add(transcript.Step{Type: transcript.SystemText, Text: text})
}

// write brings what is new to the ledger.
func (s *story) write() {
	s.f.t.Helper()
	steps := s.w.After(s.written, 1<<30)
	if err := s.f.Store.Transcripts.Append(s.f.t.Context(), store.Progress{RunID: s.c.RunID, Steps: steps, LiveStatus: "at work"}); err != nil {
		s.f.t.Fatal(err)
	}
	s.written = s.w.Rev()
	s.f.live.Notify(s.c.ID)
}

func (s *story) end(status work.RunStatus, next work.State) {
	s.f.t.Helper()
	s.w.Close()
	steps := s.w.Steps()
	blob, err := s.f.Store.Transcripts.Encode(steps)
	if err != nil {
		s.f.t.Fatal(err)
	}
	finish := store.Finish{UnitID: s.c.ID, RunID: s.c.RunID, Attempt: s.c.RunCount, Status: status, Next: next,
		Result: "done", Steps: len(steps), Rev: s.w.Rev(), Blob: blob}
	if status != work.RunSucceeded {
		finish.Error = work.Fail(work.ClassInfra, "broken")
	}
	if v, err := s.f.Store.Runs.Finish(s.f.t.Context(), finish); err != nil || v != store.Recorded {
		s.f.t.Fatalf("finish: %s, %v", v, err)
	}
	s.f.live.Notify(s.c.ID)
}

func (f *front) metric(name string) float64 {
	f.t.Helper()
	families, err := f.Registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	f.t.Fatalf("there is no metric %s", name)
	return 0
}

func (f *front) eventsOf(unit uuid.UUID) string { return "/work-units/" + unit.String() + "/events" }

// watched is a front door that looks for changes only when it is told to.
func watched(t *testing.T) *front {
	f := newFront(t)
	f.watchFor(time.Hour)
	return f
}

func (f *front) watchFor(every time.Duration) {
	f.lookAgain = every
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	enumerated := make(chan struct{})
	go func() { defer close(enumerated); jobs.NewEnumerator(f.Submitter).Run(ctx) }() // as worker processes do
	go func() { defer close(done); f.Watch(ctx); <-enumerated }()
	f.t.Cleanup(func() { f.EndStreams(); cancel(); <-done })
}

func TestStreamTellsAUnitFromItsAcceptanceToItsEnd(t *testing.T) {
	t.Parallel()
	f := watched(t)
	unit := f.submit(mock(""))
	l := f.listen(f.eventsOf(unit))
	l.hears("unit queued")
	s := f.story(unit)
	f.live.Notify(unit)
	l.hears("run 1 running", "unit running")
	s.say("one")
	s.say("two")
	s.write()
	l.hears("step 1.1@1", "step 1.2@2", "run 1 running")
	s.w.Rewrite(1, "one, and more")
	s.say("three")
	s.write()
	grown := l.hears("step 1.1@3", "step 1.3@4", "run 1 running")
	if !strings.Contains(grown[0].data, `"text":"one, and more"`) || !strings.Contains(grown[0].data, s.c.RunID.String()) {
		t.Errorf("%s", grown[0].data)
	}
	s.say("last words")
	s.end(work.RunFailed, work.Failed)
	l.hears("step 1.4@5", "run 1 failed", "unit failed", "end failed")

	f.post(f.eventsOf(unit)[:len(f.eventsOf(unit))-len("/events")]+"/retry", "{}").is(202)
	l.hears("unit queued")
	s = f.story(unit)
	s.say("again")
	s.end(work.RunSucceeded, work.Succeeded)
	end := l.hears("run 2 succeeded", "step 2.1@1", "unit succeeded", "end succeeded")
	var u map[string]any
	if err := json.Unmarshal([]byte(end[2].data), &u); err != nil || u["live_status"] != nil || u["tool_calls"] != 0.0 ||
		u["payload"] != nil || u["id"] != unit.String() {
		t.Errorf("unit %v", u)
	}
}

// replays checks that whoever breaks off behind any event hears exactly the
// rest, at this door or another.
func replays(t *testing.T, f *front, path string, events []told) {
	t.Helper()
	for k := range events {
		if k == len(events)-1 {
			break
		}
		l := f.listen(path, "Last-Event-ID", events[k].id)
		rest := make([]told, 0, len(events)-k-1)
		for range events[k+1:] {
			rest = append(rest, l.next())
		}
		if !slices.Equal(rest, events[k+1:]) {
			t.Fatalf("after %d (%s):\nheard %q\nwant  %q", k, events[k].id, shorts(rest), shorts(events[k+1:]))
		}
		l.close()
	}
}

func TestStreamGoesOnBehindAnyEvent(t *testing.T) {
	t.Parallel()
	f := watched(t)
	unit := f.submit(mock(""))
	first := f.story(unit)
	for i := range 4 {
		first.say(fmt.Sprint("try ", i))
		first.write()
	}
	first.w.Rewrite(2, "rewritten") // of the rest, in its newest form only
	first.end(work.RunReleased, work.Queued)
	second := f.story(unit)
	for i := range 5 {
		second.say(fmt.Sprint("work ", i))
		second.write()
	}
	second.w.Rewrite(3, "rewritten too")
	second.write()
	all := []string{"run 1 released", "step 1.1@1", "step 1.3@3", "step 1.4@4", "step 1.2@5",
		"run 2 running", "step 2.1@1", "step 2.2@2", "step 2.4@4", "step 2.5@5", "step 2.3@6", "unit running"}
	from := "?after=1.0.0.0" // all runs, not the newest only
	replays(t, f, f.eventsOf(unit), f.listen(f.eventsOf(unit)+from).hears(all...))

	// The same when the chunks have been folded, and at another door.
	second.end(work.RunSucceeded, work.Succeeded)
	all = append(slices.Replace(all, 5, 6, "run 2 succeeded"), "end succeeded")
	all[11] = "unit succeeded"
	other := &front{API: New(Options{Submitter: f.Submitter, Queue: f.Queue, Log: f.Log, Registry: prometheus.NewRegistry()}), t: t}
	other.serve()
	events := f.listen(f.eventsOf(unit) + from).hears(all...)
	replays(t, other, f.eventsOf(unit), events)
}

// A live reader's ids are good as well, whenever it comes back.
func TestStreamGoesOnAcrossTheFold(t *testing.T) {
	t.Parallel()
	f := watched(t)
	unit := f.submit(mock(""))
	l := f.listen(f.eventsOf(unit))
	l.hears("unit queued")
	s := f.story(unit)
	var ids []told
	f.live.Notify(unit)
	ids = append(ids, l.hears("run 1 running", "unit running")...)
	for i := range 6 {
		s.say(fmt.Sprint(i))
		s.write()
		ids = append(ids, l.hears(fmt.Sprintf("step 1.%d@%d", i+1, i+1), "run 1 running")...)
	}
	s.say("last")
	s.end(work.RunSucceeded, work.Succeeded)
	ids = append(ids, l.hears("step 1.7@7", "run 1 succeeded", "unit succeeded", "end succeeded")...)
	for k, e := range ids[:len(ids)-1] {
		var want []string
		for _, later := range ids[k+1:] {
			if later.event != "run" && later.event != "unit" {
				want = append(want, later.short())
			}
		}
		var got []string
		for _, e := range f.listen(f.eventsOf(unit), "Last-Event-ID", e.id).until("end succeeded") {
			if e.event != "run" && e.event != "unit" {
				got = append(got, e.short())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %s: %q, want %q", e.id, got, want)
		}
	}
}

// Whoever has no place, or one that does not exist, hears how things stand.
func TestStreamFromStrangePlaces(t *testing.T) {
	t.Parallel()
	f := watched(t)
	unit := f.submit(mock(""))
	s := f.story(unit)
	s.say("one")
	s.end(work.RunReleased, work.Queued)
	s = f.story(unit)
	s.say("a")
	s.say("b")
	s.write()
	newest := []string{"run 2 running", "step 2.1@1", "step 2.2@2", "unit running"}
	f.listen(f.eventsOf(unit)).hears(newest...)
	f.listen(f.eventsOf(unit) + "?after=5.99.5.5").hears(newest...)
	f.listen(f.eventsOf(unit), "Last-Event-ID", "nonsense").hears(newest...)
	f.listen(f.eventsOf(unit)+"?after=0.2.0.1").hears("step 2.2@2", "run 2 running", "unit running")
	f.listen(f.eventsOf(unit) + "?after=0.1.0.1").hears(append([]string{"run 1 released"}, newest...)...)
	l := f.listen(f.eventsOf(unit) + "?after=0.2.0.77") // more than there is: it must not miss what comes
	l.hears("run 2 running", "unit running")
	s.say("c")
	s.write()
	l.hears("step 2.3@3", "run 2 running")
	for _, bad := range []string{"nonsense", "1.2.3", "1.2.3.-4", "1.2.3.4.5", "1.99999999999.3.4", "a.b.c.d"} {
		f.get(f.eventsOf(unit)+"?after="+bad).refused(422, "after", "the id of an event")
	}
	f.get("/events?after=7").refused(422, "after", "the id of an event")
	f.get("/events?after=9:5:").refused(422, "after", "the id of an event")
	f.get("/events?status=queued").refused(422, "status", "there is no query parameter")
	f.get("/work-units/"+uuid.NewString()+"/events").refused(404, "", "")
	f.get("/work-units/nope/events").refused(404, "", "")
	if a := f.do("HEAD", f.eventsOf(unit), "").is(200); a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v", a.header)
	}
}

func TestStreamOfAnotherTenantsUnit(t *testing.T) {
	t.Parallel()
	f := watched(t)
	theirs := f.acceptFor("other", "theirs")
	f.get(f.eventsOf(theirs)).refused(404, "", "")
	ours := f.listen("/events")
	ours.hears("hello")
	f.live.Notify(f.acceptFor("other", "theirs too"))
	unit := f.submit(mock(""))
	ours.hears("units Count the words=queued")
	f.claim(unit)
	f.live.Notify(unit)
	ours.hears("units Count the words=running")
}

func (f *front) acceptFor(tenant, title string) uuid.UUID {
	f.t.Helper()
	u, _, err := f.Store.Units.Accept(f.t.Context(), store.NewUnit{Unit: work.Unit{ID: uuid.Must(uuid.NewV7()), Tenant: tenant,
		Title: title, Spec: work.Spec{
			Backend: "mock", Prompt: "p", Payload: json.RawMessage(`{}`), Timeout: 60, IdleTimeout: 60, MissingKey: "fail",
			Queue: "default", Priority: 5, Labels: json.RawMessage(`{}`)}}})
	if err != nil {
		f.t.Fatal(err)
	}
	return u.ID
}

func TestStreamOfAllUnits(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.submit(mock(""))
	l := f.listen("/events")
	hello := l.hears("hello")
	legal := f.listen("/events?label=team:legal&backend=mock")
	legal.hears("hello")
	unit := f.submit(mock(`,"labels":{"team":"legal"}`))
	events := append(hello, l.hears("units Count the words=queued")...)
	f.submit(mock(""))
	events = append(events, l.hears("units Count the words=queued")...)
	s := f.story(unit)
	f.live.Notify(unit)
	events = append(events, l.hears("units Count the words=running")...)
	s.say("one")
	s.write()
	events = append(events, l.hears("units Count the words=running")...)
	if !strings.Contains(events[4].data, `"live_status":"at work"`) {
		t.Errorf("%s", events[4].data)
	}
	s.end(work.RunSucceeded, work.Succeeded)
	l.hears("units Count the words=succeeded")
	legal.until("units Count the words=succeeded")

	for _, e := range events {
		if got := f.listen("/events", "Last-Event-ID", e.id).next().short(); !strings.Contains(got, "Count the words=succeeded") {
			t.Errorf("after %s: %s", e.id, got)
		}
	}
	f.listen("/events", "Last-Event-ID", "99999999:99999999:").hears("lagged")
	f.listen("/events", "Last-Event-ID", "nonsense").hears("lagged")
}

// More than a bundle holds is not told one by one.
func TestStreamOfAllUnitsTellsOfMuch(t *testing.T) {
	t.Parallel()
	f := watched(t)
	l := f.listen("/events")
	at := l.hears("hello")[0].id
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500/8 + 1 {
				f.acceptFor(work.DefaultTenant, "many")
			}
		})
	}
	all.Wait()
	f.live.Notify(uuid.New())
	l.hears("lagged")
	f.listen("/events", "Last-Event-ID", at).hears("lagged")
	f.submit(mock(""))
	l.hears("units Count the words=queued")
}

// Transactions end in another order than they begin. Nothing may be missed for
// it, and nothing told twice.
func TestStreamSeesWhatIsCommittedLate(t *testing.T) {
	t.Parallel()
	f := watched(t)
	slow, quick := f.acceptFor(work.DefaultTenant, "slow"), f.acceptFor(work.DefaultTenant, "quick")
	l := f.listen("/events")
	at := l.hears("hello")[0].id
	commit := f.holdOpen(slow)
	f.post("/work-units/"+quick.String()+"/cancel", "").is(202)
	first := l.hears("units quick=cancelled")[0]
	commit()
	f.live.Notify(slow)
	second := l.hears("units slow=cancelled")[0]
	f.listen("/events", "Last-Event-ID", at).hears("units slow=cancelled quick=cancelled")
	f.listen("/events", "Last-Event-ID", first.id).hears("units slow=cancelled")
	late := f.listen("/events", "Last-Event-ID", second.id)
	f.submit(mock(""))
	late.hears("units Count the words=queued")
}

// holdOpen cancels a unit in a transaction that is committed later.
func (f *front) holdOpen(unit uuid.UUID) (commit func()) {
	f.t.Helper()
	db, err := sql.Open("postgres", f.database)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(f.t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(f.t.Context(), `UPDATE work_units SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1`, unit)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// Without Redis the hub looks by itself; with it, it need not.
func TestStreamWithAndWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	f := openFront(t, testkit.DB(t, migrate), redis.URL, nil)
	f.watchFor(time.Hour)
	worker := openFront(t, testkit.DB(t, migrate), redis.URL, nil).Queue // another process's
	unit := f.submit(mock(""))
	s := f.story(unit)
	l := f.listen(f.eventsOf(unit))
	l.hears("run 1 running", "unit running")
	quietly := func(text string) {
		s.say(text)
		if err := f.Store.Transcripts.Append(t.Context(), store.Progress{RunID: s.c.RunID,
			Steps: s.w.After(s.written, 1<<20)}); err != nil {
			t.Fatal(err)
		}
		s.written = s.w.Rev()
	}
	quietly("one")
	testkit.Eventually(t, "a notice comes", func() bool {
		worker.Stepped(unit) // the API may not have subscribed yet
		select {
		case e := <-l.events:
			return e.short() == "step 1.1@1"
		default:
			return false
		}
	})
	l.close()
	redis.Stop()
	alone := openFront(t, f.database, redis.URL, nil)
	alone.watchFor(50 * time.Millisecond)
	l = alone.listen(alone.eventsOf(unit))
	l.until("unit running")
	quietly("two")
	l.hears("step 1.2@2", "run 1 running")
	all := alone.listen("/events")
	all.hears("hello")
	quietly("three")
	all.hears("units Count the words=running")
}

// A reader that reads no more costs its queue and harms nobody.
func TestSlowReaderIsToldAndBroughtBack(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.live.WriteWait = time.Hour // it sleeps for as long as this test takes
	unit := f.submit(mock(""))
	s := f.story(unit)
	conn := f.stopped(f.eventsOf(unit))
	l := f.listen(f.eventsOf(unit))
	l.hears("run 1 running", "unit running")
	const rounds, each = 30, 5 // steps of 50 KB: more than sockets and the queue hold
	const steps = rounds * each
	for range rounds {
		for range each {
			s.say(strings.Repeat("x", 50_000))
		}
		s.write()
		l.until("run 1 running")
	}
	if f.metric("piecework_event_streams_lagged_total") != 1 {
		t.Errorf("%v have lagged", f.metric("piecework_event_streams_lagged_total"))
	}
	// Awake again it hears that it was too slow, and then the rest, each once.
	var numbers []string
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Close() // first: a body that is closed is read to its end
		_ = resp.Body.Close()
	}()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	lagged := false
	for len(numbers) < steps && lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		if lagged = lagged || field == "event" && value == "lagged"; field == "data" && strings.Contains(value, `"number"`) {
			numbers = append(numbers, told{event: "step", data: value}.short())
		}
	}
	for i, got := range numbers {
		if want := fmt.Sprintf("step 1.%d@%d", i+1, i+1); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	if len(numbers) != steps || !lagged {
		t.Errorf("%d steps, lagged %t, %v", len(numbers), lagged, lines.Err())
	}
}

// stopped opens a stream that nobody reads, and of which sockets hold little.
func (f *front) stopped(path string) *net.TCPConn {
	f.t.Helper()
	dialled, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	conn := dialled.(*net.TCPConn)
	f.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadBuffer(128 << 10); err != nil {
		f.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		f.t.Fatal(err)
	}
	testkit.Eventually(f.t, "the stream is open", func() bool { return f.metric("piecework_event_streams") > 0 })
	return conn
}

// A reader costs little: ten thousand are to fit into one process.
func TestReadersAreLight(t *testing.T) {
	f := watched(t)
	path := f.eventsOf(f.submit(mock("")))
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	f.stopped(path)
	before := memory()
	const readers = 1000
	for range readers {
		f.stopped(path)
	}
	testkit.Eventually(t, "all are open", func() bool { return f.metric("piecework_event_streams") == readers+1 })
	each := (int64(memory()) - int64(before)) / readers
	t.Logf("%d bytes for each reader and its test", each)
	if each > 64<<10 { // 40 KB without the test's own end of it
		t.Errorf("%d bytes for each reader", each)
	}
}

// Streams end when the server does, whether anybody reads them or not.
func TestStreamsEndWithTheServer(t *testing.T) {
	t.Parallel()
	f := watched(t)
	f.live.WriteWait = time.Hour // so it is not this that ends them
	unit := f.submit(mock(""))
	s := f.story(unit)
	s.say(strings.Repeat("x", 50_000))
	for range 120 { // more than sockets hold
		s.w.Add(s.w.Steps()[0])
	}
	s.write()
	f.stopped(f.eventsOf(unit))
	l, all := f.listen(f.eventsOf(unit)), f.listen("/events")
	l.until("unit running")
	all.hears("hello")
	f.EndStreams()
	l.ended()
	all.ended()
	testkit.Eventually(t, "no stream is left", func() bool { return f.metric("piecework_event_streams") == 0 })
}

// While Postgres is away nothing is lost.
func TestStreamOutlivesPostgres(t *testing.T) {
	t.Parallel()
	pg := testkit.OwnPostgres(t, migrate)
	f := openFront(t, pg.URL, nowhere, nil)
	f.watchFor(20 * time.Millisecond)
	unit := f.submit(mock(""))
	s := f.story(unit)
	l := f.listen(f.eventsOf(unit))
	l.hears("run 1 running", "unit running")
	pg.Kill()
	testkit.Eventually(t, "the ledger is away", func() bool {
		_, err := f.Store.Events.Now(t.Context())
		var away *work.Unavailable
		return errors.As(err, &away)
	})
	f.get(f.eventsOf(unit)).refused(503, "", "cannot be reached")
	pg.Start()
	s.say("one")
	testkit.Eventually(t, "the ledger takes steps", func() bool {
		return f.Store.Transcripts.Append(t.Context(), store.Progress{RunID: s.c.RunID, Steps: s.w.Steps()}) == nil
	})
	l.until("step 1.1@1")
}

// Whoever asks for the head of a stream only must not be followed for ever.
// Words that are being written are told on the side: without an id, and not when
// the step that has them was told.
func TestStreamTellsDrafts(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), testkit.StartRedis(t).URL, nil)
	f.watchFor(100 * time.Millisecond)
	s := f.story(f.submit(mock("")))
	l := f.listen(f.eventsOf(s.c.ID))
	l.until("unit running")
	type draft struct {
		Attempt, Rev int
		Type, Text   string
	}
	says := func(rev int, text string) {
		f.Queue.Drafted(queue.Draft{Unit: s.c.ID, Attempt: 1, Rev: rev, Type: transcript.Action, Text: text})
	}
	hears := func(rev int, text string) {
		t.Helper()
		testkit.Eventually(t, "the draft "+text, func() bool {
			says(0, "long ago")
			says(rev, text)
			select {
			case e := <-l.events:
				var d draft
				if e.event != "draft" {
					return false
				}
				if err := json.Unmarshal([]byte(e.data), &d); err != nil || e.id != "" || d.Text == "long ago" && rev > 0 {
					t.Errorf("heard %+v, %v", e, err)
				}
				return d == draft{1, rev, transcript.Action, text}
			case <-time.After(100 * time.Millisecond): // nobody listened yet, or it had other things to take
				return false
			}
		})
	}
	hears(0, "the first words")
	s.say("a step")
	s.write()
	l.until("step 1.1@1")
	hears(1, "more words")
}
