package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"

	"piecework/internal/blob"
	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// BatchOptions is what is said about a batch as a whole; the first line of
// submitted lines may be {"batch": …} with these.
type BatchOptions struct {
	Title       string            `json:"title,omitempty" maxLength:"200" doc:"For people"`
	Unit        strictjson.Object `json:"unit,omitempty" doc:"What is the same in all units, as POST /work-units takes it. What a unit says itself comes before it; payload and labels are laid over each other"`
	TestFirst   int               `json:"test_first,omitempty" minimum:"1" doc:"Run so many, then wait for an approval"`
	Concurrency int               `json:"concurrency,omitempty" minimum:"1" doc:"Units at once, at most"`
	MaxCostUSD  *float64          `json:"max_cost_usd,omitempty" doc:"Of all units together: none begins that would probably cost more than is left"`
	StopWhen    *StopRules        `json:"stop_when,omitempty" doc:"Pause the batch when it goes wrong"`
	Synthesis   *synthesis        `json:"synthesis,omitempty" doc:"A unit that is given the results when the others are over"`
	OnInvalid   string            `json:"on_invalid,omitempty" enum:"reject,skip" doc:"About items that no unit can be made of: reject the whole batch, or leave them out; reject when left out"`
	ExpiresAt   *time.Time        `json:"expires_at,omitempty" doc:"Units that have not ended by then are timed_out, and the batch is expired"`
	CallbackURL *string           `json:"callback_url,omitempty" doc:"Is told when the batch is over or waits for an approval, by a signed POST: see /callback-secret" example:"https://example.com/done"`
	Metadata    strictjson.Texts  `json:"metadata,omitempty" maxProperties:"32" doc:"Kept with the batch"`
	DryRun      bool              `json:"dry_run,omitempty" doc:"Makes nothing: tells what would be made"`
}

type StopRules struct {
	Window      int      `json:"window,omitempty" minimum:"1" maximum:"1000" doc:"Of how many units that finished last; 20 when left out"`
	FailureRate *float64 `json:"failure_rate,omitempty" minimum:"0" maximum:"1" doc:"More of them failed or timed out"`
	RefusalRate *float64 `json:"refusal_rate,omitempty" minimum:"0" maximum:"1" doc:"More of them were declined by the model"`
	DenialRate  *float64 `json:"denial_rate,omitempty" minimum:"0" maximum:"1" doc:"In more of them a tool was denied, whatever became of the unit"`
	MeanCostUSD *float64 `json:"mean_cost_usd,omitempty" minimum:"0" doc:"They cost more on average"`
}

// Sample is the first unit of a batch.
type Sample struct {
	CustomID string `json:"custom_id"`
	Title    string `json:"title" doc:"The start of the rendered prompt"`
	work.Spec
}

