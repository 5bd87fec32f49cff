package api

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"piecework/api/hooks"
	"piecework/internal/testkit"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

// sender sends webhooks to one trigger as its preset's sender would.
type sender struct {
	*front
	name   string
	scheme work.Scheme
	secret string
}

func (f *front) sender(t work.Trigger) sender { return sender{f, t.Name, t.Scheme, goodSecret} }

// headers are those of a delivery, with changes: name, value, name, value; an
// empty value takes a header away.
func (s sender) headers(event, id, body string, changes ...string) []string {
	s.t.Helper()
	h, err := webhook.Imitate(s.scheme, s.secret, event, id, []byte(body), time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 2 {
		if h.Set(changes[i], changes[i+1]); changes[i+1] == "" {
			h.Del(changes[i])
		}
	}
	var list []string
	for name := range h {
		list = append(list, name, h.Get(name))
	}
	return list
}

func (s sender) send(event, id, body string, changes ...string) *answer {
	s.t.Helper()
	return s.do("POST", "/triggers/"+s.name, body, s.headers(event, id, body, changes...)...)
}

// sendUnread sends a body that the API does not read, and reads the answer beside:
// net/http's client may take the reset of the connection for it.
func (s sender) sendUnread(event, id, body string) *answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/triggers/"+s.name, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for h := s.headers(event, id, body); len(h) > 0; h = h[2:] {
		req.Header.Set(h[0], h[1])
	}
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", req.URL.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- req.Write(conn) }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close(), conn.Close()); err != nil {
		s.t.Fatal(err)
	}
	<-written // it may have failed: nobody reads
	return &answer{s.t, resp.StatusCode, resp.Header, text}
}

// receipt reads an answer; its unit must be there.
func (s sender) receipt(a *answer, status int, outcome string) hooks.Receipt {
	s.t.Helper()
	var got hooks.Receipt
	a.is(status).into(&got)
	if got.Outcome != outcome || (got.UnitID != nil) != (outcome == "accepted" || outcome == "duplicate") {
		s.t.Errorf("got %s, want %s", a.body, outcome)
	}
	return got
}

func (f *front) unit(id *uuid.UUID) work.Unit {
	f.t.Helper()
	if id == nil {
		f.t.Fatal("no unit")
	}
	u, err := f.Store.Units.Get(f.t.Context(), work.DefaultTenant, *id)
	if err != nil {
		f.t.Fatal(err)
	}
	return u
}

func (f *front) deliveries(name string) []work.TriggerDelivery {
	f.t.Helper()
	var list struct{ Items []work.TriggerDelivery }
	f.get("/triggers/" + name + "/deliveries").is(200).into(&list)
	return list.Items
}

func TestGitHub(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	s := f.sender(f.trigger("reviews", "github", `,"events":["pull_request"],"filter":"body.action in [\"opened\",\"reopened\"]",
		"mapping":{"title":"body.pull_request.title","who":"body.sender.login","labels":"body.pull_request.labels.map(l, l.name)","gone":"body.no.such.thing"}`, "Review {title} of {who}"))
	const body = `{"action":"opened","pull_request":{"title":"Mend <it>","labels":[{"name":"bug"}]},"sender":{"login":"ann"}}`
	if a := s.send("ping", "p-1", `{"zen":"Keep it logically awesome."}`); s.receipt(a, 200, "pong").Delivery != "" {
		t.Errorf("%s", a.body)
	}
	a := s.send("pull_request", "d-1", body)
	first := s.receipt(a, 202, "accepted")
	u := f.unit(first.UnitID)
	if u.Title != "Review Mend <it> of ann" || string(u.Payload) != `{"labels":["bug"],"title":"Mend <it>","who":"ann"}` || string(u.Labels) != `{"trigger": "reviews"}` ||
		a.header.Get("Location") != "/work-units/"+u.ID.String() {
		t.Errorf("%+v", u)
	}
	// A repeat, even under the secret before and as a form, is the same delivery.
	older := s
	older.secret = olderSecret
	form := "payload=" + url.QueryEscape(body)
	for _, again := range []*answer{s.send("pull_request", "d-1", body), older.send("pull_request", "d-1", form, "Content-Type", "application/x-www-form-urlencoded")} {
		if got := s.receipt(again, 200, "duplicate"); *got.UnitID != u.ID {
			t.Errorf("%+v", got)
		}
	}
	if form := s.receipt(s.send("pull_request", "d-2", form, "Content-Type", "application/x-www-form-urlencoded"), 202, "accepted"); f.unit(form.UnitID).Title != u.Title {
		t.Error("a form makes another unit than JSON")
	}
	for id, test := range map[string][3]string{
		"f-1": {"push", body, `"push" is not one`}, "f-2": {"pull_request", `{"action":"closed"}`, "does not hold"}, "f-3": {"pull_request", `{}`, "action"},
	} {
		if got := s.receipt(s.send(test[0], id, test[1]), 200, "filtered"); !strings.Contains(got.Detail, test[2]) {
			t.Errorf("%s: %+v", id, got)
		}
	}
	outcomes := map[string]int{}
	for _, d := range f.deliveries("reviews") {
		outcomes[d.Outcome]++
		if d.Delivery == "d-1" && (d.Duplicates != 2 || d.Event != "pull_request") {
			t.Errorf("%+v", d)
		}
	}
	if outcomes["accepted"] != 2 || outcomes["filtered"] != 3 {
		t.Errorf("%v", outcomes)
	}
	// The filter was wrong, and the sender is asked to send it again.
	f.trigger("reviews", "github", "", "All of it: {body.action}")
	if got := s.receipt(s.send("pull_request", "f-2", `{"action":"closed"}`), 202, "accepted"); f.unit(got.UnitID).Title != "All of it: closed" {
		t.Errorf("%+v", f.unit(got.UnitID))
	}
	f.trigger("reviews", "github", `,"paused":true`, "x")
	s.receipt(s.send("pull_request", "d-3", body), 200, "paused")
	if got := s.receipt(s.send("pull_request", "d-1", body), 200, "duplicate"); *got.UnitID != u.ID {
		t.Errorf("%+v", got)
	}
	f.trigger("reviews", "github", "", "x")
	s.receipt(s.send("pull_request", "d-3", body), 202, "accepted")
}

