package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"piecework/api/query"
	"piecework/internal/work"
	"piecework/store"
)

// Reason is one thing that a unit waits for.
type Reason struct {
	Code   string     `json:"code" enum:"ended,running,approval,provider_batch,scheduled,retry,no_worker_process,no_sign_of_life,queue_not_served,backend_unavailable,backend_paused,rate_limited,queue_paused,batch_paused,batch_enumerating,batch_testing,batch_awaits_approval,batch_cancelling,batch_order,taken,busy,next" doc:"For programs"`
	Detail string     `json:"detail" doc:"For people: what it waits for and what to do"`
	Until  *time.Time `json:"until,omitempty" doc:"When this reason ends, if that is known"`

	Held store.PauseKind `json:"-"` // what a resume lets go on; empty: none would help
}

type Explanation struct {
	ID      uuid.UUID  `json:"id"`
	Status  work.State `json:"status"`
	Reasons []Reason   `json:"reasons" nullable:"false" doc:"Every reason there is; the unit begins when none but next is left"`
	// What ends the wait in another way.
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When it ends if it has not started by then"`
	Ahead     *int       `json:"ahead" doc:"Units that are due and go before it, 10000 at most; null unless it is queued"`
}

type explainAnswer struct {
	Body Explanation `nameHint:"Explanation"`
}

func (o *Operations) ExplainUnit(ctx context.Context, in *query.ByID) (*explainAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := o.Explain(ctx, id)
	return &explainAnswer{e}, err
}

func (o *Operations) Explain(ctx context.Context, id uuid.UUID) (Explanation, error) {
	u, err := o.store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{ID: u.ID, Status: u.State, Reasons: whereItStands(u)}
	if u.State == work.Waiting && u.Lane == work.LaneBatch {
		lane, err := o.store.ProviderBatches.LaneOf(ctx, id)
		e.Reasons = []Reason{whyInLane(u, lane)}
		return e, err
	}
	if u.State != work.Queued {
		return e, nil
	}
	if u.Held && u.BatchID != nil {
		b, err := o.store.Batches.Get(ctx, u.Tenant, *u.BatchID)
		e.Reasons = append(e.Reasons, whyBatchHolds(b))
		return e, err
	}
	place, err := o.store.Queues.Place(ctx, u)
	if err != nil {
		return e, err
	}
	processes, err := o.store.Processes.List(ctx)
	if err != nil {
		return e, err
	}
	pauses, err := o.store.Pauses.List(ctx)
	if err != nil {
		return e, err
	}
	e.Ahead = &place.Ahead
	if u.StartedAt == nil {
		e.ExpiresAt = u.ExpiresAt
	}
	e.Reasons = slices.Concat(whyScheduled(u, place), whyHeld(u, pauses), whyNowhere(u, processes))
	if o.bell.Up() && o.bell.Paused(ctx, o.bell.QueueName(u.Queue, u.Backend, u.Priority)) {
		e.Reasons = append(e.Reasons, Reason{Code: "queue_paused", Detail: fmt.Sprintf(
			"the Asynq queue %s is paused in Redis", o.bell.QueueName(u.Queue, u.Backend, u.Priority))})
	}
	if len(e.Reasons) == 0 && o.bell.Up() && o.bell.Taken(ctx, store.MessageOf(u)) {
		e.Reasons = append(e.Reasons, Reason{Code: "taken", Detail: "a worker process has taken its message and has not begun it; " +
			"after two seconds it is offered to the others again"})
	}
	if len(e.Reasons) == 0 {
		e.Reasons = append(e.Reasons, whenNext(u, place, processes))
	}
	return e, nil
}

// whereItStands is the reason of a unit that is not queued.
func whereItStands(u work.Unit) []Reason {
	switch u.State {
	case work.Queued:
		return nil
	case work.Running:
		return []Reason{{Code: "running", Detail: fmt.Sprintf("run %d is at work", u.RunCount)}}
	case work.Waiting:
		return []Reason{{Code: "approval", Detail: "a tool call waits for a person's answer"}}
	}
	r := Reason{Code: "ended", Detail: "the unit has " + Ended(u.State)}
	if u.Error != nil {
		r.Detail += ": " + u.Error.Message
	}
	return []Reason{r}
}

