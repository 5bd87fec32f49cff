package handlers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	"piecework/internal/testkit"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/work"
	"piecework/store"
)

// provider is a puppet whose maker also takes batches. What is done to them
// stands in its hands, one for each call.
type provider struct {
	*puppet

	mu        sync.Mutex
	batches   []*sentBatch
	send      []error // of the next calls of SendBatch; after one of unknown outcome the batch is there
	keyless   bool    // it keeps no key, and finds what has as many lines, the newest first
	cancelled []string
	cancel    []error  // of the next calls of CancelBatch
	cost      *float64 // of an answer that no run takes
}

type sentBatch struct {
	id, key string
	lines   []backend.Line
	ended   bool
	refused *work.Failure
	answers []backend.BatchAnswer
}

var errReplyLost = errors.New("the connection was cut")

func (p *provider) Line(req backend.Request) (backend.Line, *work.Failure) {
	if req.Prompt == "no line" {
		return backend.Line{}, work.Fail(work.ClassInvalidRequest, "it cannot be a line")
	}
	return backend.Line{Endpoint: "/v1/x", Model: req.Model, Body: json.RawMessage(`"` + req.Prompt + `"`)}, nil
}

func (p *provider) SendBatch(_ context.Context, key string, lines []backend.Line) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if len(p.send) > 0 {
		err, p.send = p.send[0], p.send[1:]
	}
	if err == nil || errors.Is(err, errReplyLost) {
		b := &sentBatch{id: fmt.Sprintf("remote-%d", len(p.batches)+1), key: key, lines: lines}
		p.batches = append(p.batches, b)
		return b.id, err
	}
	return "", err
}

func (p *provider) FindBatch(_ context.Context, key string, lines int, _ time.Time) (ids []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range slices.Backward(p.batches) {
		if (p.keyless || b.key == key) && len(b.lines) == lines {
			ids = append(ids, b.id)
		}
	}
	return ids, nil
}

func (p *provider) batch(id string) *sentBatch {
	for _, b := range p.batches {
		if b.id == id {
			return b
		}
	}
	return &sentBatch{}
}

func (p *provider) LookAtBatch(_ context.Context, id string) (backend.BatchNews, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.batch(id)
	return backend.BatchNews{Ended: b.ended, Refused: b.refused, Done: len(b.answers), Total: len(b.lines)}, nil
}

func (p *provider) BatchAnswers(_ context.Context, id string, each func(backend.BatchAnswer) error) error {
	p.mu.Lock()
	answers := slices.Clone(p.batch(id).answers)
	p.mu.Unlock()
	for _, a := range answers {
		if err := each(a); err != nil {
			return err
		}
	}
	return nil
}

func (p *provider) CancelBatch(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cancel) > 0 {
		var err error
		err, p.cancel = p.cancel[0], p.cancel[1:]
		return err
	}
	p.cancelled = append(p.cancelled, id)
	return nil
}

func (p *provider) AnswerCost(*work.Call, string, backend.Answer) *float64 { return p.cost }

func (p *provider) KeepsKey() bool { return !p.keyless }

// sent waits until so many batches are at the provider, and returns the last.
func (p *provider) sent(t *testing.T, n int) *sentBatch {
	t.Helper()
	var last *sentBatch
	testkit.Eventually(t, "a batch at the provider", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.batches) >= n {
			last = p.batches[n-1]
		}
		return last != nil
	})
	return last
}

// end ends a batch with the answers that answer makes of its lines.
func (p *provider) end(b *sentBatch, answer func(n int, line backend.Line) []backend.BatchAnswer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, line := range b.lines {
		b.answers = append(b.answers, answer(n, line)...)
	}
	b.ended = true
}

// echo answers a line with its own body.
func echo(_ int, line backend.Line) []backend.BatchAnswer {
	return []backend.BatchAnswer{{ID: line.ID, Answer: &backend.Answer{Status: 200, RequestID: "r", Body: line.Body}}}
}

type providerFixture struct {
	*fixture
	provider *provider
}

func newProviderFixture(t *testing.T) *providerFixture {
	t.Helper()
	h := &providerFixture{newFixture(t), &provider{puppet: newPuppet("openai")}}
	h.puppet = h.provider.puppet
	return h
}

func (h *providerFixture) startProvider(change func(*Options)) *worker {
	return h.start(func(o *Options) {
		o.Backends = []backend.Backend{h.provider}
		if change != nil {
			change(o)
		}
	})
}

