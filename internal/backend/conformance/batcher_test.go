package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	anthropicsdk "github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	openaisdk "github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

var (
	_ backend.Batcher = (*anthropic.Backend)(nil)
	_ backend.Batcher = (*openai.Backend)(nil)
)

func onEachBatcher(t *testing.T, test func(t *testing.T, b backend.Batcher, model *fakemodel.Server)) {
	t.Helper()
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) { test(t, b.(backend.Batcher), model) })
}

// lineOf makes a line that must be possible.
func lineOf(t *testing.T, b backend.Batcher, req backend.Request, id string) backend.Line {
	t.Helper()
	line, failure := b.Line(req)
	if failure != nil {
		t.Fatal(failure)
	}
	line.ID = id
	return line
}

// linesFor are lines with these ids, whose prompts choose scripts of that name.
func linesFor(t *testing.T, b backend.Batcher, ids ...string) []backend.Line {
	t.Helper()
	var lines []backend.Line
	for _, id := range ids {
		lines = append(lines, lineOf(t, b, backendtest.NewRequest(t, "do it [[script:"+id+"]]"), id))
	}
	return lines
}

func send(t *testing.T, b backend.Batcher, lines []backend.Line) string {
	t.Helper()
	id, err := b.SendBatch(t.Context(), "key-1", lines)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func lookAt(t *testing.T, b backend.Batcher, id string) backend.BatchNews {
	t.Helper()
	news, err := b.LookAtBatch(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return news
}

// answersOf reads all answers of a batch by their ids, and tells how many came.
func answersOf(t *testing.T, b backend.Batcher, id string) (answers map[string]*backend.Answer, count int) {
	t.Helper()
	answers = map[string]*backend.Answer{}
	err := b.BatchAnswers(t.Context(), id, func(a backend.BatchAnswer) error {
		answers[a.ID] = a.Answer
		count++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return answers, count
}

// throughBatch runs a request by way of a batch.
func throughBatch(t *testing.T, b backend.Batcher, req backend.Request) backendtest.Run {
	t.Helper()
	id := send(t, b, []backend.Line{lineOf(t, b, req, "only")})
	if news := lookAt(t, b, id); !news.Ended || news.Refused != nil || news.Done != 1 || news.Total != 1 {
		t.Fatalf("the batch is %+v", news)
	}
	answers, _ := answersOf(t, b, id)
	if answers["only"] == nil {
		t.Fatalf("no answer in %v", answers)
	}
	req.Answer = answers["only"]
	alone := b.AnswerCost(req.Call, req.Model, *req.Answer)
	got := backendtest.Execute(t.Context(), t, b, req)
	if cost := got.Metadata.TotalCostUSD; got.Metadata.NumTurns == 1 && backend.USD(alone) != backend.USD(cost) {
		t.Errorf("the answer alone costs %v, the run with it %v", backend.USD(alone), backend.USD(cost))
	}
	return got
}

// timeless is what two runs of the same request have in common.
func timeless(got backendtest.Run) (backend.Result, []transcript.Step) {
	r := got.Result
	r.Metadata.DurationMS, r.Metadata.DurationAPIMS, r.Metadata.TotalCostUSD, r.Metadata.RequestID = 0, 0, nil, ""
	made := regexp.MustCompile(`[a-z]+_fake\d+|"created":\d+|(_at": ?\d+)`)
	r.Output = made.ReplaceAllString(r.Output, "")
	if r.Error != nil {
		f := *r.Error
		f.Message = regexp.MustCompile(` \(request [^)]*\)`).ReplaceAllString(f.Message, "")
		f.ResetAt = time.Time{}
		r.Error = &f
	}
	steps := slices.Clone(got.Steps)
	for n := range steps {
		steps[n].Time, steps[n].Rev = time.Time{}, 0
	}
	return r, steps
}

func wantHalfOf(t *testing.T, live, batched backendtest.Run) {
	t.Helper()
	r1, s1 := timeless(live)
	r2, s2 := timeless(batched)
	if !reflect.DeepEqual(r1, r2) {
		t.Errorf("live    %.2000v %v\nbatched %.2000v %v", r1, r1.Error, r2, r2.Error)
	}
	if !reflect.DeepEqual(s1, s2) {
		t.Errorf("steps: live    %.2000v\nbatched %.2000v", s1, s2)
	}
	if full, half := live.Metadata.TotalCostUSD, batched.Metadata.TotalCostUSD; (full == nil) != (half == nil) || backend.USD(full) != 2*backend.USD(half) {
		t.Errorf("cost %v, live %v", backend.USD(half), backend.USD(full))
	}
}

// What comes back by a batch is what would have come at once, for half the price.
func TestBatchesAnswerAsLive(t *testing.T) {
	t.Parallel()
	type turn = fakemodel.Turn
	for name, turn := range map[string]turn{
		"answer":     {Thinking: "let me see", Text: "schön <3", InputTokens: 1000, OutputTokens: 100, CachedTokens: 500},
		"long":       {TextBytes: 3 << 20},
		"refusal":    {Text: "I had better not", StopReason: "refusal"},
		"too long":   {Text: "and so on", StopReason: "max_tokens", OutputTokens: 77},
		"a tool":     {Text: "I look", Calls: []fakemodel.Call{{ID: "c1", Name: "Bash"}}},
		"400":        {Status: 400, ErrorMessage: "temperature: no"},
		"400 length": {Status: 400, ErrorMessage: "prompt is too long: 210000 tokens > 200000 maximum"},
		"401":        {Status: 401},
		"402":        {Status: 402, ErrorType: "billing_error"},
		"403":        {Status: 403},
		"404":        {Status: 404, ErrorMessage: "model: nosuch"},
		"413":        {Status: 413, ErrorType: "request_too_large"},
		"429":        {Status: 429},
		"500":        {Status: 500},
		"529":        {Status: 529, ErrorType: "overloaded_error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
				model.Script(turn)
				req := backendtest.NewRequest(t, "What is <it>?\nSay.")
				req.SystemPrompt, req.MaxCostUSD = "Be brief.", new(1.0)
				backendtest.Attach(t, &req, "a.png", pngHead)
				live := backendtest.Execute(t.Context(), t, b, req)
				batched := throughBatch(t, b, req)
				wantHalfOf(t, live, batched)
				if (live.Error == nil) != (turn.Status == 0 && turn.StopReason == "" && turn.Calls == nil) {
					t.Errorf("live: %v", live.Error)
				}
				if n := model.Executed()["only"]; n != 1 || len(model.Requests()) != 2 {
					t.Errorf("the line was asked %d times, with %d requests", n, len(model.Requests()))
				}
				wantSameBody(t, model.Requests()[0].Body, model.Requests()[1].Body)
			})
		})
	}
}

// wantSameBody: a line asks what a live request asks, but for the stream.
func wantSameBody(t *testing.T, live, line []byte) {
	t.Helper()
	var want, got map[string]any
	if err := errors.Join(json.Unmarshal(live, &want), json.Unmarshal(line, &got)); err != nil {
		t.Fatal(err)
	}
	delete(want, "stream")
	delete(want, "stream_options")
	if !reflect.DeepEqual(want, got) {
		t.Errorf("live %.2000s\nline %.2000s", live, line)
	}
}

func TestCallsThroughBatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ backend, endpoint, body string }{
		{"chat", work.EndpointChat, "{\"model\":\"gpt-4.1\",\n\"stream\":true,\"stream_options\":{\"include_usage\":true},\"x\":{\"b\":1,\"a\":\"<\"},\"messages\":[{\"role\":\"user\",\"content\":\"What?\"}]}"},
		{"chat", work.EndpointResponses, `{"model":"gpt-4.1","stream":true,"input":"What?"}`},
		{"responses", work.EndpointChat, `{"model":"gpt-4.1","messages":[{"role":"user","content":"What?"}]}`},
		{"chat", work.EndpointEmbeddings, `{"model":"gpt-4.1","input":"What?"}`},
		{"anthropic", work.EndpointMessages, `{"model":"claude-sonnet-4-5","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"What?"}]}`},
	} {
		for _, turn := range []fakemodel.Turn{
			{Text: "schön <3", InputTokens: 1000, OutputTokens: 100}, {Text: "x", StopReason: "max_tokens"}, {Status: 400, ErrorMessage: "no"}, {Status: 429}, {Status: 500},
		} {
			t.Run(fmt.Sprint(c.backend, c.endpoint, turn.Status), func(t *testing.T) {
				model := fakemodel.Start(t)
				model.Script(turn)
				b := modelAPIs(t, model.URL)[c.backend].(backend.Batcher)
				req := backendtest.NewCall(t, c.endpoint, c.body)
				live, batched := backendtest.Execute(t.Context(), t, b, req), throughBatch(t, b, req)
				wantHalfOf(t, live, batched)
				if want := max(turn.Status, 0); batched.Metadata.HTTPStatus != want && want != 0 || live.Output == "" {
					t.Errorf("status %d, %s", batched.Metadata.HTTPStatus, live.Output)
				}
				if turn.Status == 0 && backend.USD(batched.Metadata.TotalCostUSD) == 0 {
					t.Error("it is said to cost nothing")
				}
				wantSameBody(t, model.Requests()[0].Body, model.Requests()[1].Body)
				if line := lineOf(t, b, req, ""); strings.Contains(c.body, `"<"`) && !strings.Contains(string(line.Body), `{"b":1,"a":"<"}`) || line.Model == "" || line.Endpoint != c.endpoint {
					t.Errorf("the line is %+v %s", line, line.Body)
				}
			})
		}
	}
}

