package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// system is who pauses a batch whose budget is used up.
const system = "piecework"

// unbatched is how many units come alone before some come as a batch.
const unbatched = 10

// batchMove is what a client does with its batch.
type batchMove struct {
	after time.Duration // since what it did before
	verb  string        // pause, resume, cancel
}

// newBatch draws a batch of units, and how it is paused, resumed, and now and
// then cancelled. Its units are counted from first.
func (l *load) newBatch(first int, random *rand.Rand) order {
	b := order{request: fmt.Sprintf("s%d-batch%d", l.plan.Seed, first), door: random.IntN(apis), again: random.Float64() < 0.5}
	b.want.Key = "key-" + b.request
	for range 1 + random.IntN(2) {
		b.moves = append(b.moves, batchMove{between(random, 0, 1500*time.Millisecond), "pause"},
			batchMove{between(random, 200*time.Millisecond, 4*time.Second), "resume"})
	}
	if random.Float64() < 0.15 {
		b.moves = append(b.moves, batchMove{between(random, 0, 2*time.Second), "cancel"})
	}
	// Every kind has its turn, also in a short run.
	kind := l.batches % 4
	l.batches++
	if b.retry = kind == 1; b.retry && b.isCancelled() {
		b.moves = b.moves[:len(b.moves)-1]
	}
	priced, cost := kind == 3, float64(1+random.IntN(50))/1000
	var bodies []json.RawMessage
	for i := range min(5+random.IntN(16), l.plan.Units-first) {
		o := l.newOrder(first+i, random)
		for o.cancel > 0 { // its id is not known when the batch is accepted
			o = l.newOrder(first+i, random)
		}
		if b.retry || priced {
			l.plain(&o, cost, b.retry && i%2 == 0, random)
		}
		o.want.Key, o.want.Batch, o.want.Again = "", b.request, b.retry
		if b.isCancelled() || priced {
			o.want.Finals = append(o.want.Finals, "cancelled")
		}
		b.units, bodies = append(b.units, o), append(bodies, o.body)
	}
	b.after = b.units[0].after
	body := map[string]any{"title": b.request, "units": bodies, "callback_url": l.sink.address(fails, b.request, random)}
	if random.Float64() < 0.3 || b.retry {
		body["concurrency"] = 1 + random.IntN(4)
	}
	if priced {
		body["max_cost_usd"] = cost * float64(len(bodies)) / 2
	}
	b.body, _ = json.Marshal(body)
	return b
}

// plain makes a unit of a batch one that succeeds and costs so much; one that
// fails does so until its batch is run again.
func (l *load) plain(o *order, cost float64, fails bool, random *rand.Rand) {
	o.want = Want{Backend: "mock", Finals: []string{"succeeded"}, Output: private + o.request, Cost: cost, Steps: 4}
	mock := map[string]any{"output": o.want.Output, "steps": 1, "cost_usd": cost, "sleep": (0.05 + random.ExpFloat64()*0.4) * l.plan.Stretch}
	if fails {
		mock["fail"], mock["fail_times"] = "refusal", 1
	}
	o.body, _ = json.Marshal(map[string]any{"backend": "mock", "prompt": "unit " + o.request, "queue": pickOne(random, queues),
		"labels": map[string]string{label: o.request}, "payload": map[string]any{"mock": mock}})
}

func (o order) isCancelled() bool {
	return len(o.moves) > 0 && o.moves[len(o.moves)-1].verb == "cancel"
}

// tend does with a batch what was planned, and stays until it is over: a pause
// that comes late must not last.
func (l *load) tend(o order, batch string) {
	moves, began := o.moves, time.Now()
	for l.ctx.Err() == nil {
		l.sleep(200 * time.Millisecond)
		_, _, answer, _ := l.ask(http.MethodGet, o.door, "/batches/"+batch, "", nil)
		o.door++
		var b struct {
			Status   string
			Paused   *struct{ By string }
			Finished *string `json:"finished_at"`
		}
		switch err := json.Unmarshal(answer, &b); {
		case err != nil || b.Status == "" || b.Status == "enumerating":
			began = time.Now()
		case b.Finished != nil && o.retry:
			l.move(o, batch, "retry") // 409: none failed
			o.retry = false
		case b.Finished != nil:
			return
		case b.Paused != nil && b.Paused.By == system:
			l.move(o, batch, "cancel") // its budget is used up
		case len(moves) > 0 && time.Since(began) >= moves[0].after:
			l.move(o, batch, moves[0].verb)
			moves, began = moves[1:], time.Now()
		case len(moves) == 0 && b.Paused != nil:
			l.move(o, batch, "resume")
		}
	}
}

// move asks until there is an answer. 409: the batch is over, or not so far.
func (l *load) move(o order, batch, verb string) {
	for door := o.door; l.ctx.Err() == nil; door++ {
		status, _, _, err := l.ask(http.MethodPost, door, "/batches/"+batch+"/"+verb, "", nil)
		l.book.write(Event{Kind: KindMove, Request: o.request, Unit: batch, What: verb, Status: status, Error: err})
		if status != 0 && status != http.StatusServiceUnavailable {
			return
		}
		l.sleep(200 * time.Millisecond)
	}
}