// wait submits a unit of batch mode.
func (h *providerFixture) wait(prompt string, change ...func(*work.Spec)) uuid.UUID {
	h.t.Helper()
	return h.submit(func(s *work.Spec) {
		s.Backend, s.Lane, s.Prompt, s.Model = "openai", work.LaneBatch, prompt, "m"
		for _, f := range change {
			f(s)
		}
	})
}

// ends lets the next run of a unit end, and returns the answer that it was
// given, empty for one that was to call.
func (h *providerFixture) ends(id uuid.UUID) (answer string) {
	h.t.Helper()
	run := h.begun()
	if run.req.UnitID != id {
		h.t.Errorf("unit %s runs; want %s", run.req.UnitID, id)
	}
	if run.req.Answer != nil {
		answer = string(run.req.Answer.Body)
	}
	run.end <- succeed("done")
	return answer
}

func TestProviderBatch(t *testing.T) {
	t.Parallel()
	h := newProviderFixture(t)
	var ids []uuid.UUID
	for i := range 5 {
		ids = append(ids, h.wait(fmt.Sprint("prompt ", i)))
	}
	if u := h.unit(ids[0]); u.State != work.Waiting {
		t.Fatalf("it is %s before anybody has seen it", u.State)
	}
	odd := h.wait("another model", func(s *work.Spec) { s.Model = "other" })
	h.startProvider(func(o *Options) { o.Slots = 1 })
	first, second := h.provider.sent(t, 1), h.provider.sent(t, 2)
	if len(first.lines) != 5 || len(second.lines) != 1 || second.lines[0].Model != "other" {
		t.Fatalf("batches of %d and %d lines; want the models apart", len(first.lines), len(second.lines))
	}
	if n := len(h.puppet.started); n > 0 {
		t.Fatalf("%d runs began before there was an answer", n)
	}
	h.provider.end(first, echo)
	for range ids {
		run := h.begun()
		if run.req.Answer == nil || string(run.req.Answer.Body) != `"`+run.req.Prompt+`"` || run.req.Answer.RequestID != "r" {
			t.Errorf("the run of %q was given %+v", run.req.Prompt, run.req.Answer)
		}
		run.end <- succeed("done")
	}
	for _, id := range ids {
		if u := h.becomes(id, work.Succeeded); u.RunCount != 1 {
			t.Errorf("%d runs", u.RunCount)
		}
	}
	h.provider.end(second, echo)
	h.ends(odd)
	h.becomes(odd, work.Succeeded)
	testkit.Eventually(t, "no answer left", func() bool { a, err := h.store.ProviderBatches.Answer(t.Context(), odd); return a == nil && err == nil })
}

// What the batch loses, expires or says twice changes no result.
func TestProviderBatchLosesNothing(t *testing.T) {
	t.Parallel()
	h := newProviderFixture(t)
	ids := []uuid.UUID{h.wait("lost"), h.wait("twice"), h.wait("expired"), h.wait("good"), h.wait("no line")}
	h.startProvider(nil)
	b := h.provider.sent(t, 1)
	if len(b.lines) != 4 {
		t.Fatalf("%d lines", len(b.lines))
	}
	h.provider.end(b, func(n int, line backend.Line) []backend.BatchAnswer {
		switch n {
		case 0:
			return []backend.BatchAnswer{{ID: "somebody-else's"}}
		case 1:
			other := backend.BatchAnswer{ID: line.ID, Answer: &backend.Answer{Status: 200, Body: json.RawMessage(`"other"`)}}
			return append(echo(n, line), other)
		case 2:
			return []backend.BatchAnswer{{ID: line.ID}}
		}
		return echo(n, line)
	})
	given := map[string]string{}
	for range ids {
		run := h.begun()
		given[run.req.Prompt] = "nothing"
		if run.req.Answer != nil {
			given[run.req.Prompt] = string(run.req.Answer.Body)
		}
		run.end <- succeed("done")
	}
	want := map[string]string{"lost": "nothing", "twice": `"twice"`, "expired": "nothing", "good": `"good"`, "no line": "nothing"}
	if fmt.Sprint(given) != fmt.Sprint(want) {
		t.Errorf("the runs were given %v", given)
	}
	for _, id := range ids {
		if u := h.becomes(id, work.Succeeded); u.RunCount != 1 {
			t.Errorf("%d runs", u.RunCount)
		}
	}
}

