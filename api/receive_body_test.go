package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"piecework/api/body"
	"piecework/internal/testkit"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

// endless is a body that never ends; it counts what was read of it.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read += int64(len(p))
	return len(p), nil
}

func TestBodySizeOfATrigger(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	s := f.sender(f.trigger("hub", "github", `,"max_body_bytes":1000`, "x"))
	fill := func(n int) string { return `{"a":"` + strings.Repeat("x", n-8) + `"}` }
	s.receipt(s.send("push", "1", fill(1000)), 202, "accepted")
	p := s.send("push", "2", fill(1001)).refused(413, "", "larger than 1000 bytes")
	if !strings.Contains(p.Detail, "max_body_bytes") || !strings.Contains(p.Detail, "26214400 at most") {
		t.Errorf("%+v", p)
	}
	var got work.Trigger
	if f.get("/triggers/hub").is(200).into(&got); got.MaxBodyBytes != 1000 {
		t.Errorf("%+v", got)
	}
	// The largest is beyond what the server takes of JSON, and of any sender.
	s = f.sender(f.trigger("hub", "api_key", `,"max_body_bytes":26214400`, "{event}"))
	s.receipt(s.send("", "", fill(int(f.MaxBody)+1)), 202, "accepted")
	if got = f.trigger("hub", "api_key", "", "x"); got.MaxBodyBytes != work.DefaultTriggerBody {
		t.Errorf("by default %d", got.MaxBodyBytes)
	}
	s.receipt(s.send("", "", fill(work.DefaultTriggerBody)), 202, "accepted")
	for _, bad := range []string{"0", "-1", "26214401", "1.5"} {
		f.do("PUT", "/triggers/hub", fmt.Sprintf(`{"preset":"api_key","max_body_bytes":%s,"unit":{"backend":"mock","prompt":"x"}}`, bad)).refused(422, "#/max_body_bytes", "")
	}
}

// Of a body that is too large no more is read than shows it, whether its length
// was announced or not; nothing of one that proves nothing.
func TestTooLargeWebhooksAreReadNoFurther(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	s := f.sender(f.trigger("hub", "github", `,"max_body_bytes":100000`, "x"))
	for what, test := range map[string]struct {
		length, most int64
		status       int
		header       []string
	}{
		"chunked":   {-1, 100_001, 413, s.headers("push", "1", "{}")},
		"announced": {100_001, 0, 413, s.headers("push", "1", "{}")},
		"unsigned":  {-1, 0, 401, nil},
	} {
		body := &endless{}
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/triggers/hub", body)
		r.ContentLength = test.length
		for i := 0; i < len(test.header); i += 2 {
			r.Header.Set(test.header[i], test.header[i+1])
		}
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		if w.Code != test.status || body.read > test.most || w.Code == 413 && w.Header().Get("Connection") != "close" {
			t.Errorf("%s: %d, %d bytes read, %v", what, w.Code, body.read, w.Header())
		}
	}
	// Whoever sends without an end gets the answer all the same.
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.url+"/triggers/hub", &endless{})
	if err != nil {
		t.Fatal(err)
	}
	for h := s.headers("push", "1", "{}"); len(h) > 0; h = h[2:] {
		req.Header.Set(h[0], h[1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != 413 {
		t.Errorf("without an end: %d", resp.StatusCode)
	}
}

// A hundred senders without the secret, each with a body as large as the trigger
// takes, have no more memory than the budget, all together. It runs alone: other
// tests use memory too.
//
//nolint:paralleltest // see above
func TestUnprovenBodiesShareTheBudget(t *testing.T) {
	const senders, budget = 100, 8 << 20
	f := newFront(t)
	f.trigger("hub", "github", "", "x")
	f.bodies.Budget = body.NewBudget(budget)
	body := bytes.Repeat([]byte(" "), work.DefaultTriggerBody-1) // its pieces have room for a byte
	before := heap()
	end := make(chan struct{}) // closed: the bodies end
	var refused, shed atomic.Int64
	var all errgroup.Group
	for range senders {
		all.Go(func() error {
			r, w := io.Pipe()
			defer r.Close()
			go func() {
				if _, err := w.Write(body); err == nil {
					<-end
				}
				_ = w.Close()
			}()
			req, err := http.NewRequestWithContext(t.Context(), "POST", f.url+"/triggers/hub", r)
			if err != nil {
				return err
			}
			req.Header.Set("X-Hub-Signature-256", "sha256="+strings.Repeat("00", 32))
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			switch {
			case resp.StatusCode == 401:
				refused.Add(1)
			case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
				shed.Add(1)
			default:
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		})
	}
	testkit.Eventually(t, "all have sent all but the end, or were sent away", func() bool {
		return budget-f.bodies.Budget.Left() == (senders-shed.Load())*work.DefaultTriggerBody
	})
	held := senders - shed.Load()
	if held < 1 || held > budget/work.DefaultTriggerBody || refused.Load() > 0 {
		t.Errorf("%d bodies are held, %d refused", held, refused.Load())
	}
	if grown := heap() - before; grown > 3*budget {
		t.Errorf("the heap has grown by %d MiB with a budget of %d", grown>>20, budget>>20)
	}
	close(end)
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if refused.Load() < 1 || refused.Load()+shed.Load() != senders {
		t.Errorf("%d refused, %d sent away", refused.Load(), shed.Load())
	}
	testkit.Eventually(t, "all is given back", func() bool { return f.bodies.Budget.Left() == budget })
	s := f.sender(work.Trigger{Name: "hub", Scheme: work.Scheme{Preset: webhook.GitHub}})
	s.receipt(s.send("push", "d-1", "{}"), 202, "accepted")
}

// heap is what is in use of it.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
