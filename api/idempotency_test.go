package api

import (
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
