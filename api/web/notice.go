package web

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"piecework/api/ops"
	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// doneParameter says what was done just now: cancelled, retried, retried:57,
// redelivered, paused:queue:default. Who writes one by hand sees what is true all the same.
var doneParameter = regexp.MustCompile(`^(cancelled|retried|redelivered|paused|resumed|approved)(?::(queue|backend):([a-z0-9_-]{1,64})|:(\d{1,9})(\+?))?$`)

// notice tells what done says on the page back, nil when it says nothing.
func (a *site) notice(ctx context.Context, done, back string) (*page.Notice, error) {
	m := doneParameter.FindStringSubmatch(done)
	if m == nil {
		return nil, nil
	}
	n := &page.Notice{Close: back}
	switch verb, kind, name, count, more := m[1], m[2], m[3], m[4], m[5]; {
	case kind != "":
		pauses, err := a.Store.Pauses.List(ctx)
		if err != nil {
			return nil, err
		}
		s := page.Switch{Kind: kind, Name: name, Back: back}
		n.Text = fmt.Sprintf("The %s %s goes on.", kind, name)
		if p := ops.PauseOf(store.PauseOf(pauses, store.PauseKind(kind), name)); p != nil {
			undo := s.Resume()
			n.Text, n.Undo = fmt.Sprintf("The %s %s is %s.", kind, name, p.Words()), &undo
		}
	case count != "":
		number, _ := strconv.Atoi(count)
		n.Text = page.Units(number) + " went back into the queue."
		if more != "" {
			n.Text += " Others are left: do it again for them."
		}
	case verb == "redelivered":
		n.Text = "It is delivered again."
	case strings.HasPrefix(back, "/units/"):
		return a.noticeOfUnit(ctx, verb, back)
	case strings.HasPrefix(back, "/batch-list/"):
		return a.noticeOfBatch(ctx, verb, back)
	default:
		return nil, nil
	}
	return n, nil
}

func (a *site) noticeOfUnit(ctx context.Context, verb, back string) (*page.Notice, error) {
	u, err := url.Parse(back)
	if err != nil {
		return nil, err
	}
	id, err := query.ID(strings.TrimPrefix(u.Path, "/units/"))
	if err != nil {
		return nil, err
	}
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	shown := page.Unit{Unit: unit}
	n := &page.Notice{Close: back}
	switch {
	case verb == "cancelled" && shown.CanRetry():
		n.Text = "It is cancelled."
		if unit.State != work.Cancelled {
			n.Text = "It ended before it could be cancelled."
		}
		retry := url.URL{Path: u.Path + "/retry", RawQuery: u.RawQuery}
		n.Undo = &page.Deed{Action: retry.String(), Verb: "Retry"}
	case verb == "cancelled" && shown.Stopping():
		n.Text = "It was asked to stop and ends soon. What it has done so far is kept."
	case verb == "retried" && unit.State == work.Queued:
		n.Text = "It is back in the queue."
	case verb == "retried":
		n.Text = "It went back into the queue."
	default:
		return nil, nil
	}
	return n, nil
}

// noticeOfBatch tells what was done to the batch of a page.
func (a *site) noticeOfBatch(ctx context.Context, verb, back string) (*page.Notice, error) {
	id, err := query.ID(strings.TrimPrefix(back, "/batch-list/"))
	if err != nil {
		return nil, err
	}
	b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	shown := page.Batch{Batch: b}
	n := &page.Notice{Close: shown.Path()}
	switch {
	case verb == "approved" && shown.CanPause():
		n.Text, n.Undo = "It is approved: the rest of its units run.", &page.Deed{Action: shown.To("pause"), Verb: "Pause it"}
	case verb == "approved":
		n.Text = "It is approved."
	case verb == "paused" && shown.CanResume():
		n.Text, n.Undo = "It is paused. Units that run go on to their end.", &page.Deed{Action: shown.To("resume"), Verb: "Resume it"}
	case verb == "resumed" && b.Paused == nil:
		n.Text = "It goes on."
	case verb == "cancelled" && b.Status == work.BatchCancelling:
		n.Text = "It is being cancelled. What its units have done so far is kept."
	case verb == "cancelled" && b.Status == work.BatchCancelled:
		n.Text = "It is cancelled."
	case verb == "cancelled":
		n.Text = "It ended before it could be cancelled."
	case verb == "retried":
		n.Text = "The units that had not succeeded went back into the queue."
	default:
		return nil, nil
	}
	return n, nil
}