// The second call, which mends the first answer, is a live one.
func TestRepairOfABatchedAnswerIsLive(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.ScriptFor("city", fakemodel.Turn{Text: `{"city":"Ulm"}`}, fakemodel.Turn{Text: goodCity})
		req := backendtest.NewRequest(t, "Which city? [[script:city]]")
		req.OutputSchema = json.RawMessage(backendtest.CitySchema)
		live := backendtest.Execute(t.Context(), t, b, req)
		got := throughBatch(t, b, req)
		got.WantSuccess(t, goodCity)
		if got.Metadata.NumTurns != 2 || got.Metadata.Usage != live.Metadata.Usage || backend.USD(got.Metadata.TotalCostUSD) != 0.75*backend.USD(live.Metadata.TotalCostUSD) {
			t.Errorf("%+v for %v, live %v", got.Metadata, backend.USD(got.Metadata.TotalCostUSD), backend.USD(live.Metadata.TotalCostUSD))
		}
		if requests := model.Requests(); len(requests) != 4 || requests[2].Stream || !requests[3].Stream {
			t.Errorf("%d requests", len(requests))
		}
	})
}

// What is paid for is not refused for its price; what comes after it is.
func TestBatchedAnswersAndBudgets(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		req := backendtest.NewRequest(t, strings.Repeat("word ", 20_000))
		model.Script(fakemodel.Turn{Text: `{"city":"Ulm"}`})
		line := lineOf(t, b, req, "only")
		req.MaxCostUSD, req.OutputSchema = new(0.0001), json.RawMessage(backendtest.CitySchema)
		if _, failure := b.Line(req); failure == nil || failure.Class != work.ClassMaxCost {
			t.Errorf("a line beyond the budget: %v", failure)
		}
		answers, _ := answersOf(t, b, send(t, b, []backend.Line{line}))
		req.Answer = answers["only"]
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantFailure(t, work.ClassMaxCost)
		if got.Output != `{"city":"Ulm"}` || got.Metadata.NumTurns != 1 || len(model.Requests()) != 1 {
			t.Errorf("%q after %d requests", got.Output, len(model.Requests()))
		}
	})
}

