package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/google/uuid"

	"piecework/internal/blob"
	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// batchBody is what a caller submits as a batch.
type batchBody struct {
	BatchOptions
	Units  []strictjson.Object `json:"units,omitempty" nullable:"false" doc:"The units, as POST /work-units takes them, each with a custom_id if you like; this or source. Many are better sent as lines: see the description"`
	Source *source.Source      `json:"source,omitempty" doc:"Where the units' payloads come from; this or units"`
}

// BatchOptions is what is said about a batch as a whole; the first line of
// submitted lines may be {"batch": …} with these.
type BatchOptions struct {
	Title       string            `json:"title,omitempty" maxLength:"200" doc:"For people"`
	Unit        strictjson.Object `json:"unit,omitempty" doc:"What is the same in all units, as POST /work-units takes it. What a unit says itself comes before it; payload and labels are laid over each other"`
	TestFirst   int               `json:"test_first,omitempty" minimum:"1" doc:"Run so many, then wait for an approval"`
	Concurrency int               `json:"concurrency,omitempty" minimum:"1" doc:"Units at once, at most"`
	MaxCostUSD  *float64          `json:"max_cost_usd,omitempty" doc:"Of all units together: none begins that would probably cost more than is left"`
	StopWhen    *stopWhen         `json:"stop_when,omitempty" doc:"Pause the batch when it goes wrong"`
	Synthesis   *synthesis        `json:"synthesis,omitempty" doc:"A unit that is given the results when the others are over"`
	OnInvalid   string            `json:"on_invalid,omitempty" enum:"reject,skip" doc:"About items that no unit can be made of: reject the whole batch, or leave them out; reject when left out"`
	ExpiresAt   *time.Time        `json:"expires_at,omitempty" doc:"Units that have not ended by then are timed_out, and the batch is expired"`
	CallbackURL *string           `json:"callback_url,omitempty" doc:"Is told when the batch is over or waits for an approval, by a signed POST: see /callback-secret" example:"https://example.com/done"`
	Metadata    strictjson.Texts  `json:"metadata,omitempty" maxProperties:"32" doc:"Kept with the batch"`
	DryRun      bool              `json:"dry_run,omitempty" doc:"Makes nothing: tells what would be made"`
}

type stopWhen struct {
	Window      int      `json:"window,omitempty" minimum:"1" maximum:"1000" doc:"Of how many units that finished last; 20 when left out"`
	FailureRate *float64 `json:"failure_rate,omitempty" minimum:"0" maximum:"1" doc:"More of them failed or timed out"`
	RefusalRate *float64 `json:"refusal_rate,omitempty" minimum:"0" maximum:"1" doc:"More of them were declined by the model"`
	DenialRate  *float64 `json:"denial_rate,omitempty" minimum:"0" maximum:"1" doc:"In more of them a tool was denied, whatever became of the unit"`
	MeanCostUSD *float64 `json:"mean_cost_usd,omitempty" minimum:"0" doc:"They cost more on average"`
}

// synthesis is the unit that sums a batch up.
type synthesis struct {
	Unit            strictjson.Object `json:"unit" doc:"As POST /work-units takes it; what the batch's unit says counts where it says nothing, but for the prompt and the payload. The results are attached as results.jsonl, and the payload has total, succeeded and failed"`
	DespiteFailures bool              `json:"despite_failures,omitempty" doc:"Also when units failed, if any succeeded"`
}

type batchInput struct {
	Key  string `header:"Idempotency-Key" doc:"Sent again with the same body it names the same batch"`
	Body batchBody
}

// BatchView is a batch as callers see it. It is exported for the description of what embeds it.
type BatchView struct {
	work.Batch
	Forecast *forecast `json:"forecast,omitempty" doc:"What the rest will probably take, while it awaits approval"`
}

type batchAnswer struct {
	Status   int
	Location string `header:"Location"`
	Replayed string `header:"Idempotent-Replayed" doc:"true when this Idempotency-Key had made the batch before"`
	Body     submittedBatch
}

