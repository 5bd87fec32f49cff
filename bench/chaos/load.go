package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	clients  = 8
	patience = time.Minute // for one answer: longer than Piecework may take

	// label names the request in the unit, so that what nobody was told of is
	// found too.
	label = "chaos"
)

// load is the clients. Each wants a unit or a batch after another and asks for it
// until it is told that it has it.
type load struct {
	plan  Plan
	book  *book
	doors []*server
	sink  *sink
	agent agents
	http  *http.Client
	work  []order

	batches int // that were drawn

	asking  sync.WaitGroup // requests that are not answered for
	looking sync.WaitGroup
	ctx     context.Context // ends when nobody asks again

	seen map[string]string // the final states that the API has shown
}

// order is a unit to be submitted, or a batch of some.
type order struct {
	after   time.Duration
	request string
	want    Want
	body    []byte
	door    int
	again   bool          // ask once more when it is there
	misuse  bool          // send the key with another body
	cancel  time.Duration // after it was accepted; 0: never
	del     bool          // delete it when it is over
	units   []order       // of a batch
	moves   []batchMove   // of a batch, once its units are there
	retry   bool          // run the batch again when it is over
}

func newLoad(plan Plan, b *book, doors []*server, s *sink, a agents, random *rand.Rand) *load {
	l := &load{plan: plan, book: b, doors: doors, sink: s, agent: a, http: &http.Client{Timeout: patience}, seen: map[string]string{}}
	for i, alone := 0, 0; i < plan.Units; {
		if plan.Cancels || alone < unbatched {
			l.work = append(l.work, l.newOrder(i, random))
			i, alone = i+1, alone+1
			continue
		}
		batch := l.newBatch(i, random)
		l.work = append(l.work, batch)
		i, alone = i+len(batch.units), 0
	}
	if !plan.Cancels {
		l.work = slices.Concat([]order{l.newQuestion("early", 0)}, l.work, []order{l.newQuestion("late", plan.Duration)})
	}
	return l
}

// newQuestion is one of the two units that each load has besides those drawn.
// They are equal, and the whole load lies between them: the late one must reuse
// the result of the early one.
func (l *load) newQuestion(name string, after time.Duration) order {
	o := order{after: after, request: fmt.Sprintf("s%d-%s", l.plan.Seed, name)}
	o.want = Want{Key: "key-" + o.request, Backend: "mock", Finals: []string{"succeeded"}}
	body := map[string]any{"backend": "mock", "queue": "default", "labels": map[string]string{label: o.request}}
	o.cached(body, l.plan, questions+1)
	o.body, _ = json.Marshal(body)
	return o
}

// newOrder draws one unit. Most are short, some outlive a lease, a fifth is run
// by an agent with processes of its own.
func (l *load) newOrder(i int, random *rand.Rand) order {
	plan := l.plan
	o := order{
		after:   time.Duration(float64(plan.Duration) * float64(i) / float64(plan.Units)),
		request: fmt.Sprintf("s%d-%d", plan.Seed, i),
		door:    random.IntN(apis),
	}
	o.want = Want{Backend: "mock", Finals: []string{"succeeded"}, Output: private + o.request}
	body := map[string]any{"backend": "mock", "prompt": "unit " + o.request, "labels": map[string]string{label: o.request}}
	turns := 1 + random.IntN(3)
	o.want.Steps = 2*turns + 2 // what is said at the start, two in each turn, the answer
	mock := map[string]any{"output": o.want.Output, "steps": turns}
	sleep := 0.05 + random.ExpFloat64()*0.4
	agent, kind := random.Float64() < plan.Agents, random.Float64()
	endless := plan.Cancels || random.Float64() < 0.03 // a cancel alone can end it
	if endless {
		sleep, kind = 24*time.Hour.Seconds(), 0.5
	}
	switch {
	case agent && kind < 0.85:
		body["backend"], body["prompt"] = "claude", agentScript(plan, o.want.Output, sleep, agentCost, random)
		o.want.Backend, o.want.Steps, o.want.Cost, mock = "claude", 3, agentCost, nil
	case agent:
		body["backend"], body["prompt"] = "claude", "@@ next text a\n@@ next kill\n@@ init\n@@ text a\n@@ kill"
		o.want = Want{Backend: "claude", Finals: []string{"failed"}, Failures: 3}
		mock = nil
	case kind < 0.15:
		times := 1 + random.IntN(2)
		mock["fail"], mock["fail_times"], o.want.Failures = "infra", times, times
	case kind < 0.20:
		retries := random.IntN(2)
		mock["fail"], body["max_retries"] = "infra", retries
		o.want.Finals, o.want.Failures = []string{"failed"}, retries+1
	case kind < 0.23:
		mock["fail"] = "refusal"
		o.want.Finals, o.want.Failures = []string{"failed"}, 1
	case kind < 0.35:
		sleep = 2 + 4*random.Float64() // longer than a lease
	}
	if alike := random.Float64() < 0.15; mock != nil && alike && !endless && o.want.Failures == 0 {
		o.cached(body, plan, 1+random.IntN(questions))
	} else if mock != nil {
		o.want.Cost = float64(1+random.IntN(100)) / 1000
		mock["sleep"], mock["cost_usd"] = sleep*plan.Stretch, o.want.Cost
		body["payload"] = map[string]any{"mock": mock}
	}
	body["queue"], body["priority"] = pickOne(random, queues), random.IntN(10)
	if random.Float64() < 0.1 {
		o.want.Delay = 0.5 + 2*random.Float64()
		body["delay"] = o.want.Delay
	}
	if random.Float64() < 0.9 || endless {
		o.want.Key = "key-" + o.request
		o.again, o.misuse = random.Float64() < 0.1, random.Float64() < 0.05
	}
	if random.Float64() < 0.05 || endless {
		o.cancel = time.Duration(1 + 2*random.Float64()*float64(time.Second))
		o.want.Finals = append(o.want.Finals, "cancelled")
	}
	if endless {
		o.want.Finals = []string{"cancelled"}
	}
	if random.Float64() < 0.5 {
		o.want.Callback = manner(random)
		body["callback_url"] = l.sink.address(o.want.Callback, o.request, random)
	}
	// A message would tell of it, and an agent's run would be looked for.
	o.del = random.Float64() < 0.2 && mock != nil && !o.want.Cached && o.cancel == 0 && o.want.Callback == ""
	o.body, _ = json.Marshal(body)
	return o
}

