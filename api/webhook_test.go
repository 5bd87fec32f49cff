package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/hooks"
	"piecework/internal/work"
	"piecework/store"
)

func TestWebhookEndpoints(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	var added hooks.AddedEndpoint
	f.post("/webhook-endpoints", `{"url":"https://example.com/hooks","description":"The CRM","events":["work_unit.*","work_unit.*"]}`).is(201).into(&added)
	if !strings.HasPrefix(added.Secret, "whsec_") || len(added.Secret) != 50 || len(added.Events) != 1 || added.DisabledAt != nil {
		t.Errorf("%+v", added)
	}
	path := "/webhook-endpoints/" + added.ID.String()
	var secrets work.Secrets
	f.get(path + "/secret").is(200).into(&secrets)
	if secrets.Secret != added.Secret || secrets.Previous != nil {
		t.Errorf("%+v", secrets)
	}
	for _, shown := range []string{path, "/webhook-endpoints"} {
		if body := string(f.get(shown).is(200).body); strings.Contains(body, "whsec_") || !strings.Contains(body, "The CRM") {
			t.Errorf("%s: %s", shown, body)
		}
	}
	var rotated work.Secrets
	f.post(path+"/rotate", `{"overlap":"1h"}`).is(200).into(&rotated)
	if rotated.Secret == added.Secret || rotated.Previous == nil || *rotated.Previous != added.Secret ||
		time.Until(*rotated.PreviousUntil) > time.Hour {
		t.Errorf("%+v", rotated)
	}
	f.post(path+"/rotate", "").is(200)
	var e work.Endpoint
	f.do("PUT", path, `{"url":"https://example.com/other","disabled":true}`).is(200).into(&e)
	if e.URL != "https://example.com/other" || e.Description != "" || e.Events[0] != "*" || e.DisabledAt == nil || e.DisabledWhy != "by hand" {
		t.Errorf("%+v", e)
	}
	f.post(path+"/test", "").refused(409, "", "disabled")
	f.do("PUT", path, `{"url":"https://example.com/other"}`).is(200)
	var d work.Delivery
	f.post(path+"/test", "").is(202).into(&d)
	if d.EventType != work.EventTest || d.State != work.DeliveryPending || d.WebhookID != work.WebhookID(d.ID) {
		t.Errorf("%+v", d)
	}
	f.do("DELETE", path, "").is(204)
	for _, missing := range []*answer{f.get(path), f.get(path + "/secret"), f.do("DELETE", path, ""), f.post(path+"/rotate", ""),
		f.post(path+"/test", ""), f.do("PUT", path, `{"url":"https://example.com"}`)} {
		missing.refused(404, "", "")
	}

	var first, again work.Secrets
	f.get("/callback-secret").is(200).into(&first)
	f.post("/callback-secret/rotate", `{"overlap":0}`).is(200).into(&rotated)
	f.get("/callback-secret").is(200).into(&again)
	if first.Secret == rotated.Secret || again.Secret != rotated.Secret || again.Previous != nil {
		t.Errorf("%+v, %+v, %+v", first, rotated, again)
	}
}

// What a server must not be made to ask for its callers is refused at once
// where the address says it; names are looked at when they are connected to.
func TestBadWebhookAddressesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for address, words := range map[string]string{
		"http://127.0.0.1/": "public", "http://[::ffff:127.0.0.1]/": "public", "http://169.254.169.254/latest": "public", "http://[64:ff9b::a9fe:a9fe]": "public",
		"http://2130706433/": "usual form", "http://0177.0.0.1": "usual form", "http://0": "usual form",
		"http://0x7f000001": "usual form", "http://127.1": "usual form",
		"http://user:pass@example.com": "user name", "http://127.0.0.1%2f@example.com": "user name", "http://example.com#@127.0.0.1": "#",
		`http://127.0.0.1\@example.com`: "address such as", "ftp://example.com": "https://", "file:///etc/passwd": "address such as", "example.com": "address such as",
		"https://": "address such as", "": "address such as", "https://example.com/" + strings.Repeat("x", 2000): "longer",
	} {
		text, err := json.Marshal(address)
		if err != nil {
			t.Fatal(err)
		}
		f.post("/webhook-endpoints", fmt.Sprintf(`{"url":%s}`, text)).refused(422, "#/url", words)
		f.post("/work-units", mock(fmt.Sprintf(`,"callback_url":%s`, text))).refused(422, "#/callback_url", words)
	}
	f.post("/webhook-endpoints", `{"url":"https://example.com","events":["*","unit.done"]}`).refused(422, "#/events/1", "work_unit.failed")
	f.post("/webhook-endpoints", `{"url":"https://example.com","events":["units.*"]}`).refused(422, "#/events/0", "noun.*")
	f.post("/callback-secret/rotate", `{"overlap":"2000h"}`).refused(422, "#/overlap", "between")
}