// A cut by the budget is one, whichever way the answer came.
func TestBatchedAnswerCutByTheBudget(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Text: "and so", StopReason: "max_tokens"})
		req := backendtest.NewRequest(t, "x")
		req.MaxCostUSD = new(0.001)
		throughBatch(t, b, req).WantFailure(t, work.ClassMaxCost)
	})
}

func TestCostThatTheServerTellsIsKept(t *testing.T) {
	t.Parallel()
	model := fakemodel.Start(t)
	model.Script(fakemodel.Turn{Text: "ok", CostUSD: 0.25})
	b := modelAPIs(t, model.URL)["chat"].(backend.Batcher)
	for _, req := range []backend.Request{backendtest.NewRequest(t, "x"), backendtest.NewCall(t, work.EndpointChat, `{"model":"gpt-4.1","messages":[{"role":"user","content":"x"}]}`)} {
		if got := throughBatch(t, b, req); backend.USD(got.Metadata.TotalCostUSD) != 0.25 {
			t.Errorf("it cost %v", backend.USD(got.Metadata.TotalCostUSD))
		}
	}
}

func TestLinesThatCannotBeMade(t *testing.T) {
	t.Parallel()
	for name, b := range modelAPIs(t, "http://127.0.0.1:1") {
		b := b.(backend.Batcher)
		req := backendtest.NewRequest(t, "x")
		req.Files = []backend.File{{Name: "gone.txt", Path: "/nonexistent/gone.txt"}}
		for _, req := range []backend.Request{req, backendtest.NewCall(t, "/v1/images", `{}`), backendtest.NewCall(t, work.EndpointChat, `[]`)} {
			if _, failure := b.Line(req); failure == nil || failure.Class != work.ClassInvalidRequest {
				t.Errorf("%s: %v", name, failure)
			}
		}
	}
	_, failure := (&anthropic.Backend{Options: model.Options{Key: "x"}}).Line(backendtest.NewCall(t, work.EndpointChat, `{"model":"m"}`))
	if failure == nil || failure.Class != work.ClassInvalidRequest || !strings.Contains(failure.Message, "leave out lane") {
		t.Error(failure)
	}
	for _, b := range []backend.Batcher{&anthropic.Backend{}, &openai.Backend{}} {
		if _, failure := b.Line(backendtest.NewRequest(t, "x")); failure == nil || failure.Class != work.ClassAuth {
			t.Error(failure)
		}
		_, sent := b.SendBatch(t.Context(), "k", nil)
		_, found := b.FindBatch(t.Context(), "k", 1, time.Now())
		_, looked := b.LookAtBatch(t.Context(), "x")
		for _, err := range []error{sent, found, looked, b.BatchAnswers(t.Context(), "x", nil), b.CancelBatch(t.Context(), "x")} {
			wantBatchFailure(t, err, work.ClassAuth)
		}
	}
}