func TestSlack(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	s := f.sender(f.trigger("slack", "slack", `,"events":["app_mention","/ask","block_actions"]`, "Answer {event}"))
	if a := s.send("", "", `{"type":"url_verification","challenge":"3eZbrw1a","token":"x"}`); a.is(200).fields()["challenge"] != "3eZbrw1a" {
		t.Errorf("%s", a.body)
	}
	const mention = `{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention","text":"hello"}}`
	first := s.receipt(s.send("", "", mention), 202, "accepted")
	again := s.receipt(s.send("", "", mention, "X-Slack-Retry-Num", "1", "X-Slack-Retry-Reason", "http_timeout"), 200, "duplicate")
	if *first.UnitID != *again.UnitID || first.Event != "app_mention" || first.Delivery != "Ev1" {
		t.Errorf("%+v, %+v", first, again)
	}
	for i, form := range []string{"command=%2Fask&text=why&trigger_id=1.2.a", "payload=" + url.QueryEscape(`{"type":"block_actions","trigger_id":"1.2.b"}`)} {
		for range 2 { // nobody sees an answer, and there is one unit
			a := s.send("", "", form, "Content-Type", "application/x-www-form-urlencoded").is(200)
			if len(a.body) > 0 || !strings.HasPrefix(a.header.Get("Location"), "/work-units/") {
				t.Errorf("%d: %q, %v", i, a.body, a.header)
			}
		}
	}
	if got := f.deliveries("slack"); len(got) != 3 || got[0].Event != "block_actions" || got[1].Event != "/ask" || got[1].Duplicates != 1 {
		t.Errorf("%+v", got)
	}
	s.receipt(s.send("", "", `{"type":"event_callback","event_id":"Ev2","event":{"type":"message"}}`), 200, "filtered")
}

