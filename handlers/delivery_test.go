package handlers

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/store"
)

// letter is a message as a receiver got it.
type letter struct {
	id, body string
	header   http.Header
}

// postbox is a receiver whose every answer the test decides.
type postbox struct {
	*httptest.Server
	mu      sync.Mutex
	letters []letter
}

func newPostbox(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *postbox {
	t.Helper()
	p := &postbox{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.letters = append(p.letters, letter{r.Header.Get("webhook-id"), string(body), r.Header.Clone()})
		n := len(p.letters)
		p.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *postbox) got() []letter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]letter{}, p.letters...)
}

func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func (h *fixture) endpoint(url string) work.Endpoint {
	h.t.Helper()
	e, err := h.store.Endpoints.Add(h.t.Context(), work.Endpoint{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, URL: url,
		Events: []string{"*"}}, webhook.NewSecret())
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

func (h *fixture) deliveries(f store.DeliveryFilter) []work.Delivery {
	h.t.Helper()
	f.Tenant, f.Limit = work.DefaultTenant, 500
	list, _, err := h.store.Deliveries.List(h.t.Context(), f)
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// delivered waits until the endpoint's one delivery fulfils a condition.
func (h *fixture) delivered(e work.Endpoint, what string, ok func(work.Delivery) bool) work.Delivery {
	h.t.Helper()
	var d work.Delivery
	testkit.Eventually(h.t, what, func() bool {
		list := h.deliveries(store.DeliveryFilter{Endpoint: e.ID})
		if len(list) == 0 {
			return false
		}
		d = list[0]
		return ok(d)
	})
	return d
}

// ends makes a unit that ends at once.
func (h *fixture) ends(change func(*work.Spec)) uuid.UUID {
	h.t.Helper()
	id := h.submit(change)
	if _, err := h.store.Units.Cancel(h.t.Context(), work.DefaultTenant, id); err != nil {
		h.t.Fatal(err)
	}
	return id
}

// Every kind of receiver, at once and by one worker process: each is handled as
// Standard Webhooks says, and none holds up another.
func TestReceiversOfAllKinds(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	fine := newPostbox(t, status(204))
	moved := newPostbox(t, status(204))
	redirecting := newPostbox(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, moved.URL, http.StatusTemporaryRedirect)
	})
	gone := newPostbox(t, status(http.StatusGone))
	busy := newPostbox(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		http.Error(w, "too many", http.StatusTooManyRequests)
	})
	hours := newPostbox(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	release := make(chan struct{})
	slow := newPostbox(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	talkative := newPostbox(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(strings.Repeat("sorry \x00", 1<<16)))
	})
	recovering := newPostbox(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	ends := map[string]work.Endpoint{}
	for name, url := range map[string]string{"fine": fine.URL, "redirecting": redirecting.URL, "gone": gone.URL, "busy": busy.URL, "hours": hours.URL,
		"slow": slow.URL, "talkative": talkative.URL, "recovering": recovering.URL, "down": down.URL, "forbidden": "http://10.1.2.3/"} {
		ends[name] = h.endpoint(url)
	}
	h.start(nil)
	callback := newPostbox(t, status(200))
	to := callback.URL + "/done?token=1"
	id := h.submit(func(s *work.Spec) { s.CallbackURL = &to })
	h.begun().end <- succeed("done")
	h.becomes(id, work.Succeeded)

	delivered := func(d work.Delivery) bool { return d.State == work.DeliveryDelivered }
	d := h.delivered(ends["fine"], "delivery to a receiver that takes it", delivered)
	got := fine.got()
	if len(got) != 1 || got[0].id != d.WebhookID || *d.LastStatus != 204 || d.Attempts != 1 || d.LastError != nil ||
		!strings.Contains(got[0].body, `"work_unit.succeeded"`) ||
		got[0].header.Get("Content-Type") != "application/json" || got[0].header.Get("User-Agent") != "test" {
		t.Errorf("%+v, letters %+v", d, got)
	}
	failed := func(d work.Delivery) bool { return d.LastError != nil && d.State == work.DeliveryPending }
	for _, test := range []struct {
		name, words string
		status      int
		least, most time.Duration // until the next try
	}{
		{"redirecting", "redirects are not followed", 307, 0, 6 * time.Second},
		{"busy", "429", 429, 9 * time.Minute, 11 * time.Minute},
		{"hours", "503", 503, 100 * time.Minute, 121 * time.Minute},
		{"slow", "in time", 0, 0, 6 * time.Second},
		{"talkative", "500", 500, 0, 6 * time.Second},
		{"down", "refused", 0, 0, 6 * time.Second},
		{"forbidden", "PIECEWORK_WEBHOOK_ALLOW", 0, 0, 6 * time.Second},
	} {
		d := h.delivered(ends[test.name], test.name, failed)
		wait := d.NextAt.Sub(*d.TriedAt)
		if d.Attempts > 2 || !strings.Contains(*d.LastError, test.words) || (d.LastStatus == nil) != (test.status == 0) ||
			d.LastStatus != nil && *d.LastStatus != test.status || d.Attempts == 1 && (wait < test.least || wait > test.most) {
			t.Errorf("%s: %+v: %s, next try after %s", test.name, d, *d.LastError, wait)
		}
		if test.name == "talkative" && (len(*d.Response) > 2048 || !strings.HasPrefix(*d.Response, "sorry")) {
			t.Errorf("the answer is kept as %q", *d.Response)
		}
	}
	if n := len(moved.got()); n != 0 {
		t.Errorf("the redirect was followed %d times", n)
	}
	d = h.delivered(ends["gone"], "410", func(d work.Delivery) bool { return d.State == work.DeliveryDead })
	testkit.Eventually(t, "the endpoint disabled", func() bool {
		e, err := h.store.Endpoints.Get(t.Context(), work.DefaultTenant, ends["gone"].ID)
		return err == nil && e.DisabledAt != nil && strings.Contains(e.DisabledWhy, "410")
	})
	d = h.delivered(ends["recovering"], "the second try", delivered)
	if got := recovering.got(); len(got) != 2 || got[0].id != got[1].id || got[0].body != got[1].body || d.Attempts != 2 {
		t.Errorf("%+v, letters %+v", d, got)
	}
	testkit.Eventually(t, "the callback", func() bool { return len(callback.got()) == 1 })
	secrets, err := h.store.Endpoints.CallbackSecrets(t.Context(), work.DefaultTenant, webhook.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	verify(t, callback.got()[0], secrets.Secret)
	if kept := h.deliveries(store.DeliveryFilter{Unit: id, States: []work.DeliveryState{work.DeliveryDelivered}}); len(kept) != 3 {
		t.Errorf("delivered %+v", kept)
	}
}

// verify holds a letter against our own signature; internal/webhook holds that
// against others' libraries.
func verify(t *testing.T, l letter, secret string) {
	t.Helper()
	var seconds int64
	if _, err := fmt.Sscan(l.header.Get("webhook-timestamp"), &seconds); err != nil {
		t.Fatal(err)
	}
	want, err := webhook.Sign(l.id, time.Unix(seconds, 0), []byte(l.body), secret)
	if err != nil || l.header.Get("webhook-signature") != want {
		t.Errorf("signature %s, want %s, error %v", l.header.Get("webhook-signature"), want, err)
	}
}

// A backlog for receivers that hang leaves room for the others, and goes to one
// that works by itself, message after message.
func TestABacklogForOneReceiverHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	var mu sync.Mutex
	now, most := 0, 0
	hang := newPostbox(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-r.Context().Done()
		mu.Lock()
		now--
		mu.Unlock()
	})
	for range 3 {
		h.endpoint(hang.URL)
	}
	for range 60 {
		h.ends(nil)
	}
	fine := newPostbox(t, status(200))
	e := h.endpoint(fine.URL)
	const many = 60
	for range many {
		h.ends(nil)
	}
	h.start(nil)
	begun := time.Now()
	testkit.Eventually(t, "all that can be delivered", func() bool {
		return len(h.deliveries(store.DeliveryFilter{Endpoint: e.ID, States: []work.DeliveryState{work.DeliveryDelivered}})) == many
	})
	t.Logf("%d messages after %s beside 3 receivers that hang", many, time.Since(begun))
	mu.Lock()
	defer mu.Unlock()
	if most > 3*4 {
		t.Errorf("%d messages at once to three receivers that hang, want %d at most", most, 3*4)
	}
	seen := map[string]bool{}
	for _, l := range fine.got() {
		if seen[l.id] {
			t.Errorf("%s came twice", l.id)
		}
		seen[l.id] = true
	}
}

