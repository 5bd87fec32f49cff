package main

import (
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"piecework/internal/work"
)

// QueueCommand is `piecework queue`.
type QueueCommand struct {
	Ls     QueueLsCommand `cmd:"" help:"List queues: what waits and runs in them."`
	Pause  PauseCommand   `cmd:"" help:"Let no unit of a queue begin."`
	Resume ResumeCommand  `cmd:"" help:"Let a queue go on."`
}

// AfterApply tells the commands below what they are about.
func (QueueCommand) AfterApply(k *kong.Context) error { //nolint:unparam // kong calls it so
	k.Bind(pauseKind("/queues"))
	return nil
}

// QueueLsCommand is `piecework queue ls`.
type QueueLsCommand struct {
	Remote
}

// Run prints every queue.
func (c *QueueLsCommand) Run(app *App) error {
	queues, err := items[struct {
		Name       string         `json:"name"`
		Queued     int            `json:"queued"`
		Due        int            `json:"due"`
		OldestWait *work.Seconds  `json:"oldest_wait"`
		Running    int            `json:"running"`
		Paused     *operatorPause `json:"paused"`
	}](app, c.Remote, "/queues")
	if err != nil || c.JSON {
		return err
	}
	t := newTable(app.Stdout, "QUEUE", "QUEUED", "DUE", "OLDEST", "RUNNING", "PAUSED")
	for _, q := range queues {
		oldest := "-"
		if q.OldestWait != nil {
			oldest = duration(q.OldestWait.Duration().Round(time.Millisecond))
		}
		t.row(q.Name, strconv.Itoa(q.Queued), strconv.Itoa(q.Due), oldest, strconv.Itoa(q.Running), q.Paused.String())
	}
	return t.flush()
}