type submittedBatch struct {
	BatchView
	Sample *sample `json:"sample,omitempty" doc:"What its first unit looks like"`
	DryRun bool    `json:"dry_run,omitempty"`
}

// sample is the first unit of a batch.
type sample struct {
	CustomID string `json:"custom_id"`
	Title    string `json:"title" doc:"The start of the rendered prompt"`
	work.Spec
}

func (a *API) submitBatch(ctx context.Context, in *batchInput) (*batchAnswer, error) {
	key, err := idempotencyKey(in.Key)
	if err != nil {
		return nil, err
	}
	var hash []byte
	if key != "" {
		hash = fingerprint(rawBody(ctx))
		if b, err := a.Store.BatchBefore(ctx, work.DefaultTenant, key, hash); !errors.Is(err, work.ErrNotFound) {
			return answerBatch(b, nil, true), err
		}
	}
	n, err := a.newBatch(&in.Body.BatchOptions)
	if err != nil {
		return nil, err
	}
	n.IdempotencyKey, n.BodyHash = key, hash
	switch {
	case in.Body.Source != nil && len(in.Body.Units) > 0:
		return nil, work.Invalidf("#/units", "give either units or source, not both")
	case in.Body.Source != nil:
		return a.submitSource(ctx, n, &in.Body)
	case len(in.Body.Units) == 0:
		return nil, work.Invalidf("#/units", "there are none; give units, or a source to make them of")
	}
	units := func(yield func(source.Line, error) bool) {
		for i, u := range in.Body.Units {
			if !yield(source.Line{Text: u, Next: source.Place{Line: i + 1}}, nil) {
				return
			}
		}
	}
	return a.submitUnits(ctx, n, in.Body.BatchOptions, units, func(i int) string { return fmt.Sprintf("#/units/%d", i-1) })
}

// newBatch turns what is said about a batch into one.
func (a *API) newBatch(o *BatchOptions) (store.NewBatch, error) {
	n := store.NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: o.Title, Protocol: work.ProtocolNative,
		Unit: json.RawMessage(o.Unit), TestFirst: o.TestFirst, Concurrency: o.Concurrency, MaxCostUSD: o.MaxCostUSD, ExpiresAt: o.ExpiresAt, CallbackURL: o.CallbackURL}}
	if o.MaxCostUSD != nil && !(*o.MaxCostUSD > 0 && *o.MaxCostUSD <= 1e9) {
		return n, work.Invalidf("#/max_cost_usd", "must be more than 0")
	}
	if o.ExpiresAt != nil && !o.ExpiresAt.After(time.Now()) {
		return n, work.Invalidf("#/expires_at", "lies in the past")
	}
	if err := keepable("#/expires_at", &n.ExpiresAt); err != nil {
		return n, err
	}
	if o.CallbackURL != nil {
		if err := a.Webhooks.CheckURL(*o.CallbackURL); err != nil {
			return n, work.Invalidf("#/callback_url", "%v", err)
		}
	}
	if s := o.StopWhen; s != nil {
		if s.FailureRate == nil && s.RefusalRate == nil && s.DenialRate == nil && s.MeanCostUSD == nil {
			return n, work.Invalidf("#/stop_when", "name a failure_rate, a refusal_rate, a denial_rate or a mean_cost_usd")
		}
		n.StopWhen = &work.StopWhen{Window: cmp.Or(s.Window, work.DefaultStopWindow), FailureRate: s.FailureRate, RefusalRate: s.RefusalRate, DenialRate: s.DenialRate, MeanCostUSD: s.MeanCostUSD}
	}
	var err error
	if n.Metadata = json.RawMessage(o.Metadata); len(n.Metadata) > 0 {
		if err := strictjson.CheckTexts("#/metadata", n.Metadata); err != nil {
			return n, err
		}
	}
	if o.Synthesis != nil {
		n.Synthesis, err = json.Marshal(o.Synthesis)
	}
	return n, err
}