func TestOtherSenders(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	f.do("PUT", "/triggers/pay", `{"preset":"stripe","secrets":["`+whsec+`"],"events":["invoice.*"],"unit":{"backend":"mock","prompt":"x"}}`).is(200)
	f.do("PUT", "/triggers/model", `{"preset":"standard","secrets":["`+whsec+`"],"unit":{"backend":"mock","prompt":"{body.data.id}"}}`).is(200)
	pay := sender{f, "pay", work.Scheme{Preset: "stripe"}, whsec}
	got := pay.receipt(pay.send("", "", `{"id":"evt_1","type":"invoice.paid"}`), 202, "accepted")
	if got.Delivery != "evt_1" || got.Event != "invoice.paid" {
		t.Errorf("%+v", got)
	}
	pay.receipt(pay.send("", "", `{"id":"evt_1","type":"invoice.paid"}`), 200, "duplicate")
	pay.receipt(pay.send("", "", `{"id":"evt_2","type":"charge.failed"}`), 200, "filtered")
	model := sender{f, "model", work.Scheme{Preset: "standard"}, whsec}
	got = model.receipt(model.send("", "wh_1", `{"type":"batch.completed","data":{"id":"batch_1"}}`), 202, "accepted")
	if got.Delivery != "wh_1" || got.Event != "batch.completed" || f.unit(got.UnitID).Title != "batch_1" {
		t.Errorf("%+v", got)
	}

	own := f.sender(f.trigger("own", "hmac", `,"header":"X-Sig","algorithm":"sha512","encoding":"base64","signed":"{timestamp}:{body}","timestamp_header":"X-Time",
		"event_from":"headers[\"x-kind\"]","delivery_from":"body.id","mapping":{"n":"body.n * 2"}`, "x"))
	got = own.receipt(own.send("", "", `{"id":7,"n":21}`, "X-Kind", "new"), 202, "accepted")
	if got.Event != "new" || got.Delivery != "7" || string(f.unit(got.UnitID).Payload) != `{"n":42}` {
		t.Errorf("%+v", got)
	}
	own.send("", "", `{"id":8,"n":"many"}`).refused(422, "#", "mapping of n")
	if u := f.deliveries("own"); len(u) != 1 {
		t.Errorf("%+v", u)
	}

	basic := f.sender(f.trigger("basic", "basic", `,"username":"u","id_header":"X-Id"`, "x"))
	one := basic.receipt(basic.send("", "1", `not json`, "Content-Type", "text/plain"), 202, "accepted")
	if u := f.unit(one.UnitID); string(u.Payload) != `{"body":"not json","delivery":"1","event":""}` {
		t.Errorf("%s", u.Payload)
	}
	basic.receipt(basic.send("", "1", "", "Content-Type", ""), 200, "duplicate")
	basic.send("", "2", "", "Authorization", "Basic eDp5").refused(401, "", "prove")

	// What has no name: signed bytes name themselves, others are always new.
	nameless := f.sender(f.trigger("nameless", "hmac", `,"header":"X-Sig"`, "x"))
	nameless.receipt(nameless.send("", "", `{}`), 202, "accepted")
	nameless.receipt(nameless.send("", "", `{}`), 200, "duplicate")
	nameless.receipt(nameless.send("", "", `{ }`), 202, "accepted")
	key := f.sender(f.trigger("key", "api_key", "", "x"))
	for range 2 {
		key.receipt(key.send("", "", `{}`), 202, "accepted")
	}
	if u := f.unit(key.receipt(key.send("", "", `{"big":12345678901234567890123}`), 202,
		"accepted").UnitID); !strings.Contains(string(u.Payload), "12345678901234567890123") || strings.Contains(string(u.Payload), goodSecret) {
		t.Errorf("%s", u.Payload)
	}
	long := key.receipt(key.send("", "", strings.Repeat(" ", 500)), 202, "accepted")
	if string(f.unit(long.UnitID).Payload) != fmt.Sprintf(`{"body":null,"delivery":%q,"event":""}`, long.Delivery) {
		t.Errorf("%s", f.unit(long.UnitID).Payload)
	}
}

// Whoever cannot prove who it is learns nothing, and nothing is kept.
func TestUnprovenWebhooksAreRefused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	slack := f.sender(f.trigger("slack", "slack", "", "x"))
	hub := f.sender(f.trigger("hub", "github", "", "x"))
	const body = `{"type":"event_callback","event_id":"Ev1"}`
	stranger := slack
	stranger.secret = "another secret of some length"
	old := fmt.Sprint(time.Now().Add(-time.Hour).Unix())
	for name, a := range map[string]*answer{
		"no header":        f.do("POST", "/triggers/slack", body),
		"another secret":   stranger.send("", "", body),
		"another body":     f.do("POST", "/triggers/slack", body+" ", slack.headers("", "", body)...),
		"another time":     slack.send("", "", body, "X-Slack-Request-Timestamp", old),
		"no time":          slack.send("", "", body, "X-Slack-Request-Timestamp", ""),
		"not even JSON":    f.do("POST", "/triggers/slack", "{"),
		"sha1 only":        hub.send("push", "1", "{}", "X-Hub-Signature-256", "", "X-Hub-Signature", "sha1=x"),
		"a form, unproven": f.do("POST", "/triggers/hub", "payload=%7B%7D", "Content-Type", "application/x-www-form-urlencoded"),
		"a handshake":      f.do("POST", "/triggers/slack", `{"type":"url_verification","challenge":"x"}`),
	} {
		if p := a.refused(401, "", "does not prove"); strings.Contains(fmt.Sprint(p), "signature") || strings.Contains(fmt.Sprint(p), "time") {
			t.Errorf("%s: tells %+v", name, p)
		}
	}
	if got := append(f.deliveries("slack"), f.deliveries("hub")...); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if log := f.log.String(); !strings.Contains(log, "webhook refused") || strings.Contains(log, goodSecret) || strings.Contains(log, stranger.secret) {
		t.Error(log)
	}
	f.do("POST", "/triggers/none", body).refused(404, "", "")
	f.do("POST", "/triggers/Not%20one", body).refused(404, "", "")
	hub.sendUnread("push", "1", strings.Repeat("x", 1<<20+1)).refused(413, "", "larger than")
	hub.send("push", "1", "{}", "Content-Encoding", "gzip").refused(415, "", "Content-Encoding")
	for _, bad := range []string{`{`, `{"a":1,"a":2}`, `{"a":"\u0000"}`, `[` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `]`} {
		if p := hub.send("push", "1", bad); p.status != 400 {
			t.Errorf("%.20s: %d %s", bad, p.status, p.body)
		}
	}
	hub.receipt(hub.send("push", "1", "{}"), 202, "accepted")
}