func wantBatchFailure(t *testing.T, err error, class work.Class, words ...string) {
	t.Helper()
	var failure *work.Failure
	if !errors.As(err, &failure) || failure.Class != class {
		t.Errorf("%v, want a failure of class %s", err, class)
		return
	}
	for _, word := range words {
		if !strings.Contains(failure.Message, word) {
			t.Errorf("%q lacks %q", failure.Message, word)
		}
	}
}

// Nobody knows what came of it.
func wantUnknown(t *testing.T, err error) {
	t.Helper()
	if err == nil || errors.As(err, new(*work.Failure)) {
		t.Errorf("%v, want an error that is no failure", err)
	}
}

func TestFatesOfLines(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.Batches(fakemodel.BatchPlan{
			Hold: true, Expire: fakemodel.Nth(1), Lose: fakemodel.Nth(2),
			Repeat: func(_ int, id string) bool { return id == "d" || id == "e" }, TimeOut: fakemodel.Nth(5),
		})
		ids := []string{"a", "b", "c", "d", "e", "f"}
		for _, id := range ids {
			model.ScriptFor(id, fakemodel.Turn{Text: "this is " + id})
		}
		model.ScriptFor("e", fakemodel.Turn{Status: 429})
		id := send(t, b, linesFor(t, b, ids...))
		if news := lookAt(t, b, id); news.Ended || news.Done != 0 || news.Total != 6 {
			t.Errorf("before: %+v", news)
		}
		wantNoAnswersYet(t, b, id)
		model.EndBatches()
		if news := lookAt(t, b, id); !news.Ended || news.Refused != nil || news.Done != 6 || news.Total != 6 {
			t.Errorf("after: %+v", news)
		}
		answers, count := answersOf(t, b, id)
		if got := slices.Sorted(maps.Keys(answers)); !slices.Equal(got, []string{"a", "b", "d", "e", "f"}) || count != 7 {
			t.Errorf("%d answers to %v", count, got)
		}
		if answers["b"] != nil {
			t.Errorf("the expired line has %+v", answers["b"])
		}
		for id, class := range map[string]work.Class{"e": work.ClassRateLimit, "f": work.ClassInfra} {
			req := backendtest.NewRequest(t, "x")
			req.Answer = answers[id]
			backendtest.Execute(t.Context(), t, b, req).WantFailure(t, class)
		}
		req := backendtest.NewRequest(t, "x")
		req.Answer = answers["d"]
		backendtest.Execute(t.Context(), t, b, req).WantSuccess(t, "this is d")
		if !maps.Equal(model.Executed(), map[string]int{"a": 1, "c": 1, "d": 1, "e": 1}) {
			t.Errorf("asked: %v", model.Executed())
		}
		stop := errors.New("enough")
		if err := b.BatchAnswers(t.Context(), id, func(backend.BatchAnswer) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("%v, want the error of each", err)
		}
	})
}

