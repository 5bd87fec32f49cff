package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"piecework/internal/work"
)

// Waiting is the flag of the commands that may follow a batch.
type Waiting struct {
	Wait bool `help:"Wait until the batch is over or waits for a person; exit with 0 if every unit succeeded, 6 if a person is needed, else 1." short:"w"`
}

// followBatch shows how a batch goes on until nothing goes on by itself, then
// prints it.
func followBatch(app *App, c *client, b *batch, asJSON bool) error {
	b, err := awaitBatch(app.Ctx, c, b, newBatchProgress(app.Stderr))
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if err := showBatch(app.Stdout, b, asJSON); err != nil {
		return err
	}
	return b.verdict()
}

// rests tells whether nothing more happens to a batch unless somebody acts.
func (b *batch) rests() bool {
	return b.Status.Final() || b.Status == work.BatchAwaitingApproval || b.Paused != nil && b.Counts.Running == 0
}

func awaitBatch(ctx context.Context, c *client, b *batch, p *batchProgress) (*batch, error) {
	defer p.end()
	pause, answered := firstPoll, time.Now()
	for {
		p.show(b)
		if b.rests() {
			return b, nil
		}
		if err := c.sleep(ctx, pause); err != nil {
			return nil, interrupted(err)
		}
		pause = min(pause*3/2, lastPoll)
		next, err := c.batch(ctx, b.ID.String())
		switch {
		case isUnreachable(err) && time.Since(answered) < patience:
		case err != nil:
			return nil, err
		default:
			b, answered = next, time.Now()
		}
	}
}

// batchProgress shows how a batch goes on: a bar on a terminal, else a line for
// each change.
type batchProgress struct {
	w     io.Writer
	bar   *progressbar.ProgressBar
	last  string
	began time.Time
	first int // units that were over when it began
}

func newBatchProgress(w io.Writer) *batchProgress {
	p := &batchProgress{w: w}
	if isTerminal(w) {
		p.bar = progressbar.NewOptions(1, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetElapsedTime(false), progressbar.OptionSetRenderBlankState(true), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetWidth(20))
	}
	return p
}

func (p *batchProgress) show(b *batch) {
	if p.began.IsZero() {
		p.began, p.first = time.Now(), b.Counts.Finished()
	}
	if p.bar != nil {
		p.bar.ChangeMax(max(b.Counts.Total, 1))
		p.bar.Describe(standing(b) + p.pace(b))
		_ = p.bar.Set(min(b.Counts.Finished(), max(b.Counts.Total-1, 0))) // full, it would end
		return
	}
	line := fmt.Sprintf("%d of %d done, %s", b.Counts.Finished(), b.Counts.Total, standing(b))
	if line != p.last {
		p.last = line
		_, _ = fmt.Fprintln(p.w, line+p.pace(b))
	}
}

func (p *batchProgress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}

// standing is a batch's status, what is not as it should be, and its cost.
func standing(b *batch) string {
	text := string(b.Status)
	if b.Paused != nil {
		text += " (paused)"
	}
	c := b.Counts
	for _, state := range []struct {
		name string
		n    int
	}{{"running", c.Running}, {"failed", c.Failed}, {"cancelled", c.Cancelled}, {"timed out", c.Expired}} {
		if state.n > 0 {
			text += fmt.Sprintf(", %d %s", state.n, state.name)
		}
	}
	return text + ", " + c.CostText()
}

// pace is how many units end in a second, and how long the rest takes if that
// stays so.
func (p *batchProgress) pace(b *batch) string {
	ended, elapsed := b.Counts.Finished()-p.first, time.Since(p.began).Seconds()
	if ended < 1 || elapsed < 1 {
		return ""
	}
	rate := float64(ended) / elapsed
	text := fmt.Sprintf(", %.1f/s", rate)
	if left := b.Counts.Total - b.Counts.Finished(); left > 0 {
		text += fmt.Sprintf(", %s left", seconds(float64(left)/rate))
	}
	return text
}
