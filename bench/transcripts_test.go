package bench

import (
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

const (
	pageReads = 10
	mostRead  = 25 << 20 // bytes of the API that reading the largest transcript may take, garbage included, beyond what pages of short ones take
)

// TestTranscripts measures what pages and transcripts of long runs cost an API
// process, up to one of 50 MB in 26,000 steps. Each is read some times, one after the
// other.
func TestTranscripts(t *testing.T) {
	database, redis, dir := testkit.DB(t, migrate), testkit.Redis(t), t.TempDir()
	ledger, err := store.Open(t.Context(), database, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ledger.Close() }()
	binary := buildProgram(t, dir)
	api, url := startServer(t, binary, "api", append(os.Environ(), "DATABASE_URL="+database, "REDIS_URL="+redis, "PIECEWORK_DATA="+dir, "PIECEWORK_LISTEN=127.0.0.1:0"))
	long, _ := finished(t, ledger, submitTo(t, url, `{"backend":"mock","prompt":"Two thousand steps"}`), 2_000)
	huge, run := finished(t, ledger, submitTo(t, url, `{"backend":"mock","prompt":"Fifty megabytes"}`), 26_000)
	rest := int64(0)
	for _, read := range []struct {
		name, path, encoding string
		rest                 bool
	}{
		{"the first page", "/", "gzip", true},
		{"a unit of 2,000 steps", "/units/" + long, "gzip", true},
		{"a unit with a transcript of 50 MB", "/units/" + huge, "gzip", false},
		{"its first steps", "/units/" + huge + "/steps?at=1", "gzip", false},
		{"that transcript as it is stored", "/runs/" + run + "/transcript", "gzip", false},
		{"that transcript as JSON", "/runs/" + run + "/transcript", "", false},
		{"that transcript as JSON lines", "/runs/" + run + "/transcript?format=jsonl", "", false},
		{"that transcript as text", "/runs/" + run + "/transcript?format=text", "", false},
	} {
		var first, whole []time.Duration
		var size int64
		for range pageReads {
			began := time.Now()
			ask, err := http.NewRequest(http.MethodGet, url+read.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if read.encoding != "" {
				ask.Header.Set("Accept-Encoding", read.encoding)
			}
			answer, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(ask)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(answer.Body, make([]byte, 1)); err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s, %v", read.name, answer.Status, err)
			}
			first = append(first, time.Since(began))
			if size, err = io.Copy(io.Discard, answer.Body); err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			whole = append(whole, time.Since(began))
		}
		slices.Sort(first)
		slices.Sort(whole)
		now := residentOf(t, api)
		if read.rest {
			rest = now
		}
		t.Logf("%-34s first byte p50 %4d ms, p95 %4d ms; all p50 %5d ms; %6.2f MB; API %+.1f MB, %.1f in all", read.name, first[pageReads/2].Milliseconds(),
			first[pageReads*95/100].Milliseconds(), whole[pageReads/2].Milliseconds(), float64(size)/1e6, float64(now-rest)/1e6, float64(now)/1e6)
		if now-rest > mostRead {
			t.Errorf("%s takes %.1f MB of the API, more than %.1f", read.name, float64(now-rest)/1e6, float64(mostRead)/1e6)
		}
	}
}

// finished gives a unit a run of so many steps, of 2 KB each, that has ended.
func finished(t *testing.T, ledger *store.Store, id string, steps int) (unit, run string) {
	t.Helper()
	ctx := t.Context()
	process := uuid.Must(uuid.NewV7())
	if err := ledger.Processes.Register(ctx, work.Process{ID: process, Hostname: "host", Slots: 8, Queues: []string{"default"}, Backends: []work.Offer{{Name: "mock", Available: true}}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	c, err := ledger.Runs.Claim(ctx, store.Claim{UnitID: uuid.MustParse(id), RunID: uuid.Must(uuid.NewV7()), Process: process, Backends: []string{"mock"}})
	if err != nil || c == nil {
		t.Fatalf("claim: %v, %v", c, err)
	}
	blob, err := ledger.Transcripts.Encode(chat(steps))
	if err != nil {
		t.Fatal(err)
	}
	verdict, err := ledger.Runs.Finish(ctx, store.Finish{UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, Status: work.RunSucceeded, Next: work.Succeeded,
		Result: "done", ToolCalls: steps / 2, Steps: steps, Rev: steps, Blob: blob})
	if err != nil || verdict != store.Recorded {
		t.Fatalf("finish: %s, %v", verdict, err)
	}
	t.Logf("%d steps, %.1f MB as they are stored", steps, float64(len(blob))/1e6)
	return id, c.RunID.String()
}

// chat is an agent that calls a tool in every other step.
func chat(steps int) []transcript.Step {
	random := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 5000)
	for i := range words {
		letters := make([]byte, 3+random.IntN(8))
		for j := range letters {
			letters[j] = byte('a' + random.IntN(26))
		}
		words[i] = string(letters)
	}
	prose := func(bytes int) string {
		var text strings.Builder
		for n := 1; text.Len() < bytes; n++ {
			text.WriteString(words[int(float64(len(words))*random.Float64()*random.Float64())])
			text.WriteByte(" \n"[min(n%12, 1)^1])
		}
		return text.String()
	}
	begun := time.Now().Add(-time.Hour)
	list := make([]transcript.Step, steps)
	for i := range list {
		list[i] = transcript.Step{Number: i + 1, Rev: i + 1, Time: begun.Add(time.Duration(i) * 10 * time.Millisecond)}
		call := "call_" + uuid.NewString()
		if i%2 == 0 {
			list[i].Type = transcript.Action
			list[i].Content = []transcript.Content{{Type: transcript.Text, Text: prose(300)}, {Type: transcript.ToolCall, ID: call, Name: "Read", Args: `{"path":"` + words[i%len(words)] + `"}`}}
		} else {
			list[i].Type, list[i].CallID, list[i].Name, list[i].Text = transcript.ToolResult, list[i-1].Content[1].ID, "Read", prose(3400)
		}
	}
	return list
}