func wantNoAnswersYet(t *testing.T, b backend.Batcher, id string) {
	t.Helper()
	err := b.BatchAnswers(t.Context(), id, func(a backend.BatchAnswer) error {
		t.Errorf("%s has an answer", a.ID)
		return nil
	})
	if err == nil {
		t.Error("a batch that runs has answers")
	}
}

func TestBatchThatExpires(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.Batches(fakemodel.BatchPlan{Expire: fakemodel.Every})
		model.ScriptFor("a")
		id := send(t, b, linesFor(t, b, "a"))
		answers, count := answersOf(t, b, id)
		if news := lookAt(t, b, id); !news.Ended || news.Refused != nil || count != 1 || answers["a"] != nil || len(model.Executed()) != 0 {
			t.Errorf("%+v, %v", news, answers)
		}
	})
}

func TestCancelBatch(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.Batches(fakemodel.BatchPlan{Hold: true})
		model.ScriptFor("a")
		id := send(t, b, linesFor(t, b, "a"))
		for range 2 { // once more does no harm
			if err := b.CancelBatch(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		answers, count := answersOf(t, b, id)
		if news := lookAt(t, b, id); !news.Ended || count != 1 || answers["a"] != nil || len(model.Executed()) != 0 {
			t.Errorf("%+v, %v", news, answers)
		}
		wantBatchFailure(t, b.CancelBatch(t.Context(), "no/such"), work.ClassInvalidRequest, "no/such")
		_, err := b.LookAtBatch(t.Context(), "nosuch")
		wantBatchFailure(t, err, work.ClassInvalidRequest, "nosuch")
		wantBatchFailure(t, b.BatchAnswers(t.Context(), "nosuch", nil), work.ClassInvalidRequest, "nosuch")
	})
}