func TestDeliveriesCanBeReadAndRepeated(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	ctx := t.Context()
	var added hooks.AddedEndpoint
	f.post("/webhook-endpoints", `{"url":"https://example.com/hooks"}`).is(201).into(&added)
	id := f.submit(mock(`,"callback_url":"https://example.com/done?token=1"`))
	f.run(id, "done")
	other := f.submit(mock(""))
	f.post("/work-units/"+other.String()+"/cancel", "").is(202)

	list := func(query string) (items []work.Delivery) {
		t.Helper()
		var page struct{ Items []work.Delivery }
		f.get("/deliveries" + query).is(200).into(&page)
		return page.Items
	}
	if n := len(list("")); n != 3 {
		t.Fatalf("%d deliveries", n)
	}
	about := list("?unit=" + id.String())
	if len(about) != 2 || len(list("?endpoint="+added.ID.String())) != 2 || len(list("?status=dead,delivered")) != 0 ||
		len(list("?since=2090-01-01T00:00:00Z")) != 0 || len(list("?until=2090-01-01T00:00:00Z&limit=2")) != 2 {
		t.Errorf("%+v", about)
	}
	claimed, err := f.Store.Deliveries.Claim(ctx, added.ID, uuid.New(), time.Minute, "")
	if err != nil {
		t.Fatal(err)
	}
	path := "/deliveries/" + claimed.ID.String()
	var d work.Delivery
	f.get(path).is(200).into(&d)
	if d.Body == nil || !strings.Contains(*d.Body, `"type" : "work_unit.`) || d.Attempts != 1 {
		t.Errorf("%+v", d)
	}
	if _, err := f.Store.Deliveries.Finish(ctx, triedAndDead(claimed.ID)); err != nil {
		t.Fatal(err)
	}
	if dead := list("?status=dead"); len(dead) != 1 || *dead[0].LastStatus != 500 || dead[0].NextAt != nil {
		t.Errorf("%+v", dead)
	}
	f.post("/deliveries/redeliver", "").refused(422, "all", "all=true")
	f.post("/deliveries/redeliver?endpoint=", "").refused(422, "endpoint", "empty")
	f.post("/deliveries/redeliver?status=lost", "").refused(422, "status", "dead")
	var again hooks.Redelivery
	f.post("/deliveries/redeliver?since=2020-01-01T00:00:00Z", "").is(200).into(&again)
	if again.Count != 1 || again.More {
		t.Errorf("%+v", again)
	}
	f.post(path+"/redeliver", "").is(202).into(&d)
	if d.State != work.DeliveryPending || d.ID != claimed.ID {
		t.Errorf("%+v", d)
	}
	for _, missing := range []string{"/deliveries/" + uuid.NewString(), "/deliveries/nothing"} {
		f.get(missing).refused(404, "", "")
		f.post(missing+"/redeliver", "").refused(404, "", "")
	}
	var unit work.Unit
	f.get("/work-units/" + id.String()).is(200).into(&unit)
	if unit.CallbackURL == nil || *unit.CallbackURL != "https://example.com/done?token=1" {
		t.Errorf("callback %v", unit.CallbackURL)
	}
	for path, schema := range map[string]string{path: "Delivery", "/deliveries": "DeliveryList", "/webhook-endpoints": "EndpointList",
		"/webhook-endpoints/" + added.ID.String(): "Endpoint", "/callback-secret": "Secrets", "/work-units/" + id.String(): "Unit"} {
		if err := f.misfit(schema, f.get(path).body); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func triedAndDead(id uuid.UUID) store.Try {
	return store.Try{ID: id, Attempt: 1, Dead: true, Status: 500, Error: "the receiver answered 500", Response: "<b>oops</b>"}
}

func TestWebhooksOnPages(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	if page := string(f.get("/webhooks").is(200).body); !strings.Contains(page, "There is none") {
		t.Error(page)
	}
	var added hooks.AddedEndpoint
	f.post("/webhook-endpoints", `{"url":"https://example.com/hooks"}`).is(201).into(&added)
	id := f.submit(mock(""))
	if page := string(f.get("/units/" + id.String()).is(200).body); strings.Contains(page, `id="told"`) {
		t.Error("a section about nothing")
	}
	f.run(id, "done")
	claimed, err := f.Store.Deliveries.Claim(t.Context(), added.ID, uuid.New(), time.Minute, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Store.Deliveries.Finish(t.Context(), triedAndDead(claimed.ID)); err != nil {
		t.Fatal(err)
	}
	again := "/webhooks/deliveries/" + claimed.ID.String() + "/redeliver"
	for _, path := range []string{"/webhooks", "/webhooks?status=dead&endpoint=" + added.ID.String(), "/units/" + id.String()} {
		if page := string(f.get(path).is(200).body); !strings.Contains(page, again) || !strings.Contains(page, "the receiver answered 500") {
			t.Errorf("%s: %s", path, page)
		}
	}
	if page := string(f.get("/webhooks?status=pending").is(200).body); strings.Contains(page, again) {
		t.Error("a dead one among the pending")
	}
	f.get("/webhooks?status=lost").refused(422, "status", "dead")
	form := f.form(again, "back", "/webhooks?status=dead")
	if got := form.is(303).header.Get("Location"); got != "/webhooks?done=redelivered&status=dead" {
		t.Errorf("leads to %s", got)
	}
	if page := string(f.get("/webhooks?done=redelivered").is(200).body); !strings.Contains(page, "It is delivered again.") {
		t.Error(page)
	}
	f.do("DELETE", "/webhook-endpoints/"+added.ID.String(), "").is(204)
	if page := f.form(again, "back", "https://evil.example.com").is(409); !strings.Contains(string(page.body), "disabled or deleted") {
		t.Errorf("%s", page.body)
	}
}