// What is too much for one batch goes into the next.
func TestProviderBatchInPieces(t *testing.T) {
	t.Parallel()
	h := newProviderFixture(t)
	var ids []uuid.UUID
	for i := range linePage + 20 {
		ids = append(ids, h.wait(fmt.Sprintf("%03d", i))) // 5 bytes of a line
	}
	h.startProvider(func(o *Options) { o.Slots, o.packMost = 8, 5*(linePage+5) })
	first, second := h.provider.sent(t, 1), h.provider.sent(t, 2)
	if len(first.lines) != linePage+5 || len(second.lines) != 15 {
		t.Errorf("batches of %d and %d lines", len(first.lines), len(second.lines))
	}
	h.provider.end(first, echo)
	h.provider.end(second, echo)
	for range ids {
		run := h.begun()
		if run.req.Answer == nil {
			t.Errorf("the run of %q was given nothing", run.req.Prompt)
		}
		run.end <- succeed("done")
	}
	for _, id := range ids {
		h.becomes(id, work.Succeeded)
	}
}

// A batch whose sender got no answer, or died, is not paid for twice.
func TestProviderBatchFindsWhatItSent(t *testing.T) {
	t.Parallel()
	t.Run("reply lost", func(t *testing.T) {
		t.Parallel()
		h := newProviderFixture(t)
		h.provider.send = []error{errReplyLost}
		id := h.wait("a")
		h.startProvider(nil)
		h.provider.end(h.provider.sent(t, 1), echo)
		if got := h.ends(id); got != `"a"` {
			t.Errorf("the run was given %q", got)
		}
		h.becomes(id, work.Succeeded)
		if n := len(h.provider.batches); n != 1 {
			t.Errorf("%d batches were sent", n)
		}
	})
	t.Run("one for the other", func(t *testing.T) {
		t.Parallel()
		h := newProviderFixture(t)
		h.provider.send, h.provider.keyless = []error{errReplyLost, errReplyLost}, true
		ids := []uuid.UUID{h.wait("a"), h.wait("b", func(s *work.Spec) { s.Model = "other" })}
		h.startProvider(nil)
		first, second := h.provider.sent(t, 1), h.provider.sent(t, 2)
		testkit.Eventually(t, "both are found", func() bool {
			known, err := h.store.ProviderBatches.KnownRemotes(t.Context(), "openai", []string{first.id, second.id})
			return err == nil && len(known) == 2
		})
		h.provider.end(first, echo)
		h.provider.end(second, echo)
		for range ids {
			run := h.begun()
			if run.req.Answer == nil || string(run.req.Answer.Body) != `"`+run.req.Prompt+`"` {
				t.Errorf("the run of %q was given %+v", run.req.Prompt, run.req.Answer)
			}
			run.end <- succeed("done")
		}
		for _, id := range ids {
			h.becomes(id, work.Succeeded)
		}
		if n := len(h.provider.batches); n != 2 {
			t.Errorf("%d batches were sent", n)
		}
	})
	t.Run("never arrived", func(t *testing.T) {
		t.Parallel()
		h := newProviderFixture(t)
		h.provider.send = []error{errors.New("no route")}
		id := h.wait("a")
		h.startProvider(findSooner)
		h.provider.end(h.provider.sent(t, 1), echo)
		h.ends(id)
		h.becomes(id, work.Succeeded)
	})
	for _, arrived := range []bool{true, false} {
		t.Run(fmt.Sprint("sender died, arrived ", arrived), func(t *testing.T) {
			t.Parallel()
			h := newProviderFixture(t)
			id, dead := h.wait("a"), uuid.Must(uuid.NewV7())
			b := h.packedBy(dead)
			if err := h.store.ProviderBatches.Sending(t.Context(), dead, b.ID, 1); err != nil {
				t.Fatal(err)
			}
			if arrived {
				line, _ := h.provider.Line(backend.Request{Prompt: "a"})
				line.ID = lineOf(b.ID, id)
				if _, err := h.provider.SendBatch(t.Context(), b.ID.String(), []backend.Line{line}); err != nil {
					t.Fatal(err)
				}
			}
			h.startProvider(findSooner)
			h.provider.end(h.provider.sent(t, 1), echo)
			if got := h.ends(id); got != `"a"` {
				t.Errorf("the run was given %q", got)
			}
			h.becomes(id, work.Succeeded)
			if n := len(h.provider.batches); n != 1 {
				t.Errorf("%d batches were sent", n)
			}
		})
	}
}

// findSooner lets a worker process look for a lost batch for no time at all.
func findSooner(o *Options) { o.find = time.Nanosecond }

// packedBy packs what waits on behalf of a worker process that is dead.
func (h *providerFixture) packedBy(process uuid.UUID) *store.ProviderBatch {
	h.t.Helper()
	n, err := h.store.ProviderBatches.Pack(h.t.Context(), "openai", 100)
	if err != nil || n != 1 {
		h.t.Fatal(n, err)
	}
	b, err := h.store.ProviderBatches.Claim(h.t.Context(), process, []string{"openai"})
	if err != nil || b == nil {
		h.t.Fatal(b, err)
	}
	return b
}

func TestProviderBatchRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		class work.Class
		late  bool // the provider takes the batch first
		want  work.State
	}{
		"no such API":        {work.ClassInvalidRequest, false, work.Failed},
		"too much for today": {work.ClassRateLimit, false, work.Succeeded},
		"bad":                {work.ClassInvalidRequest, true, work.Failed},
		"too much, later":    {work.ClassRateLimit, true, work.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newProviderFixture(t)
			failure, n := work.Fail(test.class, name), 1
			if !test.late {
				h.provider.send = []error{failure}
			}
			id := h.wait("a")
			h.startProvider(nil)
			if test.late {
				b := h.provider.sent(t, 1)
				h.provider.mu.Lock()
				b.ended, b.refused, b.key = true, failure, ""
				h.provider.mu.Unlock()
				n = 2
			}
			if test.want == work.Succeeded {
				h.provider.end(h.provider.sent(t, n), echo)
				h.ends(id)
			}
			u := h.becomes(id, test.want)
			if test.want == work.Failed && (u.Error.Class != test.class || u.Error.Message != name || u.RunCount != 0) {
				t.Errorf("it failed with %v after %d runs", u.Error, u.RunCount)
			}
		})
	}
}

func TestProviderBatchNobodyWaits(t *testing.T) {
	t.Parallel()
	h := newProviderFixture(t)
	gone := h.wait("gone")
	h.startProvider(nil)
	b := h.provider.sent(t, 1)
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, gone); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the batch that nobody waits for is cancelled", func() bool {
		h.provider.mu.Lock()
		defer h.provider.mu.Unlock()
		return slices.Equal(h.provider.cancelled, []string{b.id})
	})
	if u := h.unit(gone); u.State != work.Cancelled || u.RunCount != 0 {
		t.Errorf("the cancelled unit is %s after %d runs", u.State, u.RunCount)
	}
}

// What may be at the provider is looked for although its units are cancelled, and
// is cancelled there until that is known.
func TestProviderBatchCancelsWhatItSent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*provider){
		"reply lost":   func(*provider) {},
		"cancel fails": func(p *provider) { p.cancel = []error{errors.New("no route"), work.Fail(work.ClassInfra, "try again")} },
		"over by then": func(p *provider) {
			p.cancel = slices.Repeat([]error{work.Fail(work.ClassInvalidRequest, "it has ended")}, 1000)
		},
		"may be others": func(p *provider) { p.keyless = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newProviderFixture(t)
			change(h.provider)
			gone, dead := h.wait("gone"), uuid.Must(uuid.NewV7())
			b := h.packedBy(dead)
			if err := h.store.ProviderBatches.Sending(t.Context(), dead, b.ID, 1); err != nil {
				t.Fatal(err)
			}
			line, _ := h.provider.Line(backend.Request{Prompt: "gone"})
			line.ID = lineOf(b.ID, gone)
			remote, err := h.provider.SendBatch(t.Context(), b.ID.String(), []backend.Line{line})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, gone); err != nil {
				t.Fatal(err)
			}
			if name == "over by then" {
				h.provider.end(h.provider.sent(t, 1), echo)
			}
			h.startProvider(nil)
			testkit.Eventually(t, "the batch is seen to its end", func() bool {
				lane, err := h.store.ProviderBatches.LaneOf(t.Context(), gone)
				return err == nil && lane.Batch.FinishedAt != nil
			})
			want := []string{remote}
			if name == "over by then" || name == "may be others" {
				want = nil
			}
			h.provider.mu.Lock()
			defer h.provider.mu.Unlock()
			if !slices.Equal(h.provider.cancelled, want) || name == "cancel fails" && len(h.provider.cancel) > 0 {
				t.Errorf("cancelled %v, want %v", h.provider.cancelled, want)
			}
		})
	}
}