// A batch whose reply was lost is found again.
func TestFindBatch(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.ScriptFor("a")
		model.ScriptFor("b")
		two := linesFor(t, b, "a", "b")
		began := time.Now()
		if ids, err := b.FindBatch(t.Context(), "key-1", 2, began); err != nil || len(ids) > 0 {
			t.Errorf("found %v, %v", ids, err)
		}
		model.Batches(fakemodel.BatchPlan{Hold: true, DropReply: true})
		_, err := b.SendBatch(t.Context(), "key-1", two)
		wantUnknown(t, err)
		model.Batches(fakemodel.BatchPlan{Hold: true})
		for n := range 150 { // more than a page of others
			if _, err := b.SendBatch(t.Context(), fmt.Sprint("other-", n), two[:1]); err != nil {
				t.Fatal(err)
			}
		}
		ids, err := b.FindBatch(t.Context(), "key-1", 2, began)
		if err != nil || !slices.Equal(ids, []string{model.MadeBatches()[0].ID}) {
			t.Errorf("found %v, %v", ids, err)
		}
		if ids, err := b.FindBatch(t.Context(), "key-1", 2, time.Now().Add(2*time.Minute)); err != nil || len(ids) > 0 {
			t.Errorf("found later: %v, %v", ids, err)
		}
		key, lines, want := "other-149", 1, 1
		if b.Name() == "anthropic" {
			key, want = "", 150
		}
		ids, err = b.FindBatch(t.Context(), key, lines, began)
		if err != nil || len(ids) != want {
			t.Errorf("%d others, %v", len(ids), err)
		}
		if made := model.MadeBatches(); want > 1 && len(ids) == want && ids[0] != made[1].ID {
			t.Errorf("the likeliest is %s, not the next after it was sent, %s", ids[0], made[1].ID)
		}
	})
}

// What HTTP says to an attempt is final below 500, and open from there.
func TestSendBatchIsRefused(t *testing.T) {
	t.Parallel()
	onEachBatcher(t, func(t *testing.T, b backend.Batcher, model *fakemodel.Server) {
		model.ScriptFor("a")
		lines := linesFor(t, b, "a")
		for status, class := range map[int]work.Class{
			400: work.ClassInvalidRequest, 401: work.ClassAuth, 403: work.ClassAuth, 413: work.ClassContextTooLong, 429: work.ClassRateLimit,
		} {
			model.Batches(fakemodel.BatchPlan{Fail: fakemodel.Turn{Status: status, ErrorMessage: "go away", Headers: map[string]string{"retry-after": "7"}}})
			_, err := b.SendBatch(t.Context(), "k", lines)
			wantBatchFailure(t, err, class, "go away", "req_fake")
			var failure *work.Failure
			if errors.As(err, &failure) && (class == work.ClassRateLimit) == failure.ResetAt.IsZero() {
				t.Errorf("%d ends at %v", status, failure.ResetAt)
			}
		}
		for _, status := range []int{500, 502, 503, 529} {
			model.Batches(fakemodel.BatchPlan{Fail: fakemodel.Turn{Status: status}})
			_, err := b.SendBatch(t.Context(), "k", lines)
			wantUnknown(t, err)
		}
		if n := len(model.MadeBatches()); n != 0 {
			t.Errorf("%d batches were made", n)
		}
		model.Batches(fakemodel.BatchPlan{Missing: true})
		_, sent := b.SendBatch(t.Context(), "k", lines)
		_, found := b.FindBatch(t.Context(), "k", 1, time.Now())
		for _, err := range []error{sent, found} {
			wantBatchFailure(t, err, work.ClassInvalidRequest, "the server at "+model.URL, "has no Batch API: leave out lane, or set it to live")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.SendBatch(ctx, "k", lines)
		wantUnknown(t, err)
	})
}

func TestBatchServerIsAway(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close()
	for _, b := range modelAPIs(t, server.URL) {
		b := b.(backend.Batcher)
		_, sent := b.SendBatch(t.Context(), "k", []backend.Line{{ID: "a", Body: json.RawMessage("{}")}})
		_, found := b.FindBatch(t.Context(), "k", 1, time.Now())
		_, looked := b.LookAtBatch(t.Context(), "x")
		for _, err := range []error{sent, found, looked, b.BatchAnswers(t.Context(), "x", nil), b.CancelBatch(t.Context(), "x")} {
			wantUnknown(t, err)
		}
	}
}

// OpenAI looks at the lines after it has taken them.
func TestOpenAIRefusesABatchLater(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		plan  fakemodel.BatchPlan
		class work.Class
		words string
		bad   []string
	}{
		{fakemodel.BatchPlan{Refuse: "token_limit_exceeded"}, work.ClassRateLimit, "token_limit_exceeded: fakemodel", nil},
		{fakemodel.BatchPlan{Refuse: "billing_hard_limit_reached"}, work.ClassBilling, "billing", nil},
		{fakemodel.BatchPlan{Refuse: "invalid_json_line", RefuseLines: []int{1, 3}}, work.ClassInvalidRequest, "line 1: invalid_json_line: fakemodel", []string{"a", "c"}},
		{fakemodel.BatchPlan{Refuse: "invalid", RefuseLines: []int{5, 4, 3, 2, 1}}, work.ClassInvalidRequest, "and 2 more", []string{"a", "b", "c", "d", "e"}},
	} {
		model := fakemodel.Start(t)
		model.Batches(test.plan)
		b := modelAPIs(t, model.URL)["chat"].(backend.Batcher)
		ids := []string{"a", "b", "c", "d", "e"}
		id := send(t, b, linesFor(t, b, ids...))
		news := lookAt(t, b, id)
		if !news.Ended || news.Refused == nil || !slices.Equal(news.BadLines, test.bad) {
			t.Errorf("%+v", news)
		}
		wantBatchFailure(t, news.Refused, test.class, test.words)
		if _, count := answersOf(t, b, id); count != 0 || len(model.Executed()) != 0 {
			t.Errorf("%d answers, asked %v", count, model.Executed())
		}
	}
}

