package api

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestIdempotencyKeyNamesOneUnit(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const callers = 50
	answers := make([]*answer, callers)
	var sent sync.WaitGroup
	for i := range callers {
		sent.Go(func() {
			a, err := f.try("POST", "/work-units", mock(""), "Idempotency-Key", "fifty")
			if err != nil {
				t.Error(err)
				return
			}
			answers[i] = a
		})
	}
	sent.Wait()
	if t.Failed() {
		return
	}
	ids := f.listed("/work-units")
	if len(ids) != 1 {
		t.Fatalf("%d units", len(ids))
	}
	fresh := 0
	for _, a := range answers {
		if id := a.is(202).fields()["id"]; id != ids[0] {
			t.Errorf("an answer names %v", id)
		}
		if a.header.Get("Idempotent-Replayed") == "" {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers say that they made the unit", fresh)
	}
}

func TestIdempotencyKeyReused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	key := []string{"Idempotency-Key", "k"}
	id := f.submit(mock(`,"payload":{"n":9007199254740993}`), key...)
	p := f.post("/work-units", mock(""), key...).refused(422, "Idempotency-Key", "another body")
	if p.Type == "about:blank" {
		t.Errorf("%+v", p)
	}
	f.post("/work-units", mock(`,"payload":{"n":9007199254740992}`), key...).refused(422, "Idempotency-Key", "another body")
	again := f.post("/work-units", ` { "payload": {"n":9007199254740993}, "prompt":"Count the words", "backend":"mock"}`, key...).is(202)
	if again.fields()["id"] != id.String() || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%v %s", again.header, again.body)
	}
}

func TestIdempotencyKeyIsFreeAfterARefusal(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	key := []string{"Idempotency-Key", "k"}
	f.post("/work-units", mock(`,"timeout":-1`), key...).refused(422, "#/timeout", "")
	f.submit(mock(""), key...)
}

func TestIdempotencyKeyOutlivesTheFile(t *testing.T) {
	t.Parallel()
	f, dir := rooted(t, map[string]string{"a.txt": "a"})
	key := []string{"Idempotency-Key", "k"}
	body := mock(`,"payload":{"file_path":"docs:a.txt"}`)
	first := f.submit(body, key...)
	if err := os.Remove(filepath.Join(dir, "a.txt")); err != nil {
		t.Fatal(err)
	}
	if second := f.submit(body, key...); second != first {
		t.Errorf("the repeat made %s beside %s", second, first)
	}
	f.post("/work-units", mock(`,"payload":{"file_path":"docs:a.txt","x":1}`), key...).refused(422, "Idempotency-Key", "another body")
}

func TestIdempotencyKeyForms(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"": "", "abc": "abc", `"abc"`: "abc", `"a\"b\\c"`: `a"b\c`, "a b": "a b", `a"b"`: `a"b"`, strings.Repeat("x", 255): strings.Repeat("x", 255),
	} {
		if got, err := idempotencyKey(header); err != nil || got != want {
			t.Errorf("%q: %q, %v", header, got, err)
		}
	}
	f := newFront(t)
	for _, header := range []string{`""`, `"`, `"abc`, `"a"b"`, `"a\b"`, `"a\"`, `"a";x=1`, strings.Repeat("x", 256), "ä"} {
		f.post("/work-units", mock(""), "Idempotency-Key", header).refused(400, "Idempotency-Key", "Idempotency-Key: ")
	}
	first := f.submit(mock(""), "Idempotency-Key", `"same"`)
	if second := f.submit(mock(""), "Idempotency-Key", "same"); second != first {
		t.Errorf("quoted %s, bare %s", first, second)
	}
}

// Of two keys one would be dropped, and an empty one comes of a script whose
// variable was: who sent them would believe the unit safe to ask for again.
func TestIdempotencyKeysThatNameNothing(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	send := func(path, kind, body string, keys ...string) *answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {kind}, "Idempotency-Key": keys}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return &answer{t, resp.StatusCode, resp.Header, text}
	}
	const line = `{"backend":"mock","prompt":"x"}`
	for _, to := range []struct{ path, kind, body string }{
		{"/work-units", "application/json", line},
		{"/batches", "application/json", `{"units":[` + line + `]}`},
		{"/batches", "application/x-ndjson", line},
	} {
		send(to.path, to.kind, to.body, "a", "b").refused(400, "Idempotency-Key", "more than once")
		send(to.path, to.kind, to.body, "a", "").refused(400, "Idempotency-Key", "more than once")
		send(to.path, to.kind, to.body, "").refused(400, "Idempotency-Key", "is empty")
	}
	if a := send("/v1/batches", "application/json", `{"input_file_id":"file-x","endpoint":"/v1/chat/completions","completion_window":"24h"}`, "a", "b"); a.status != 400 || !strings.Contains(string(a.body), "more than once") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if len(f.listed("/work-units"))+len(f.listed("/batches")) > 0 {
		t.Error("something was made")
	}
	send("/work-units", "application/json", line, "same", "same").is(202)
}
