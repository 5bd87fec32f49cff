package main

import (
	"fmt"
	"net/http"

	"piecework/internal/work"
)

// BatchChanges are the flags that change what a batch may do from now on.
type BatchChanges struct {
	MaxCost     *float64 `help:"Most that all its units together may cost from now on." placeholder:"USD"`
	Concurrency *int     `help:"Units at once, at most, from now on." placeholder:"N"`
}

func (c BatchChanges) body() any {
	return struct {
		MaxCostUSD  *float64 `json:"max_cost_usd,omitempty"`
		Concurrency *int     `json:"concurrency,omitempty"`
	}{c.MaxCost, c.Concurrency}
}

// BatchApproveCommand is `piecework batch approve`.
type BatchApproveCommand struct {
	Remote
	Waiting
	BatchChanges
	ID string `arg:"" name:"id" help:"The batch's id."`
}

// Run approves a batch.
func (c *BatchApproveCommand) Run(app *App) error {
	return moveBatch(app, c.Remote, c.ID, "approve", c.body(), c.Wait)
}

// BatchPauseCommand is `piecework batch pause`.
type BatchPauseCommand struct {
	Remote
	ID  string `arg:"" name:"id" help:"The batch's id."`
	By  string `help:"Who pauses it." env:"USER" placeholder:"NAME"`
	Why string `help:"For those who wonder why nothing happens." placeholder:"TEXT"`
}

// Run pauses a batch.
func (c *BatchPauseCommand) Run(app *App) error {
	return moveBatch(app, c.Remote, c.ID, "pause", struct {
		By  string `json:"by,omitempty"`
		Why string `json:"why,omitempty"`
	}{c.By, c.Why}, false)
}

// BatchResumeCommand is `piecework batch resume`.
type BatchResumeCommand struct {
	Remote
	Waiting
	BatchChanges
	ID string `arg:"" name:"id" help:"The batch's id."`
}

// Run lets a batch go on.
func (c *BatchResumeCommand) Run(app *App) error {
	return moveBatch(app, c.Remote, c.ID, "resume", c.body(), c.Wait)
}

// BatchCancelCommand is `piecework batch cancel`.
type BatchCancelCommand struct {
	Remote
	Waiting
	ID  string `arg:"" name:"id" help:"The batch's id."`
	Why string `help:"For those who wonder." placeholder:"TEXT"`
}

// Run cancels a batch.
func (c *BatchCancelCommand) Run(app *App) error {
	return moveBatch(app, c.Remote, c.ID, "cancel", struct {
		Why string `json:"why,omitempty"`
	}{c.Why}, c.Wait)
}

// BatchRetryCommand is `piecework batch retry`.
type BatchRetryCommand struct {
	Remote
	Waiting
	ID     string       `arg:"" name:"id" help:"The batch's id."`
	Status []work.State `help:"Only units in these states; failed, timed_out and cancelled by default." placeholder:"STATE"`
}

// Run queues units again.
func (c *BatchRetryCommand) Run(app *App) error {
	return moveBatch(app, c.Remote, c.ID, "retry", struct {
		Status []work.State `json:"status,omitempty"`
	}{c.Status}, c.Wait)
}

func moveBatch(app *App, remote Remote, id, verb string, body any, wait bool) error {
	client, err := newClient(app, remote)
	if err != nil {
		return err
	}
	b, err := client.batchCall(app.Ctx, request{method: http.MethodPost, path: batchPath(id, verb), body: body})
	switch {
	case err != nil:
		return fmt.Errorf("%s batch %s: %w", verb, safeLine(id), err)
	case wait:
		return followBatch(app, client, b, remote.JSON)
	case remote.JSON:
		return printJSON(app.Stdout, b.document)
	}
	return printBatches(app.Stdout, []*batch{b})
}