// Two API processes get one delivery fifty times at once.
func TestADeliverySentManyTimesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	other := openFront(t, f.database, nowhere, nil)
	trigger := f.trigger("hub", "github", "", "x")
	senders := []sender{f.sender(trigger), other.sender(trigger)}
	var mu sync.Mutex
	units, statuses := map[uuid.UUID]int{}, map[int]int{}
	var all errgroup.Group
	for i := range 50 {
		all.Go(func() error {
			s := senders[i%2]
			h, err := webhook.Imitate(s.scheme, s.secret, "push", "d-1", []byte("{}"), time.Now())
			if err != nil {
				return err
			}
			var list []string
			for name := range h {
				list = append(list, name, h.Get(name))
			}
			a, err := s.try("POST", "/triggers/hub", "{}", list...)
			if err != nil {
				return err
			}
			var got hooks.Receipt
			a.into(&got)
			mu.Lock()
			defer mu.Unlock()
			if statuses[a.status]++; got.UnitID != nil {
				units[*got.UnitID]++
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(units) != 1 || statuses[202] != 1 || statuses[200] != 49 {
		t.Errorf("units %v, statuses %v", units, statuses)
	}
	if got := f.deliveries("hub"); len(got) != 1 || got[0].Duplicates != 49 {
		t.Errorf("%+v", got)
	}
}

// When there is too much to do, webhooks are sent away at once, with when to
// come again.
func TestTooManyWebhooksAreShed(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	s := f.sender(f.trigger("hub", "github", "", "x"))
	var release func()
	for free, ok := f.triggers.Acquire(); ok; free, ok = f.triggers.Acquire() {
		release = free
	}
	a := s.send("push", "d-1", "{}")
	a.refused(http.StatusTooManyRequests, "", "too many")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("%v", a.header)
	}
	release()
	s.receipt(s.send("push", "d-1", "{}"), 202, "accepted")
	s.receipt(s.send("push", "d-2", "{}"), 202, "accepted") // the first has given its place back
	if text := string(f.get("/metrics").body); !strings.Contains(text, `piecework_trigger_deliveries_total{outcome="shed"} 1`) ||
		!strings.Contains(text, `piecework_trigger_deliveries_total{outcome="accepted"} 2`) {
		t.Error("not counted")
	}
}

// Another process hears of a change soon; the one that was told, at once.
func TestChangesOfTriggersAreHeardOf(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	other := openFront(t, f.database, nowhere, nil)
	s := f.sender(f.trigger("key", "api_key", "", "x"))
	there := sender{other, s.name, s.scheme, s.secret}
	there.receipt(there.send("", "", "{}"), 202, "accepted")
	f.do("PUT", "/triggers/key", `{"preset":"api_key","secrets":["a new one that nobody has yet"],"unit":{"backend":"mock","prompt":"x"}}`).is(200)
	s.send("", "", "{}").refused(401, "", "")
	testkit.Eventually(t, "the other process knows", func() bool { return there.send("", "", "{}").status == http.StatusUnauthorized })
	there.send("", "", "{}").refused(401, "", "")
	f.do("DELETE", "/triggers/key", "").is(204)
	s.send("", "", "{}").refused(404, "", "")
}
