package page

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"piecework/internal/work"
)

// AskApprove tells what letting the rest of the batch run means.
func AskApprove(b Batch) Ask {
	a := Ask{Title: "Let the rest of this batch run?", Action: b.To("approve"), Verb: "Approve", Leave: "Not yet", Back: b.Path(),
		Fields: b.limits(), Says: []string{line(b.Name())}}
	tested := fmt.Sprintf("Of the %s that were run first %s succeeded. They have cost %s.", Units(b.Counts.Finished()), number(b.Counts.Succeeded), spent(b.Counts.Cost))
	a.Says = append(a.Says, tested)
	if f := b.Forecast; f != nil {
		cost := "cost nobody knows how much"
		if c := f.CostUSD; c != nil {
			cost = fmt.Sprintf("probably cost %s (%s to %s)", work.Dollars(c.Mean), work.Dollars(c.Low), work.Dollars(c.High))
		}
		a.Says = append(a.Says, fmt.Sprintf("The other %s will %s and take %s (%s to %s) with the slots that there are now.", Units(f.Left), cost,
			span(work.Seconds(f.Elapsed.Mean)), span(work.Seconds(f.Elapsed.Low)), span(work.Seconds(f.Elapsed.High))))
	}
	return a
}

// AskCancelBatch tells what cancelling the batch means, which is rejecting it
// while it awaits approval.
func AskCancelBatch(b Batch) Ask {
	a := Ask{Title: "Cancel this batch?", Action: b.To("cancel"), Verb: "Cancel the batch", Leave: "Leave it", Back: b.Path(), Says: []string{line(b.Name())},
		Fields: []Field{{Name: "why", Label: "Why, for those who wonder", Max: 1000}}}
	if b.CanApprove() {
		a.Title, a.Verb, a.Leave = "Reject this batch?", "Reject the batch", "Not yet"
	}
	c := b.Counts
	if c.Queued > 0 {
		a.Says = append(a.Says, fmt.Sprintf("The %s that did not begin are cancelled.", Units(c.Queued)))
	}
	if n := c.Running + c.Waiting; n > 0 {
		a.Says = append(a.Says, fmt.Sprintf("The %s at work are stopped; what each has done so far is kept.", Units(n)))
	}
	a.Says = append(a.Says, fmt.Sprintf("The results of the %s that are over stay. It has cost %s so far.", Units(c.Finished()), spent(c.Cost)))
	if c.Total > 0 {
		a.Says = append(a.Says, "A retry brings the cancelled units back.")
	}
	return a
}

// AskPauseBatch tells what pausing the batch means.
func AskPauseBatch(b Batch) Ask {
	return Ask{Title: "Pause this batch?", Action: b.To("pause"), Verb: "Pause", Leave: "Let it go on", Back: b.Path(), Fields: whoAndWhy,
		Says: []string{line(b.Name()), "None of its units begins until it is resumed. Units that run go on to their end."}}
}

// AskResumeBatch tells what resuming the batch means.
func AskResumeBatch(b Batch) Ask {
	a := Ask{Title: "Resume this batch?", Action: b.To("resume"), Verb: "Resume", Leave: "Leave it paused", Back: b.Path(),
		Fields: b.limits(), Says: []string{line(b.Name())}}
	if p := b.Paused; p != nil && p.Why != "" {
		a.Says = append(a.Says, "It was paused: "+p.Why)
	}
	a.Says = append(a.Says, fmt.Sprintf("%s not over yet. It has cost %s so far.", upper(verbed(b.left())), spent(b.Counts.Cost)))
	return a
}

// AskRetryBatch tells what running its units again means.
func AskRetryBatch(b Batch) Ask {
	n := b.again()
	what := "They go"
	if n == 1 {
		what = "It goes"
	}
	return Ask{Title: fmt.Sprintf("Run %s again?", Units(n)), Action: b.To("retry"), Verb: "Retry " + Units(n), Leave: "Leave them",
		Back: b.Path(), Says: []string{line(b.Name()),
			fmt.Sprintf("%s failed, %s timed out, %s cancelled. %s back into the queue, with all retries; each costs anew. The batch goes on.",
				number(b.Counts.Failed), number(b.Counts.Expired), wasOrWere(b.Counts.Cancelled), what)}}
}

func wasOrWere(n int) string {
	if n == 1 {
		return "1 was"
	}
	return number(n) + " were"
}

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// Typed puts what was typed into a form back into its fields.
func (a Ask) Typed(values url.Values, wrong string) Ask {
	a.Error, a.Fields = wrong, slices.Clone(a.Fields)
	for i, f := range a.Fields {
		a.Fields[i].Value = values.Get(f.Name)
	}
	return a
}