// Receivers that hang hold no slot that one which answers needs: its messages
// arrive while the others' first tries still go on.
func TestReceiversThatHangDoNotDelayOneThatAnswers(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	release := make(chan struct{})
	hanging := make(chan struct{}, 1000)
	hang := newPostbox(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		hanging <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	const many = 16
	for range many {
		h.endpoint(hang.URL)
	}
	h.ends(nil)
	h.start(func(o *Options) {
		o.Sender = webhook.NewSender(webhook.Guard{Allow: webhook.Loopback()}, "test", testkit.Patience)
	})
	for range many {
		<-hanging // each of them has a message that is not answered
	}
	time.Sleep(3200 * time.Millisecond) // now all of them count as failing
	fine := newPostbox(t, status(200))
	e := h.endpoint(fine.URL)
	const messages = 30
	for range messages {
		h.ends(nil)
	}
	testkit.Eventually(t, "all messages to the receiver that answers", func() bool {
		return len(h.deliveries(store.DeliveryFilter{Endpoint: e.ID, States: []work.DeliveryState{work.DeliveryDelivered}})) == messages
	})
	if failed := h.deliveries(store.DeliveryFilter{States: []work.DeliveryState{work.DeliveryDead}}); len(failed) > 0 {
		t.Errorf("%+v", failed)
	}
	if n := len(hanging); n > 0 {
		t.Errorf("%d more messages have gone to receivers that have not answered one", n)
	}
	for _, d := range h.deliveries(store.DeliveryFilter{States: []work.DeliveryState{work.DeliveryPending}}) {
		if d.TriedAt != nil {
			t.Errorf("a try to a receiver that hangs has ended: nothing is shown. %+v", d)
		}
	}
	close(release)
}

// Without Redis, and after Redis has lost its messages.
func TestDeliveriesDoNotNeedRedis(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	box := newPostbox(t, status(200))
	e := h.endpoint(box.URL)
	h.start(nil)
	delivered := func(n int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(n, " deliveries"), func() bool {
			return len(h.deliveries(store.DeliveryFilter{Endpoint: e.ID, States: []work.DeliveryState{work.DeliveryDelivered}})) == n
		})
	}
	h.ends(nil)
	delivered(1)
	h.redis.Stop()
	testkit.Eventually(t, "redis is found away", func() bool { return !h.queue.Up() })
	h.ends(nil)
	delivered(2)
	if got := box.got(); len(got) != 2 {
		t.Errorf("%d letters", len(got))
	}
}

// A worker process that shuts down lets what is on its way arrive, and gives
// the rest back: the try counts as no failure.
func TestShutdownGivesDeliveriesBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	arrived := make(chan struct{}, 10)
	box := newPostbox(t, func(n int, _ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		if n == 1 {
			<-r.Context().Done()
		}
	})
	e := h.endpoint(box.URL)
	w := h.start(nil)
	h.ends(nil)
	<-arrived
	w.stop()
	<-w.done
	d := h.deliveries(store.DeliveryFilter{Endpoint: e.ID})[0]
	if d.State != work.DeliveryPending || d.NextAt.After(time.Now().Add(time.Second)) || !strings.Contains(*d.LastError, "shut down") {
		t.Errorf("%+v", d)
	}
	h.start(nil)
	h.delivered(e, "delivery by the next worker process", func(d work.Delivery) bool { return d.State == work.DeliveryDelivered })
	if got := box.got(); len(got) != 2 || got[0].id != got[1].id {
		t.Errorf("%+v", got)
	}
}