// NewBatch turns what is said about a batch into one.
func (r *Rules) NewBatch(o *BatchOptions) (store.NewBatch, error) {
	n := store.NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: o.Title,
		Protocol: work.ProtocolNative,
		Unit:     json.RawMessage(o.Unit), TestFirst: o.TestFirst, Concurrency: o.Concurrency, MaxCostUSD: o.MaxCostUSD,
		ExpiresAt: o.ExpiresAt, CallbackURL: o.CallbackURL}}
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
		if err := r.Webhooks.CheckURL(*o.CallbackURL); err != nil {
			return n, work.Invalidf("#/callback_url", "%v", err)
		}
	}
	if s := o.StopWhen; s != nil {
		if s.FailureRate == nil && s.RefusalRate == nil && s.DenialRate == nil && s.MeanCostUSD == nil {
			return n, work.Invalidf("#/stop_when", "name a failure_rate, a refusal_rate, a denial_rate or a mean_cost_usd")
		}
		n.StopWhen = &work.StopWhen{Window: cmp.Or(s.Window, work.DefaultStopWindow), FailureRate: s.FailureRate,
			RefusalRate: s.RefusalRate, DenialRate: s.DenialRate, MeanCostUSD: s.MeanCostUSD}
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

// SubmitSource commits a batch whose units are made afterwards. Its first item
// is looked at now, so that a mistake in the template is heard of at once.
func (s *Submitter) SubmitSource(ctx context.Context, n store.NewBatch, o BatchOptions, given source.Source) (SubmittedBatch, error) {
	var none SubmittedBatch
	from := batchSource{Source: given, OnInvalid: cmp.Or(o.OnInvalid, onInvalidReject)}
	if field, detail := from.Check(); field != "" {
		return none, work.Invalidf("#/source/"+field, "%s", detail)
	}
	items, closing, err := s.items(ctx, n.Batch, from, source.Place{}, false)
	if err != nil {
		return none, err
	}
	defer closing()
	look := inspection{s: s, ctx: ctx, batch: n.Batch, skip: from.OnInvalid == onInvalidSkip, seen: map[uint64]bool{},
		pointer: func(line int) string { return fmt.Sprintf("#/source/items/%d", line) }}
	for it, err := range items {
		if errors.Is(err, source.ErrBroken) {
			return none, work.Invalidf("#/source/path", "%v", err)
		}
		if err != nil {
			return none, err
		}
		if err := look.at(it); err != nil {
			return none, err
		}
		if !o.DryRun && (look.count > 0 || len(look.problems) > 0) {
			break
		}
	}
	if look.count == 0 && len(look.problems) == 0 {
		return none, work.Invalidf("#/source", "there is nothing in it to make a unit of")
	}
	if !look.skip && len(look.problems) > 0 {
		return none, look.refusal()
	}
	if err := s.checkSynthesis(ctx, &n); err != nil {
		return none, err
	}
	if id, ok := work.UploadedFile(from.Path); ok {
		n.InputFile = &id
	}
	if n.Source, err = json.Marshal(from); err != nil {
		return none, err
	}
	if o.DryRun {
		return look.wouldBe(n), nil
	}
	return s.addSampled(ctx, n, look.sample)
}

// SubmitUnits looks at every unit, keeps them in a file, and commits the batch:
// its units are made from the file, also when this process dies now.
func (s *Submitter) SubmitUnits(ctx context.Context, n store.NewBatch, o BatchOptions, units iter.Seq2[source.Line, error],
	pointer func(line int) string) (SubmittedBatch, error) {
	look := inspection{s: s, ctx: ctx, batch: n.Batch, skip: o.OnInvalid == onInvalidSkip, seen: map[uint64]bool{}, pointer: pointer}
	file := work.File{ID: uuid.Must(uuid.NewV7()), Tenant: n.Tenant, Name: "batch-" + n.ID.String() + ".jsonl", MediaType: "application/jsonl"}
	if !o.DryRun {
		if err := s.Store.Files.ExpectBlobs(ctx, []uuid.UUID{file.ID}); err != nil {
			return SubmittedBatch{}, err
		}
	}
	stored, err := s.spool(ctx, file.ID, o.DryRun, func(w io.Writer) error { return look.all(w, n.Unit, units) })
	if err == nil && len(look.problems) > 0 && (!look.skip || look.count == 0) {
		err = look.refusal()
	}
	if err == nil && look.count == 0 {
		err = work.Invalidf("#/units", "there are none")
	}
	if err == nil {
		err = s.checkSynthesis(ctx, &n)
	}
	if o.DryRun {
		return look.wouldBe(n), err
	}
	if err == nil {
		file.Size, file.SHA256 = stored.Size, stored.SHA256
		_, err = s.Store.Files.Add(ctx, file)
	}
	if err != nil {
		s.RemoveBlob(ctx, file.ID)
		return SubmittedBatch{}, err
	}
	n.InputFile = &file.ID
	from := batchSource{Source: source.Source{Type: typeUnits, Path: file.ID.String()}, OnInvalid: cmp.Or(o.OnInvalid, onInvalidReject)}
	if n.Source, err = json.Marshal(from); err != nil {
		return SubmittedBatch{}, err
	}
	n.Problems, n.Rejected = look.problems, look.refused
	return s.addSampled(ctx, n, look.sample)
}

// MaxBatchBytes is how large the units of one batch may be that come in one
// request.
const MaxBatchBytes = 16 << 30

// spool lets write fill a file of the store, or nothing at all.
func (s *Submitter) spool(ctx context.Context, id uuid.UUID, dry bool, write func(io.Writer) error) (blob.Stored, error) {
	if dry {
		return blob.Stored{}, write(io.Discard)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(write(w)) }()
	stored, err := s.Files.Put(ctx, id, r, MaxBatchBytes)
	_ = r.CloseWithError(err) // write ends, whatever it was at
	return stored, err
}

// SubmittedBatch is a batch as it was submitted.
type SubmittedBatch struct {
	work.Batch
	Sample   *Sample // what its first unit looks like
	Replayed bool    // its idempotency key had made it before
	DryRun   bool    // nothing was made
}

func (s *Submitter) addSampled(ctx context.Context, n store.NewBatch, first *Sample) (SubmittedBatch, error) {
	b, replayed, err := s.AddBatch(ctx, n)
	return SubmittedBatch{Batch: b, Sample: first, Replayed: replayed}, err
}

// AddBatch commits a batch, or finds the one that its key made before, and has its
// units made.
func (s *Submitter) AddBatch(ctx context.Context, n store.NewBatch) (b work.Batch, replayed bool, err error) {
	if b, replayed, err = s.Store.Batches.Add(ctx, n); err == nil {
		s.EnumerateSoon(ctx, b.ID)
	}
	return b, replayed, err
}

// ReadBatchOptions reads what is said about a batch as strictly as the body of a
// request.
func (s *Submitter) ReadBatchOptions(text json.RawMessage) (o BatchOptions, err error) {
	if wrong := s.schemas.Parse(text, &o, false); len(wrong) > 0 {
		return o, &work.InvalidFields{Fields: wrong}
	}
	return o, nil
}

// Result is one unit of a batch in its results.
type Result struct {
	CustomID string        `json:"custom_id"`
	ID       uuid.UUID     `json:"id"`
	Status   work.State    `json:"status"`
	Output   *string       `json:"output"`
	Error    *work.Failure `json:"error"`
	Backend  string        `json:"backend"`
	Model    string        `json:"model,omitempty"`
	work.Cost
	Usage      work.Usage `json:"usage"`
	RunCount   int        `json:"run_count"`
	StartedAt  *time.Time `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"`
}

func resultOf(r store.BatchResult) Result {
	return Result{CustomID: r.CustomID, ID: r.ID, Status: r.State, Output: r.Output, Error: r.Error, Backend: r.Backend, Model: r.RunModel,
		Cost: r.Cost, Usage: r.Usage, RunCount: r.RunCount, StartedAt: utc(r.StartedAt), FinishedAt: utc(r.FinishedAt)}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	at := t.UTC()
	return &at
}

// EachResult gives results to f one after the other.
type EachResult func(f func(store.BatchResult) error) error

// WriteResults writes results as lines of JSON.
func WriteResults(w io.Writer, each EachResult) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return each(func(r store.BatchResult) error { return out.Encode(resultOf(r)) })
}
