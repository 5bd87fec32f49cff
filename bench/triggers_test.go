package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

const (
	hooksPerSecond = 2000
	hooksFor       = 20 * time.Second
	hooksTwice     = 10 // one delivery in so many is sent a second time
	hookSecret     = "a secret of enough characters"
)

// TestTriggers offers signed webhooks at a steady pace, whether or not the ones
// before were answered, to an API process with its Postgres and Redis. Each is
// answered 202, 200 (sent again) or 429 (come again); nothing else, and no
// delivery makes two units.
func TestTriggers(t *testing.T) {
	dir := t.TempDir()
	env := append(os.Environ(), "DATABASE_URL="+testkit.DB(t, migrate), "REDIS_URL="+testkit.Redis(t), "PIECEWORK_DATA="+dir, "PIECEWORK_LISTEN=127.0.0.1:0")
	_, url := startServer(t, buildProgram(t, dir), "api", env)
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/triggers/hub", strings.NewReader(`{"preset":"github","secrets":["`+hookSecret+`"],
		"events":["pull_request"],"filter":"body.action == \"opened\"","mapping":{"title":"body.pull_request.title","number":"body.number"},
		"unit":{"backend":"mock","prompt":"Review {number}: {title}"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := http.DefaultClient.Do(put); err != nil || answer.StatusCode != 200 {
		t.Fatalf("put the trigger: %v, %v", answer, err)
	}

	load := newHookLoad(url + "/triggers/hub")
	begun := time.Now()
	for i := range int(hooksPerSecond * hooksFor.Seconds()) {
		if wait := time.Until(begun.Add(time.Duration(i) * time.Second / hooksPerSecond)); wait > 0 {
			time.Sleep(wait)
		}
		number := i
		if i%hooksTwice == hooksTwice-1 {
			number = i - hooksTwice/2 // which was offered 2.5 ms ago
		}
		load.offer(t, number, begun.Add(time.Duration(i)*time.Second/hooksPerSecond))
	}
	load.flying.Wait()
	took := time.Since(begun)
	answered := load.status[200].Load() + load.status[202].Load()
	t.Logf("offered %d in %.1f s (%.0f a second): %d answered (%.0f a second), %d of them repeats; %d shed; %d errors", len(load.late), took.Seconds(),
		float64(len(load.late))/took.Seconds(), answered, float64(answered)/took.Seconds(), load.status[200].Load(), load.status[429].Load(), load.failed.Load())
	slices.Sort(load.late)
	t.Logf("from the time it was due to the answer: p50 %s, p99 %s, longest %s", load.quantile(0.5), load.quantile(0.99), load.quantile(1))
	if n := answered + load.status[429].Load(); load.failed.Load() > 0 || int(n) != len(load.late) {
		t.Errorf("%d failed or answered otherwise", int64(len(load.late))-n)
	}
	if answered < int64(len(load.late))/4 {
		t.Error("almost all were shed")
	}
	checkHookUnits(t, url, load)
}

// hookLoad sends webhooks and counts what is answered.
type hookLoad struct {
	url    string
	client http.Client
	flying sync.WaitGroup
	status [600]atomic.Int64
	failed atomic.Int64

	mu    sync.Mutex
	late  []time.Duration
	units map[string]string // by delivery
	split int               // deliveries with two units
}

func newHookLoad(url string) *hookLoad {
	return &hookLoad{url: url, units: map[string]string{}, client: http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2000, MaxConnsPerHost: 2000},
	}}
}

// offer sends delivery number without waiting for the answer.
func (l *hookLoad) offer(t *testing.T, number int, due time.Time) {
	body := fmt.Appendf(nil, `{"action":"opened","number":%d,"pull_request":{"title":"Mend it","body":%q}}`, number, strings.Repeat("lorem ipsum ", 80))
	delivery := fmt.Sprint("delivery-", number)
	header, err := webhook.Imitate(work.Scheme{Preset: webhook.GitHub}, hookSecret, "pull_request", delivery, body, due)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	l.flying.Go(func() {
		answer, err := l.client.Do(req)
		var text []byte
		if err == nil {
			text, err = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
		took := time.Since(due)
		var got struct {
			UnitID string `json:"unit_id"`
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.late = append(l.late, took)
		if err != nil {
			if l.failed.Add(1) == 1 {
				t.Logf("the first error: %v", err)
			}
			return
		}
		if l.status[answer.StatusCode].Add(1) == 1 && answer.StatusCode >= 300 {
			t.Logf("the first %s: %s", answer.Status, text)
		}
		if answer.StatusCode >= 300 || json.Unmarshal(text, &got) != nil {
			return
		}
		if had := l.units[delivery]; had != "" && had != got.UnitID {
			l.split++
		}
		l.units[delivery] = got.UnitID
	})
}

func (l *hookLoad) quantile(q float64) time.Duration {
	return l.late[int(q*float64(len(l.late)-1))].Round(100 * time.Microsecond)
}

// checkHookUnits asks the ledger: as many units as deliveries were answered.
func checkHookUnits(t *testing.T, url string, l *hookLoad) {
	t.Helper()
	if l.split > 0 {
		t.Errorf("%d deliveries have two units", l.split)
	}
	distinct := map[string]bool{}
	for _, unit := range l.units {
		distinct[unit] = true
	}
	answer, err := http.Get(url + "/queues")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var queues struct {
		Items []struct {
			Queued int `json:"queued"`
		} `json:"items"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&queues); err != nil || len(queues.Items) != 1 {
		t.Fatalf("%+v, error %v", queues, err)
	}
	if n := queues.Items[0].Queued; n != len(l.units) || n != len(distinct) {
		t.Errorf("%d deliveries were answered with %d units, and there are %d", len(l.units), len(distinct), n)
	}
	t.Logf("%d deliveries have made %d units", len(l.units), queues.Items[0].Queued)
}
