package main

import (
	"database/sql"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// The client's commands against real servers; and a worker process that is
// killed after the receiver's 2xx, before the ledger knows of it: the next one
// delivers again, with the same id.
func TestWebhookCommandsAndAKilledDeliverer(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, nil)
	env := []string{"DATABASE_URL=" + database, "REDIS_URL=" + testkit.Redis(t), "PIECEWORK_DATA=" + dataDir(t),
		"PIECEWORK_WEBHOOK_ALLOW=127.0.0.0/8", "PIECEWORK_LEASE=3s", "PIECEWORK_HEARTBEAT=300ms"}
	front := launch(t, env, "api", "--listen", "127.0.0.1:0", "--public-url", "https://work.example.com/").up()
	worker := launch(t, env, "worker").up()

	var mu sync.Mutex
	var ids []string
	before := func() {} // is called before the first answer
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		before()
		before = func() {}
		ids = append(ids, r.Header.Get("webhook-id"))
		w.WriteHeader(http.StatusNoContent)
	}))
	defer box.Close()
	got := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(ids)
	}
	do := func(want int, args ...string) string {
		t.Helper()
		s := newStage(t)
		if code := run(s.App, append(args, "--server", front.server)); code != want {
			t.Fatalf("%q: exit code %d\n%s%s", args, code, s.out.String(), s.errs.String())
		}
		return s.out.String() + s.errs.String()
	}

	out := do(0, "webhook", "add", box.URL, "--events", "work_unit.*, batch.*", "--description", "a box")
	secret := out[strings.Index(out, "whsec_"):]
	secret = secret[:strings.IndexAny(secret+"\n", "\n ")]
	var list struct{ Items []work.Endpoint }
	if err := json.Unmarshal([]byte(do(0, "webhook", "ls", "--json")), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, error %v", list, err)
	}
	id := list.Items[0].ID.String()
	if out := do(0, "webhook", "list"); !strings.Contains(out, "a box") || strings.Contains(out, "whsec_") {
		t.Error(out)
	}
	if out := do(0, "webhook", "test", id); !strings.Contains(out, "webhook.test") {
		t.Error(out)
	}
	testkit.Eventually(t, "the test message", func() bool { return len(got()) == 1 })
	if out := do(0, "webhook", "rotate", id, "--overlap", "1h"); !strings.Contains(out, "the one before signs too: "+secret) {
		t.Error(out)
	}
	testkit.Eventually(t, "its delivery", func() bool { return strings.Contains(do(0, "webhook", "show", id), "delivered") })
	if out := do(0, "webhook", "show", id); !strings.Contains(out, "also signs until") || !strings.Contains(out, "webhook.test") {
		t.Error(out)
	}
	if one, two := do(0, "webhook", "secret"), do(0, "webhook", "secret"); one != two || !strings.HasPrefix(one, "whsec_") {
		t.Error(one, two)
	}
	if out := do(0, "webhook", "redeliver", "--endpoint", id, "--status", "delivered", "--since", "1h"); !strings.Contains(out, "1 deliveries") {
		t.Error(out)
	}
	testkit.Eventually(t, "the test message again", func() bool { return len(got()) == 2 })
	if again := got(); again[0] != again[1] {
		t.Errorf("the same delivery has the ids %v", again)
	}
	do(exitUsage, "webhook", "redeliver")
	do(exitUsage, "webhook", "redeliver", "--since", "soon")
	do(exitUsage, "webhook", "add", "http://10.1.2.3/")
	do(exitNotFound, "webhook", "redeliver", work.Unit{}.ID.String())

	// The row is held by another transaction until the worker process is dead,
	// so the 2xx cannot have been noted.
	db, err := sql.Open("postgres", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hold, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Rollback() }()
	answered := make(chan struct{})
	mu.Lock()
	before = func() {
		if _, err := hold.Exec(`SELECT FROM webhook_deliveries WHERE state = 'pending' FOR UPDATE`); err != nil {
			t.Error(err)
		}
		close(answered)
	}
	mu.Unlock()
	unit := front.post("/work-units", `{"backend":"mock","prompt":"hi"}`)
	<-answered
	const waiting = ` FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%webhook_deliveries SET%'`
	testkit.Eventually(t, "the worker process at the row", func() bool {
		var n int
		err := db.QueryRow(`SELECT count(*)` + waiting).Scan(&n)
		return err == nil && n > 0
	})
	worker.kill()
	// Postgres would carry out what it was sent although nobody waits for it.
	if _, err := db.Exec(`SELECT pg_terminate_backend(pid)` + waiting); err != nil {
		t.Fatal(err)
	}
	if err := hold.Rollback(); err != nil {
		t.Fatal(err)
	}
	launch(t, env, "worker").up()
	testkit.Eventually(t, "the same message again", func() bool { return len(got()) >= 4 })
	testkit.Eventually(t, "its delivery", func() bool {
		return strings.Contains(do(0, "webhook", "deliveries", "--unit", unit.ID.String(), "--status", "delivered"), "work_unit.succeeded")
	})
	if all := got(); len(all) != 4 || all[2] != all[3] || all[2] == all[0] {
		t.Errorf("messages %v", all)
	}
	var page struct{ Items []work.Delivery }
	if err := json.Unmarshal([]byte(do(0, "webhook", "deliveries", "--unit", unit.ID.String(), "--json")), &page); err != nil ||
		len(page.Items) != 1 || page.Items[0].Attempts != 2 {
		t.Fatalf("%+v, error %v", page, err)
	}
	_, whole := front.call("GET", "/deliveries/"+page.Items[0].ID.String(), "")
	if !strings.Contains(string(whole), "https://work.example.com/work-units/"+unit.ID.String()) {
		t.Errorf("the body names no public address: %s", whole)
	}
	if out := do(0, "webhook", "set", id, "--disable"); !strings.Contains(out, "by hand") || !strings.Contains(out, "batch.*, work_unit.*") {
		t.Error(out)
	}
	do(exitConflict, "webhook", "test", id)
	do(0, "webhook", "set", id, "--enable", "--url", box.URL+"/other", "--events", "*")
	do(0, "webhook", "rm", id)
	do(exitNotFound, "webhook", "show", id)
}