// The fake's batches are what the providers' own clients take for theirs.
func TestFakeBatchesFitTheSDKs(t *testing.T) {
	t.Parallel()
	model := fakemodel.Start(t)
	model.ScriptFor("a", fakemodel.Turn{Text: "this is a"})
	model.ScriptFor("b", fakemodel.Turn{Status: 429})
	backends := modelAPIs(t, model.URL)
	o, a := backends["chat"].(*openai.Backend), backends["anthropic"].(*anthropic.Backend)
	openaiID, anthropicID := send(t, o, linesFor(t, o, "a", "b")), send(t, a, linesFor(t, a, "a", "b"))

	service := openaisdk.NewBatchService(openaioption.WithBaseURL(o.BaseURL), openaioption.WithAPIKey(o.Key))
	b, err := service.Get(t.Context(), openaiID)
	if err != nil {
		t.Fatal(err)
	}
	if b.Status != openaisdk.BatchStatusCompleted || b.RequestCounts.Completed != 1 || b.RequestCounts.Failed != 1 || b.OutputFileID == "" || b.ErrorFileID == "" || b.Metadata["piecework"] != "key-1" {
		t.Errorf("%+v", b)
	}
	batches := anthropicsdk.NewMessageBatchService(anthropicoption.WithBaseURL(a.BaseURL), anthropicoption.WithAPIKey(a.Key))
	m, err := batches.Get(t.Context(), anthropicID, anthropicsdk.MessageBatchGetParams{})
	if err != nil {
		t.Fatal(err)
	}
	if m.ProcessingStatus != anthropicsdk.MessageBatchProcessingStatusEnded || m.RequestCounts.Succeeded != 1 || m.RequestCounts.Errored != 1 || time.Since(m.CreatedAt) > time.Hour {
		t.Errorf("%+v", m)
	}
	results := batches.ResultsStreaming(t.Context(), anthropicID, anthropicsdk.MessageBatchResultsParams{})
	said := map[string]string{}
	for results.Next() {
		line := results.Current()
		said[line.CustomID] = line.Result.Type + " " + line.Result.Error.Error.Type
		if len(line.Result.Message.Content) > 0 {
			said[line.CustomID] += line.Result.Message.Content[0].Text
		}
	}
	if results.Err() != nil || !maps.Equal(said, map[string]string{"a": "succeeded this is a", "b": "errored rate_limit_error"}) {
		t.Errorf("%v, %v", said, results.Err())
	}
}