// submitSource commits a batch whose units are made afterwards. Its first item
// is looked at now, so that a mistake in the template is heard of at once.
func (a *API) submitSource(ctx context.Context, n store.NewBatch, body *batchBody) (*batchAnswer, error) {
	s := batchSource{Source: *body.Source, OnInvalid: cmp.Or(body.OnInvalid, onInvalidReject)}
	if field, detail := s.Check(); field != "" {
		return nil, work.Invalidf("#/source/"+field, "%s", detail)
	}
	items, closing, err := a.items(ctx, n.Batch, s, source.Place{}, false)
	if err != nil {
		return nil, err
	}
	defer closing()
	look := inspection{a: a, ctx: ctx, batch: n.Batch, skip: s.OnInvalid == onInvalidSkip, seen: map[uint64]bool{}, pointer: func(line int) string { return fmt.Sprintf("#/source/items/%d", line) }}
	for it, err := range items {
		if errors.Is(err, source.ErrBroken) {
			return nil, work.Invalidf("#/source/path", "%v", err)
		}
		if err != nil {
			return nil, err
		}
		if err := look.at(it); err != nil {
			return nil, err
		}
		if !body.DryRun && (look.count > 0 || len(look.problems) > 0) {
			break
		}
	}
	if look.count == 0 && len(look.problems) == 0 {
		return nil, work.Invalidf("#/source", "there is nothing in it to make a unit of")
	}
	if !look.skip && len(look.problems) > 0 {
		return nil, look.refusal()
	}
	if err := a.checkSynthesis(ctx, &n); err != nil {
		return nil, err
	}
	if id, ok := work.UploadedFile(s.Path); ok {
		n.InputFile = &id
	}
	if n.Source, err = json.Marshal(s); err != nil {
		return nil, err
	}
	if body.DryRun {
		return look.wouldBe(n), nil
	}
	return a.addBatch(ctx, n, look.sample)
}

// submitUnits looks at every unit, keeps them in a file, and commits the batch:
// its units are made from the file, also when this process dies now.
func (a *API) submitUnits(ctx context.Context, n store.NewBatch, o BatchOptions, units iter.Seq2[source.Line, error], pointer func(line int) string) (*batchAnswer, error) {
	look := inspection{a: a, ctx: ctx, batch: n.Batch, skip: o.OnInvalid == onInvalidSkip, seen: map[uint64]bool{}, pointer: pointer}
	file := work.File{ID: uuid.Must(uuid.NewV7()), Tenant: n.Tenant, Name: "batch-" + n.ID.String() + ".jsonl", MediaType: "application/jsonl"}
	if !o.DryRun {
		if err := a.Store.ExpectBlobs(ctx, []uuid.UUID{file.ID}); err != nil {
			return nil, err
		}
	}
	stored, err := a.spool(ctx, file.ID, o.DryRun, func(w io.Writer) error { return look.all(w, n.Unit, units) })
	if err == nil && len(look.problems) > 0 && (!look.skip || look.count == 0) {
		err = look.refusal()
	}
	if err == nil && look.count == 0 {
		err = work.Invalidf("#/units", "there are none")
	}
	if err == nil {
		err = a.checkSynthesis(ctx, &n)
	}
	if o.DryRun {
		return look.wouldBe(n), err
	}
	if err == nil {
		file.Size, file.SHA256 = stored.Size, stored.SHA256
		_, err = a.Store.AddFile(ctx, file)
	}
	if err != nil {
		a.removeBlob(ctx, file.ID)
		return nil, err
	}
	n.InputFile = &file.ID
	s := batchSource{Source: source.Source{Type: typeUnits, Path: file.ID.String()}, OnInvalid: cmp.Or(o.OnInvalid, onInvalidReject)}
	if n.Source, err = json.Marshal(s); err != nil {
		return nil, err
	}
	n.Problems, n.Rejected = look.problems, look.refused
	return a.addBatch(ctx, n, look.sample)
}