// whyInLane tells where a unit of the batch lane waits.
func whyInLane(u work.Unit, lane store.BatchLane) Reason {
	r := Reason{Code: "provider_batch", Until: lane.Ends}
	switch b := lane.Batch; {
	case b == nil:
		r.Detail = fmt.Sprintf("it goes into the next batch for %s, which a worker process with that backend packs (PIECEWORK_PACK)", u.Backend)
	case b.SendingAt == nil:
		r.Detail = fmt.Sprintf("it is packed into a batch for %s, which is to be sent", u.Backend)
	case b.RemoteID == nil:
		r.Detail = fmt.Sprintf("it is in a batch that is being sent to %s since %s", u.Backend, work.When(*b.SendingAt))
	default:
		r.Detail = fmt.Sprintf("it is one of %d lines of %s's batch %s, sent %s; %d are over", b.Lines, u.Backend, *b.RemoteID, work.When(*b.SentAt), b.Done)
	}
	if lane.Batch != nil && lane.Batch.Error != "" {
		r.Detail += "; the last look said: " + lane.Batch.Error
	}
	if lane.Ends != nil {
		r.Detail += "; it runs live if that has not answered by " + work.When(*lane.Ends)
	}
	return r
}

func Ended(s work.State) string {
	switch s {
	case work.TimedOut:
		return "timed out"
	case work.Cancelled:
		return "been cancelled"
	}
	return string(s)
}

func whyScheduled(u work.Unit, place store.Place) []Reason {
	if !place.Scheduled {
		return nil
	}
	if u.Error != nil {
		return []Reason{{Code: "retry", Until: u.NotBefore, Detail: fmt.Sprintf("run %d ended with %s; the next may begin at %s",
			u.RunCount, u.Error, work.When(*u.NotBefore))}}
	}
	return []Reason{{Code: "scheduled", Until: u.NotBefore, Detail: "it is not to run before " + work.When(*u.NotBefore)}}
}

// whyNowhere tells why no worker process would begin the unit just now, nil
// when one would if it had a free slot.
func whyNowhere(u work.Unit, processes []work.Process) []Reason {
	live := slices.DeleteFunc(slices.Clone(processes), func(p work.Process) bool { return !p.Live })
	if len(live) == 0 {
		return []Reason{{Code: "no_worker_process", Detail: "no worker process is alive: start `piecework worker`"}}
	}
	serving := slices.DeleteFunc(live, func(p work.Process) bool { return !slices.Contains(p.Queues, u.Queue) })
	if len(serving) == 0 {
		return []Reason{{Code: "queue_not_served", Detail: fmt.Sprintf(
			"no live worker process serves the queue %q: name it in the PIECEWORK_QUEUES of one", u.Queue)}}
	}
	serving = slices.DeleteFunc(serving, func(p work.Process) bool { return p.Quiet })
	if len(serving) == 0 {
		return []Reason{{Code: "no_sign_of_life", Detail: fmt.Sprintf(
			"the worker processes of the queue %q give no sign of life, so they take no units: they have lost Postgres, or are frozen; start another, or wait for them", u.Queue)}}
	}
	missing := Reason{Code: "backend_unavailable", Detail: fmt.Sprintf("no live worker process of the queue %q has the backend %s", u.Queue, u.Backend)}
	var paused *Reason
	sooner := func(r Reason) {
		if paused == nil || r.Until != nil && paused.Until != nil && r.Until.Before(*paused.Until) {
			paused = &r
		}
	}
	for _, p := range serving {
		o, ok := offerOf(p, u.Backend)
		switch {
		case !ok:
		case !o.Available:
			missing.Detail = o.Detail
		case o.Paused != nil:
			sooner(whyPaused(u.Backend, *o.Paused))
		case isShut(o, u.Model):
			sooner(whyShut(u.Backend, *o.LimitOf(u.Model)))
		default:
			return nil
		}
	}
	if paused != nil {
		return []Reason{*paused}
	}
	return []Reason{missing}
}