// An answer of a good status that is none fails as a stream would.
func TestBatchedAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for body, class := range map[string]work.Class{
		`{}`: work.ClassInfra, `null`: work.ClassInfra, `"hello"`: work.ClassInfra, `[]`: work.ClassInfra, ``: work.ClassInfra,
		`{"error":{"message":"slow","type":"rate_limit_error"}}`:                                      work.ClassRateLimit,
		`{"status":"failed","model":"m","error":{"code":"rate_limit_exceeded","message":"slow"}}`:     work.ClassRateLimit,
		`{"status":"in_progress","choices":[{"message":{"content":"half"}}],"stop_reason":null}`:      work.ClassInfra,
		`{"status":"failed","error":null}`:                                                            work.ClassInfra,
		`{"status":"queued","content":"x","output":{"a":1},"choices":{"b":2},"usage":7,"error":null}`: work.ClassInfra,
	} {
		for name, b := range modelAPIs(t, "http://127.0.0.1:1") {
			req := backendtest.NewRequest(t, "x")
			req.Answer = &backend.Answer{Status: 200, Body: json.RawMessage(body)}
			if got := backendtest.Execute(t.Context(), t, b, req); got.Success || got.Error == nil || got.Error.Class != class {
				t.Errorf("%s %s: %v", name, body, got.Error)
			}
		}
	}
}

// What a Responses answer has in one piece is what its stream has.
func TestResponsesRefusalInOnePiece(t *testing.T) {
	t.Parallel()
	req := backendtest.NewRequest(t, "x")
	req.Answer = &backend.Answer{Status: 200, Body: json.RawMessage(`{"status":"completed","output":[
		{"type":"reasoning","summary":[{"type":"summary_text","text":"hm, "},{"type":"summary_text","text":"no"}]},
		{"type":"message","content":[{"type":"output_text","text":"Well: "},{"type":"refusal","refusal":"I cannot"}]}]}`)}
	got := backendtest.Execute(t.Context(), t, modelAPIs(t, "")["responses"], req)
	got.WantFailure(t, work.ClassRefusal, "I cannot")
	got.WantStep(t, transcript.Reasoning, "hm, no")
	if got.Output != "Well: " {
		t.Errorf("output %q", got.Output)
	}
}

// A file of results is read line by line, and its end must be its own.
func TestResultsAreReadAsTheyCome(t *testing.T) {
	t.Parallel()
	const lines = 200
	filler := strings.Repeat("x", 100<<10) // 20 MB together
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for n := range lines {
			if _, err := fmt.Fprintf(w, "{\"custom_id\":\"%d\",\"result\":{\"type\":\"succeeded\",\"message\":{\"x\":%q}}}\n\n", n, filler); err != nil {
				return
			}
		}
		if strings.Contains(r.URL.Path, "cut") {
			_, _ = w.Write([]byte(`{"custom_id":"half`))
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte(`{"custom_id":"last","result":{"type":"expired"}}`))
	}))
	t.Cleanup(server.Close)
	b := &anthropic.Backend{Options: model.Options{BaseURL: server.URL}}
	count := 0
	each := func(backend.BatchAnswer) error { count++; return nil }
	if err := b.BatchAnswers(t.Context(), "whole", each); err != nil || count != lines+1 {
		t.Errorf("%d answers, %v", count, err)
	}
	wantUnknown(t, b.BatchAnswers(t.Context(), "cut", each))
}