// maxBatchBytes is how large the units of one batch may be that come in one
// request.
const maxBatchBytes = 16 << 30

// spool lets write fill a file of the store, or nothing at all.
func (a *API) spool(ctx context.Context, id uuid.UUID, dry bool, write func(io.Writer) error) (blob.Stored, error) {
	if dry {
		return blob.Stored{}, write(io.Discard)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(write(w)) }()
	stored, err := a.Files.Put(ctx, id, r, maxBatchBytes)
	_ = r.CloseWithError(err) // write ends, whatever it was at
	return stored, err
}

func (a *API) addBatch(ctx context.Context, n store.NewBatch, first *sample) (*batchAnswer, error) {
	b, replayed, err := a.Store.AddBatch(ctx, n)
	if err != nil {
		return nil, err
	}
	a.fillSoon()
	return answerBatch(b, first, replayed), nil
}

func answerBatch(b work.Batch, first *sample, replayed bool) *batchAnswer {
	answer := &batchAnswer{Status: http.StatusAccepted, Location: "/batches/" + b.ID.String(), Body: submittedBatch{BatchView: BatchView{Batch: b}, Sample: first}}
	if replayed {
		answer.Replayed = "true"
	}
	return answer
}

// checkSynthesis looks at the unit that sums the batch up, as it will be.
func (a *API) checkSynthesis(ctx context.Context, n *store.NewBatch) error {
	if len(n.Synthesis) == 0 {
		return nil
	}
	var s synthesis
	if err := json.Unmarshal(n.Synthesis, &s); err != nil {
		return err
	}
	body, err := s.body(n.Unit, work.BatchCounts{})
	if err != nil {
		return err
	}
	_, wrong, err := a.unitFrom(ctx, body)
	for i := range wrong {
		wrong[i] = pointAt("#/synthesis/unit", wrong[i])
	}
	if len(wrong) > 0 {
		return newFieldsProblem(http.StatusUnprocessableEntity, wrong...)
	}
	return err
}

// body is the body of the synthesis: what the batch's unit says about where and
// how it runs counts for it too.
func (s synthesis) body(unit json.RawMessage, c work.BatchCounts) (json.RawMessage, error) {
	own := map[string]json.RawMessage{}
	if err := json.Unmarshal(strictjson.OrEmpty(json.RawMessage(s.Unit)), &own); err != nil {
		return nil, work.Invalidf("#/synthesis/unit", "must be an object")
	}
	under := map[string]json.RawMessage{}
	if err := json.Unmarshal(strictjson.OrEmpty(unit), &under); err != nil {
		return nil, work.Invalidf("#/unit", "must be an object")
	}
	for _, name := range []string{"prompt", "payload", "files", "output_schema", "accept", "custom_id"} {
		delete(under, name)
	}
	if own["backend"] != nil || own["worker"] != nil {
		delete(under, "backend")
		delete(under, "worker")
		delete(under, "model")
	}
	figures, err := json.Marshal(map[string]int{"total": c.Total, "succeeded": c.Succeeded, "failed": c.Total - c.Succeeded})
	if err != nil {
		return nil, err
	}
	switch given := own["payload"]; {
	case len(given) == 0:
		own["payload"] = figures
	case given[0] == '{':
		if own["payload"], err = strictjson.Overlay(figures, given); err != nil {
			return nil, err
		}
	}
	base, err := json.Marshal(under)
	if err != nil {
		return nil, err
	}
	return strictjson.Merge(base, own)
}

// pointAt puts an error about a part of the body into its place.
func pointAt(place string, e ProblemError) ProblemError {
	if e.Pointer != "" {
		e.Pointer = place + e.Pointer[1:]
	} else {
		e.Pointer = place
	}
	return e
}

