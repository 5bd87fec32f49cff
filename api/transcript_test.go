package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"piecework/internal/transcript"
	"piecework/store"
)

var threeSteps = []transcript.Step{
	step(1, transcript.SystemText, "begin <b>"),
	{Number: 2, Time: step(2, "", "").Time, Type: transcript.Action, Content: []transcript.Content{
		{Type: transcript.Text, Text: "I look."}, {Type: transcript.ToolCall, ID: "c", Name: "count", Args: `{"a":1}`},
	}},
	{Number: 3, Time: step(3, "", "").Time, Type: transcript.ToolResult, CallID: "c", Name: "count", Text: "3\x1b[31m words"},
}

// told is a run with these steps, and the path to its transcript.
func (f *front) told(steps ...transcript.Step) (*store.Claimed, string) {
	f.t.Helper()
	c := f.run(f.submit(mock("")), "done", steps...)
	return c, "/runs/" + c.RunID.String() + "/transcript"
}

func TestTranscriptAsJSON(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	_, path := f.told(threeSteps...)
	for _, query := range []string{"", "?format=json", "?format="} {
		a := f.get(path + query).is(200)
		var got []transcript.Step
		a.into(&got)
		if diff := cmp.Diff(threeSteps, got); diff != "" {
			t.Error(diff)
		}
		if a.header.Get("Content-Type") != "application/json" || a.header.Get("Content-Encoding") != "" || a.header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%v", a.header)
		}
	}
}

func TestTranscriptGzipIsPassedThroughAsItIsStored(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	c, path := f.told(threeSteps...)
	opened, err := f.Store.Transcripts.Open(t.Context(), "default", c.RunID)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := io.ReadAll(opened)
	if err != nil {
		t.Fatal(err)
	}
	a := f.get(path, "Accept-Encoding", "br, gzip").is(200)
	if !bytes.Equal(a.body, stored) || a.header.Get("Content-Encoding") != "gzip" || a.header.Get("Vary") != "Accept-Encoding" {
		t.Errorf("%v: %d bytes, stored %d", a.header, len(a.body), len(stored))
	}
	zip, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if plain := f.get(path, "Accept-Encoding", "gzip;q=0"); err != nil || !bytes.Equal(text, plain.body) {
		t.Errorf("%v: %s, plain %s", err, text, plain.body)
	}
	resp, err := http.Get(f.url + path) // Go's client asks for gzip and inflates by itself
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var steps []transcript.Step
	if err := json.NewDecoder(resp.Body).Decode(&steps); err != nil || !resp.Uncompressed || len(steps) != 3 {
		t.Errorf("%v, %d steps", err, len(steps))
	}
}

func TestTranscriptAsLines(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	_, path := f.told(threeSteps...)
	a := f.get(path+"?format=jsonl", "Accept-Encoding", "gzip").is(200)
	got, err := transcript.DecodeLines(a.body)
	if diff := cmp.Diff(threeSteps, got); err != nil || diff != "" || bytes.Count(a.body, []byte("\n")) != 3 {
		t.Errorf("%v %s", err, diff)
	}
	if a.header.Get("Content-Type") != "application/jsonl" || a.header.Get("Content-Encoding") != "" {
		t.Errorf("%v", a.header)
	}
}

func TestTranscriptAsText(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	_, path := f.told(threeSteps...)
	a := f.get(path + "?format=text").is(200)
	text := string(a.body)
	if !strings.Contains(text, `▶ count {"a":1}`) || !strings.Contains(text, "begin <b>") || strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
	if a.header.Get("Content-Type") != "text/plain; charset=utf-8" || a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v", a.header)
	}
}

func TestTranscriptOfARunThatGoesOn(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	c := f.claim(f.submit(mock("")))
	path := "/runs/" + c.RunID.String() + "/transcript"
	if body := strings.TrimSpace(string(f.get(path).is(200).body)); body != "[]" {
		t.Errorf("before the first step: %s", body)
	}
	for i, s := range threeSteps[:2] {
		if err := f.Store.Transcripts.Append(t.Context(), store.Progress{RunID: c.RunID, Steps: []transcript.Step{s}}); err != nil {
			t.Fatal(err)
		}
		var got []transcript.Step
		f.get(path).is(200).into(&got)
		if diff := cmp.Diff(threeSteps[:i+1], got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestTakesGzip(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"": false, "gzip": true, "br, gzip": true, "GZIP": true, "gzip;q=0.5": true, "gzip; q=0": false, "gzip;q=0.000": false,
		"*": true, "*;q=0": false, "gzip;q=0, *": false, "identity": false, "notgzip": false, "gzip;q=x": false,
	} {
		if got := takesGzip(accept); got != want {
			t.Errorf("%q: %t", accept, got)
		}
	}
}

// A long transcript goes through an API process step by step: neither its pages nor
// its bytes take memory by its length, garbage included.
func TestLongTranscriptsTakeLittleMemory(t *testing.T) {
	f := newFront(t)
	steps := make([]transcript.Step, 8_000)
	for i := range steps {
		steps[i] = step(i+1, transcript.ToolResult, strings.Repeat("word ", 800))
	}
	c, path := f.told(steps...)
	const size = 32_000_000 // bytes of text
	for query, most := range map[string]uint64{
		path: 4 << 20, path + "?format=jsonl": 4 << 20, // as stored it is a fraction of this
		"/units/" + c.ID.String(): 24 << 20, "/units/" + c.ID.String() + "/steps?at=1": 24 << 20, "/units/" + c.ID.String() + "/steps?n=5&whole=1": 24 << 20,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var sent countedAnswer
		f.ServeHTTP(&sent, httptest.NewRequest("GET", f.url+query, nil))
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > most || sent.status != http.StatusOK || strings.HasPrefix(query, path) &&
			sent.bytes < size {
			t.Errorf("%s: status %d, %d bytes sent, %d bytes of memory taken, at most %d", query, sent.status, sent.bytes, took, most)
		}
	}
}

// countedAnswer counts an answer.
type countedAnswer struct {
	header        http.Header
	status, bytes int
}

func (c *countedAnswer) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

func (c *countedAnswer) WriteHeader(status int) { c.status = status }

func (c *countedAnswer) Write(b []byte) (int, error) {
	c.bytes += len(b)
	return len(b), nil
}
