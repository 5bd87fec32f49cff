package chaos

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// model is a model server that notes when it has answered for which unit.
type model struct {
	pause time.Duration

	mu       sync.Mutex
	answered map[string][]time.Time
}

var number = regexp.MustCompile(`unit number (\d+)`)

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		return // a look whether it is there
	}
	text, err := io.ReadAll(r.Body)
	found := number.FindSubmatch(text)
	if err != nil || found == nil {
		http.Error(w, "no unit", http.StatusBadRequest)
		return
	}
	select {
	case <-r.Context().Done():
		return // the run was stopped
	case <-time.After(m.pause):
	}
	w.Header().Set("Content-Type", "text/event-stream")
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Context().Err() != nil {
		return
	}
	m.answered[string(found[1])] = append(m.answered[string(found[1])], time.Now())
	_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"answer %s\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", found[1])
}

// postgresRestarts ends Postgres at once and starts it again, ten times, while
// units are submitted and run.
func postgresRestarts(t *testing.T) {
	const crew, slots, restarts = 3, 16, 10
	m := &model{pause: time.Second, answered: map[string][]time.Time{}}
	server := httptest.NewServer(m)
	defer server.Close()
	s := newStage(t, crew, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots), "OPENAI_API_KEY=sk-none", "OPENAI_BASE_URL="+server.URL+"/v1")
	var stop atomic.Bool
	var told sync.Map // unit → its number, as the API has acknowledged it
	var asked, refused atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for !stop.Load() {
				n := asked.Add(1)
				b := body{"backend": "openai", "model": "m", "prompt": fmt.Sprintf("unit number %d", n), "labels": map[string]string{"part": "load"}}
				for !stop.Load() {
					status, answer := s.ask(t.Context(), http.MethodPost, "/work-units", b, "Idempotency-Key", fmt.Sprint(n))
					if status == http.StatusAccepted {
						told.Store(idIn(answer), n)
						break
					}
					if status != 0 && status != http.StatusServiceUnavailable {
						t.Errorf("answered with %d: %s", status, answer)
					}
					refused.Add(1)
					time.Sleep(200 * time.Millisecond)
				}
				time.Sleep(250 * time.Millisecond)
			}
		})
	}
	type outage struct{ from, to time.Time }
	var outages []outage
	for range restarts {
		time.Sleep(orElse(*length, 8*time.Second))
		o := outage{from: time.Now()}
		s.postgres.Kill()
		s.postgres.Start()
		o.to = time.Now()
		outages = append(outages, o)
	}
	time.Sleep(5 * time.Second)
	stop.Store(true)
	clients.Wait()
	s.until(5*time.Minute, "all units have ended", func() bool { return s.inState("load", "queued", "running") == 0 })

	kept := map[string]bool{}
	for _, id := range list[string](s, `SELECT id::text FROM work_units WHERE state = 'succeeded'`) {
		kept[id] = true
	}
	accepted, lost := 0, 0
	told.Range(func(id, _ any) bool {
		accepted++
		if !kept[id.(string)] {
			lost++
		}
		return true
	})
	doubled := s.count(`SELECT count(*) FROM (SELECT FROM worker_runs WHERE status = 'succeeded' GROUP BY unit_id HAVING count(*) > 1) AS d`) +
		s.count(`SELECT count(*) FROM (SELECT FROM work_units GROUP BY idempotency_key HAVING count(*) > 1) AS d`)
	wrong := s.count(`SELECT count(*) FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.status = 'succeeded'
		AND r.result <> 'answer ' || u.idempotency_key`)
	saved := map[string]time.Time{}
	rows, err := s.tables.Query(t.Context(), `SELECT u.idempotency_key, u.finished_at FROM work_units u WHERE state = 'succeeded'`)
	s.must(err)
	for rows.Next() {
		var key string
		var at time.Time
		s.must(rows.Scan(&key, &at))
		saved[key] = at
	}
	s.must(rows.Err())
	unsaved, again, runs := 0, 0, 0
	for key, answers := range m.answered {
		runs += len(answers)
		again += len(answers) - 1
		for _, o := range outages {
			// Answered before Postgres was back, in the ledger after it went.
			if answers[0].Before(o.to) && saved[key].After(o.from) {
				unsaved++
				break
			}
		}
	}
	if lost+doubled+wrong > 0 || again*100 > unsaved {
		t.Error("the restarts were noticed")
	}
	s.figure("%d restarts, %d units acknowledged (%d answers of 503 or none): lost %d, doubled %d, wrong %d; %d answers of the model, %d of them while Postgres was away or not yet saved, %d given again (%.1f %%)",
		restarts, accepted, refused.Load(), lost, doubled, wrong, runs, unsaved, again, 100*float64(again)/float64(max(1, unsaved)))
}