func (a *API) viewBatch(ctx context.Context, b work.Batch, t store.Trial) (BatchView, error) {
	v := BatchView{Batch: b}
	if b.Status != work.BatchAwaitingApproval {
		return v, nil
	}
	processes, err := a.Store.Processes(ctx)
	if err != nil {
		return v, err
	}
	slots := 0
	for _, p := range processes {
		if p.Live {
			slots += p.Slots
		}
	}
	if b.Concurrency > 0 {
		slots = min(slots, b.Concurrency)
	}
	f := forecast{Trial: t.Finished, Succeeded: t.Succeeded, Left: t.Left, CostUSD: expectCost(t.Left, t),
		RunTime: expect(t.Left, t.Time)}
	f.Elapsed = f.RunTime.over(float64(max(min(slots, t.Left), 1)))
	v.Forecast = &f
	return v, nil
}

type oneBatch struct{ Body BatchView }

func (a *API) getBatch(ctx context.Context, in *ByID) (*oneBatch, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	return a.answerOne(ctx, id)
}

func (a *API) answerOne(ctx context.Context, id uuid.UUID) (*oneBatch, error) {
	b, t, err := a.Store.TriedBatch(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	v, err := a.viewBatch(ctx, b, t)
	return &oneBatch{v}, err
}

type listBatchesInput struct {
	Status string `query:"status" doc:"One or more statuses, separated by commas" example:"in_progress"`
	Search string `query:"q" doc:"Part of the title, in any case" maxLength:"200"`
	After  string `query:"after" doc:"The next of the page before"`
	Limit  int    `query:"limit" default:"50" minimum:"1" maximum:"100"`
}

type batchList struct {
	Body struct {
		Items []work.Batch `json:"items" nullable:"false"`
		Next  *uuid.UUID   `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"BatchList"`
}

func (a *API) listBatches(ctx context.Context, in *listBatchesInput) (*batchList, error) {
	f := store.BatchFilter{Tenant: work.DefaultTenant, Search: in.Search, Limit: in.Limit}
	var err error
	if f.Statuses, err = parseStates(in.Status, work.BatchStatuses); err != nil {
		return nil, err
	}
	if f.After, err = parseAfter(in.After); err != nil {
		return nil, err
	}
	batches, next, err := a.Store.Batches(ctx, f)
	if err != nil {
		return nil, err
	}
	var list batchList
	list.Body.Items, list.Body.Next = batches, next
	for i := range batches {
		batches[i].Problems = nil // of one batch alone
	}
	return &list, nil
}

// whyBatchHolds tells why a batch has not let a unit go.
func whyBatchHolds(b work.Batch) reason {
	switch {
	case b.Paused != nil:
		p := operatorPause{Since: b.Paused.Since.UTC(), By: b.Paused.By, Why: b.Paused.Why}
		return reason{Code: "batch_paused", Detail: fmt.Sprintf("its batch is %s (go on with `piecework batch resume %s`)", p.words(), b.ID)}
	case b.Status == work.BatchEnumerating:
		return reason{Code: "batch_enumerating", Detail: fmt.Sprintf("the units of its batch are still being made; %d are there", b.Counts.Total)}
	case b.Status == work.BatchTesting:
		return reason{Code: "batch_testing", Detail: fmt.Sprintf("the first %d units of its batch run before the others", b.TestFirst)}
	case b.Status == work.BatchAwaitingApproval:
		return reason{Code: "batch_awaits_approval", Detail: fmt.Sprintf("its batch has been tested and waits for a person (`piecework batch approve %s` or `piecework batch cancel %s`)", b.ID, b.ID)}
	case b.Status == work.BatchCancelling:
		return reason{Code: "batch_cancelling", Detail: "its batch is being cancelled"}
	}
	c := b.Counts
	detail := fmt.Sprintf("other units of its batch go before it: %d of %d have finished, and %d may be at work at once", c.Finished(), c.Total,
		min(cmp.Or(b.Concurrency, work.BatchWindow), work.BatchWindow))
	if b.MaxCostUSD != nil {
		detail += fmt.Sprintf("; %s of its budget of %s is spent", c.CostText(), work.Dollars(*b.MaxCostUSD))
	}
	return reason{Code: "batch_order", Detail: detail}
}