func whyPaused(backend string, p work.Pause) Reason {
	if p.Until != nil {
		return Reason{Code: "rate_limited", Until: p.Until, Detail: fmt.Sprintf("the limit of %s was met: %s", backend, p.Message)}
	}
	return Reason{Code: "backend_paused", Held: store.PauseBackend, Detail: fmt.Sprintf("%s is paused since %s: %s: %s (%s)",
		backend, work.When(p.Since), p.Class, p.Message, p.Class.Advice())}
}

// isShut tells whether a model waits for the end of its rate limit.
func isShut(o work.Offer, model string) bool {
	l := o.LimitOf(model)
	return l != nil && l.Until != nil
}

func whyShut(backend string, l work.ModelLimit) Reason {
	return Reason{Code: "rate_limited", Until: l.Until, Detail: fmt.Sprintf("the limit of %s for %s was met, its units begin again at %s: %s",
		backend, l.Name(), work.When(*l.Until), l.Message)}
}

func whenNext(u work.Unit, place store.Place, processes []work.Process) Reason {
	slots, running, pace, unpaced := 0, 0, 0.0, false
	for _, p := range processes {
		o, _ := offerOf(p, u.Backend)
		if p.Live && !p.Quiet && statusOf(o) == "available" && slices.Contains(p.Queues, u.Queue) && !isShut(o, u.Model) {
			slots, running = slots+p.Slots, running+p.Running
			if l := o.LimitOf(u.Model); l == nil {
				unpaced = true
			} else {
				pace += l.PerSecond
			}
		}
	}
	if !unpaced && pace > 0 {
		return Reason{Code: "rate_limited", Detail: fmt.Sprintf("the limit of %s for its model was met; about %.2g units of that model begin in a second until it is known to be over", u.Backend, pace)}
	}
	if running >= slots {
		return Reason{Code: "busy", Detail: fmt.Sprintf("all %d slots of its worker processes are in use; %d units go before it", slots, place.Ahead)}
	}
	return Reason{Code: "next", Detail: fmt.Sprintf("nothing is in its way; %d units go before it", place.Ahead)}
}

// whyBatchHolds tells why a batch has not let a unit go.
func whyBatchHolds(b work.Batch) Reason {
	switch {
	case b.Paused != nil:
		p := OperatorPause{Since: b.Paused.Since.UTC(), By: b.Paused.By, Why: b.Paused.Why}
		return Reason{Code: "batch_paused", Detail: fmt.Sprintf("its batch is %s (go on with `piecework batch resume %s`)", p.Words(), b.ID)}
	case b.Status == work.BatchEnumerating:
		return Reason{Code: "batch_enumerating", Detail: fmt.Sprintf("the units of its batch are still being made; %d are there", b.Counts.Total)}
	case b.Status == work.BatchTesting:
		return Reason{Code: "batch_testing", Detail: fmt.Sprintf("the first %d units of its batch run before the others", b.TestFirst)}
	case b.Status == work.BatchAwaitingApproval:
		return Reason{Code: "batch_awaits_approval", Detail: fmt.Sprintf("its batch has been tested and waits for a person (`piecework batch approve %s` or `piecework batch cancel %s`)", b.ID, b.ID)}
	case b.Status == work.BatchCancelling:
		return Reason{Code: "batch_cancelling", Detail: "its batch is being cancelled"}
	}
	c := b.Counts
	detail := fmt.Sprintf("other units of its batch go before it: %d of %d have finished, and %d may be at work at once", c.Finished(), c.Total,
		min(cmp.Or(b.Concurrency, work.BatchWindow), work.BatchWindow))
	if b.MaxCostUSD != nil {
		detail += fmt.Sprintf("; %s of its budget of %s is spent", c.CostText(), work.Dollars(*b.MaxCostUSD))
	}
	return Reason{Code: "batch_order", Detail: detail}
}