// queues are those that the worker processes serve, and serving is how often
// each has its turn.
var queues = []string{"default", "bulk", "urgent"}

const serving = "default=3,bulk=1,urgent=6"

// questions is how many there are that many units ask.
const questions = 3

// cached makes a unit one that others are equal to: those of the same question.
func (o *order) cached(body map[string]any, plan Plan, which int) {
	output := fmt.Sprintf("%squestion %d", private, which)
	o.want.Output, o.want.Cost, o.want.Cached, o.want.Steps = output, float64(which)/1000, true, 1
	body["prompt"], body["cache"] = fmt.Sprint("question ", which), "1h"
	body["payload"] = map[string]any{"mock": map[string]any{"output": output, "steps": 1, "sleep": 0.3 * plan.Stretch, "cost_usd": o.want.Cost}}
}

// agentCost is what each run of an agent costs that comes to a result. The agent
// tells what its session has cost, earlier runs included, as the real one does.
const agentCost = 0.01

// notes is how many files an agent writes while it works.
const notes = 8

// agentScript makes an agent that says its secret, writes to its disk while it
// works, leaves processes behind, and sometimes will not hear that it should stop.
func agentScript(plan Plan, output string, sleep, cost float64, random *rand.Rand) string {
	// The key alone: what takes out "NAME=value" by the name does not find it.
	script := []string{"init", fmt.Sprint("cost ", cost), "text at work", "env ANTHROPIC_API_KEY"}
	if random.Float64() < 0.3 {
		script = append(script, "env")
	}
	for _, leave := range []string{"spawn", "setsid", "daemon"} {
		if random.Float64() < 0.3 {
			script = append(script, leave)
		}
	}
	if random.Float64() < 0.15 && !plan.Cancels { // to end a deaf one takes seven seconds
		script = append(script, "ignore")
	}
	if random.Float64() < 0.2 {
		sleep = max(sleep, 2+3*random.Float64())
	}
	script = append(script, `tool Bash {"command":"true"}`, "toolresult done")
	for i := range notes { // each a new file: to write one again needs no room
		script = append(script, fmt.Sprintf("sleep %dms", int(1000*sleep*plan.Stretch/notes)), fmt.Sprintf("write ../home/note%d x", i))
	}
	script = append(script, "result "+output)
	// A session that is cut off and goes on does the same again.
	var again []string
	for _, line := range script {
		again = append(again, "next "+line)
	}
	return "@@ " + strings.Join(append(again, script...), "\n@@ ")
}

// start lets the clients work until ctx ends.
func (l *load) start(ctx context.Context) {
	l.ctx = ctx
	began := time.Now()
	queue := make(chan order, len(l.work))
	for _, o := range l.work {
		queue <- o
	}
	close(queue)
	for range clients {
		l.asking.Go(func() {
			for o := range queue {
				l.sleep(time.Until(began.Add(o.after)))
				l.submit(o)
			}
		})
	}
	l.looking.Go(func() {
		for ctx.Err() == nil {
			l.look()
			l.sleep(time.Second)
		}
	})
}

