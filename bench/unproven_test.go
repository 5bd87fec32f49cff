package bench

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"piecework/internal/testkit"
)

const (
	unprovenSenders = 100
	unprovenBody    = 25 << 20
	unprovenBudget  = 16 * 10 << 20 // 16 of the largest JSON bodies, by default
	unprovenTop     = unprovenBudget * 3 / 2
	unprovenFor     = 10 * time.Second
)

// TestUnprovenBodies sends an API process a hundred bodies at once, each as large
// as a trigger may take, without its length and with a wrong signature. Each is
// answered 401 or 503 (come again), and the memory keeps to the budget.
func TestUnprovenBodies(t *testing.T) {
	dir := t.TempDir()
	env := append(os.Environ(), "DATABASE_URL="+testkit.DB(t, migrate), "REDIS_URL="+testkit.Redis(t), "PIECEWORK_DATA="+dir, "PIECEWORK_LISTEN=127.0.0.1:0")
	api, url := startServer(t, buildProgram(t, dir), "api", env)
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/triggers/hub", strings.NewReader(fmt.Sprintf(
		`{"preset":"github","secrets":[%q],"max_body_bytes":%d,"unit":{"backend":"mock","prompt":"x"}}`, hookSecret, unprovenBody)))
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := http.DefaultClient.Do(put); err != nil || answer.StatusCode != 200 {
		t.Fatalf("put the trigger: %v, %v", answer, err)
	}
	idle := residentOf(t, api)
	var status [600]atomic.Int64
	var all sync.WaitGroup
	for range unprovenSenders {
		all.Go(func() {
			for begun := time.Now(); time.Since(begun) < unprovenFor; { // those who were sent away come again
				code := sendUnproven(t, url+"/triggers/hub")
				if status[code].Add(1); code == 401 {
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	peak, begun := idle, time.Now()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(10 * time.Millisecond):
		}
		peak = max(peak, residentOf(t, api))
	}
	t.Logf("%d bodies of %d MiB, unproven, in %.0f s: %d answered 401, %d 503, %d cut off; %d MiB of memory before, %d at most", unprovenSenders, unprovenBody>>20, time.Since(begun).Seconds(),
		status[401].Load(), status[503].Load(), status[0].Load(), idle>>20, peak>>20)
	if status[401].Load() == 0 {
		t.Error("none came to its end")
	}
	if peak-idle > unprovenTop {
		t.Errorf("grew by more than %d MiB", unprovenTop>>20)
	}
}

// sendUnproven sends one body and returns the status, 0 when there was none.
func sendUnproven(t *testing.T, url string) int {
	body := io.LimitReader(spaces{}, unprovenBody)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.NopCloser(body)) // of no known length
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("X-Hub-Signature-256", "sha256="+strings.Repeat("00", 32))
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	if code := answer.StatusCode; code != 401 && code != 503 {
		t.Errorf("answered %s", answer.Status)
	}
	return answer.StatusCode
}

// spaces have no end.
type spaces struct{}

var space = bytes.Repeat([]byte(" "), 64<<10)

func (spaces) Read(p []byte) (int, error) { return copy(p, space), nil }