// What the provider has answered units that were cancelled meanwhile is paid for: its
// cost is noted once, whether others wait for the batch or nobody does.
func TestProviderBatchChargesWhatNoRunTakes(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{true, false} {
		t.Run(fmt.Sprintf("others wait: %v", others), func(t *testing.T) {
			t.Parallel()
			h := newProviderFixture(t)
			h.provider.cost = new(0.25)
			h.provider.cancel = slices.Repeat([]error{work.Fail(work.ClassInvalidRequest, "it has ended")}, 1000)
			gone := h.wait("gone")
			var stays uuid.UUID
			if others {
				stays = h.wait("stays")
			}
			w := h.startProvider(nil)
			b := h.provider.sent(t, 1)
			w.stop()
			<-w.done
			if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, gone); err != nil {
				t.Fatal(err)
			}
			h.provider.end(b, echo)
			h.startProvider(nil)
			if others {
				h.ends(stays)
				h.becomes(stays, work.Succeeded)
			}
			testkit.Eventually(t, "the cost is noted", func() bool { return h.unit(gone).Known() > 0 })
			for range 3 {
				if err := h.store.ProviderBatches.ChargeAnswer(t.Context(), gone, new(0.25)); err != nil {
					t.Fatal(err)
				}
			}
			if u := h.unit(gone); u.Known() != 0.25 || u.RunCount != 0 || u.State != work.Cancelled {
				t.Errorf("%s after %d runs, cost %+v", u.State, u.RunCount, u.Cost)
			}
		})
	}
}

// A run that was stopped leaves the answer for the next; one that failed with it
// does not, and the retry is a call.
func TestProviderBatchAnswerIsUsedOnce(t *testing.T) {
	t.Parallel()
	h := newProviderFixture(t)
	id := h.wait("a")
	w := h.startProvider(nil)
	h.provider.end(h.provider.sent(t, 1), echo)
	h.begun()
	w.stop()
	<-w.done
	h.startProvider(nil)
	run := h.begun()
	if run.req.Answer == nil || run.req.Attempt != 2 {
		t.Errorf("attempt %d was given %v", run.req.Attempt, run.req.Answer)
	}
	run.end <- backend.Result{Error: work.Fail(work.ClassInfra, "overloaded")}
	if got := h.ends(id); got != "" {
		t.Errorf("the retry was given %q", got)
	}
	h.becomes(id, work.Succeeded)
}

// The real clients against a provider that breaks the line when it is sent a
// batch, loses a line, lets one expire and says two twice.
func TestProviderBatchAtAProvider(t *testing.T) {
	t.Parallel()
	prices, err := backend.ReadPrices(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(url string) backend.Backend{
		"anthropic": func(url string) backend.Backend {
			return &anthropic.Backend{Options: model.Options{Key: "k", BaseURL: url, Model: "claude-sonnet-4-5", Prices: prices}}
		},
		"openai": func(url string) backend.Backend {
			return &openai.Backend{Options: model.Options{Key: "k", BaseURL: url + "/v1", Model: "gpt-4.1", Prices: prices}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, model := newFixture(t), fakemodel.Start(t)
			model.Script(fakemodel.Turn{Text: "fine", InputTokens: 1000, OutputTokens: 100})
			submit := func(lane string) uuid.UUID {
				return h.submit(func(s *work.Spec) { s.Backend, s.Lane = name, lane })
			}
			model.Batches(fakemodel.BatchPlan{Hold: true, DropReply: true})
			var ids []uuid.UUID
			for range 20 {
				ids = append(ids, submit(work.LaneBatch))
			}
			h.start(func(o *Options) { o.Backends = []backend.Backend{make(model.URL)} })
			testkit.Eventually(t, "a batch at the provider", func() bool { return len(model.MadeBatches()) > 0 })
			model.Batches(fakemodel.BatchPlan{Hold: true, Lose: fakemodel.Nth(0), Expire: fakemodel.Nth(1), Repeat: fakemodel.Nth(2, 3)})
			model.EndBatches()
			cost := *h.runs(h.becomes(submit(""), work.Succeeded).ID)[0].TotalCostUSD
			half, full := 0, 0
			for _, id := range ids {
				u := h.becomes(id, work.Succeeded)
				switch {
				case *u.Output != "fine" || u.RunCount != 1:
					t.Errorf("output %q after %d runs", *u.Output, u.RunCount)
				case u.Known() == cost:
					full++
				case math.Abs(u.Known()-cost/2) < 1e-9:
					half++
				}
			}
			if half != 18 || full != 2 || cost == 0 {
				t.Errorf("%d units cost half of $%v, %d all of it", half, cost, full)
			}
			if made := model.MadeBatches(); len(made) != 1 {
				t.Errorf("%d batches were made", len(made))
			}
			for line, n := range model.Executed() {
				if n > 1 {
					t.Errorf("line %s was asked %d times", line, n)
				}
			}
		})
	}
}

// linePage is how many units are made lines of at once.
const linePage = 50

// lineOf is the id of a line.
func lineOf(batch, unit uuid.UUID) string {
	return base64.RawURLEncoding.EncodeToString(batch[:]) + base64.RawURLEncoding.EncodeToString(unit[:])
}