// finish waits until every client has its answers, at most for limit.
func (l *load) finish(limit time.Duration) {
	done := make(chan struct{})
	go func() { l.asking.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

func (l *load) sleep(d time.Duration) {
	select {
	case <-l.ctx.Done():
	case <-time.After(max(d, 0)):
	}
}

// kind is that of the events of its submission.
func (o order) kind() string {
	if len(o.units) > 0 {
		return KindBatch
	}
	return KindSubmit
}

// submit asks for a unit or a batch until it is there. Without a key nobody may
// ask twice: what became of an unanswered request is then unknown.
func (l *load) submit(o order) {
	for _, u := range o.units {
		l.book.write(Event{Kind: KindIntend, Request: u.request, Want: &u.want})
	}
	if len(o.units) == 0 {
		l.book.write(Event{Kind: KindIntend, Request: o.request, Want: &o.want})
	}
	for door := o.door; l.ctx.Err() == nil; door++ {
		e := l.post(o, door, o.kind(), o.body)
		if e.Status == http.StatusAccepted {
			l.followUp(o, e.Unit)
			return
		}
		if o.want.Key == "" && e.Status != http.StatusServiceUnavailable && e.Error != notReached {
			return
		}
		l.sleep(200 * time.Millisecond)
	}
}

func (l *load) followUp(o order, unit string) {
	if o.again {
		l.post(o, o.door+1, o.kind(), o.body)
	}
	if o.misuse {
		l.post(o, o.door, KindMisuse, []byte(`{"backend":"mock","prompt":"another","labels":{"`+label+`":"`+o.request+`"}}`))
	}
	if len(o.units) > 0 {
		l.asking.Go(func() { l.tend(o, unit) })
	}
	if o.del {
		l.asking.Go(func() { l.remove(o, unit) })
	}
	if o.cancel > 0 {
		l.asking.Go(func() {
			l.sleep(o.cancel)
			for door := o.door; l.ctx.Err() == nil; door++ {
				status, _, _, err := l.ask(http.MethodPost, door, "/work-units/"+unit+"/cancel", "", nil)
				l.book.write(Event{Kind: KindCancel, Request: o.request, Unit: unit, Status: status, Error: err})
				if status == http.StatusAccepted || status == http.StatusConflict {
					return
				}
				l.sleep(200 * time.Millisecond)
			}
		})
	}
}

// remove deletes a unit as soon as it is over; until then the answer is 409.
func (l *load) remove(o order, unit string) {
	for door := o.door; l.ctx.Err() == nil; door++ {
		l.sleep(500 * time.Millisecond)
		status, _, _, err := l.ask(http.MethodDelete, door, "/work-units/"+unit, "", nil)
		if status == http.StatusConflict {
			continue
		}
		l.book.write(Event{Kind: KindDelete, Request: o.request, Unit: unit, Status: status, Error: err})
		if status != 0 && status != http.StatusServiceUnavailable {
			return
		}
	}
}

func (l *load) post(o order, door int, kind string, body []byte) Event {
	began, path := time.Now(), "/work-units"
	if len(o.units) > 0 {
		path = "/batches"
	}
	status, header, answer, failed := l.ask(http.MethodPost, door, path, o.want.Key, body)
	e := Event{Kind: kind, Request: o.request, Door: l.door(door).name, Status: status, Error: failed,
		Replayed: header.Get("Idempotent-Replayed") == "true", Seconds: time.Since(began).Seconds()}
	var unit struct{ ID, Status string }
	if json.Unmarshal(answer, &unit) == nil {
		e.Unit = unit.ID
	}
	if status >= 400 {
		e.Error = string(answer[:min(len(answer), 300)])
	}
	l.book.write(e)
	return e
}

func (l *load) door(n int) *server { return l.doors[n%len(l.doors)] }

// notReached: the request was surely never sent.
const notReached = "not reached"

// ask returns status 0 when no answer came.
func (l *load) ask(method string, door int, path, key string, body []byte) (status int, header http.Header, text []byte, failed string) {
	began := time.Now()
	defer func() {
		if took := time.Since(began); took > answerLimit {
			l.book.write(Event{Kind: KindSlow, Door: l.door(door).name, What: method + " " + path, Status: status, Error: failed, Seconds: took.Seconds()})
		}
	}()
	url := l.door(door).url()
	if url == "" {
		return 0, nil, nil, notReached
	}
	request, err := http.NewRequestWithContext(l.ctx, method, url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	answer, err := l.http.Do(request)
	if err != nil {
		return 0, nil, nil, err.Error()
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	if err != nil {
		return 0, nil, nil, err.Error()
	}
	return answer.StatusCode, answer.Header, text, ""
}

// look writes down which units the API shows in a final state, once for each
// state that it shows.
func (l *load) look() {
	_, _, answer, _ := l.ask(http.MethodGet, rand.IntN(apis), "/work-units?status=succeeded,failed,cancelled,timed_out&limit=200", "", nil)
	var list struct {
		Items []struct {
			ID, Status string
			Finished   string `json:"finished_at"`
		}
	}
	if json.Unmarshal(answer, &list) != nil {
		return
	}
	for _, u := range list.Items {
		if now := u.Status + " " + u.Finished; l.seen[u.ID] != now {
			l.seen[u.ID] = now
			l.book.write(Event{Kind: KindSeen, Unit: u.ID, State: u.Status, Finished: u.Finished, Crowded: l.agent.alive(u.ID)})
		}
	}
}
