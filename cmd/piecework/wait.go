package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"piecework/internal/work"
)

const (
	firstPoll = 100 * time.Millisecond
	lastPoll  = time.Second
	patience  = 30 * time.Second // with a server that restarts
)

// WaitCommand is `piecework wait`.
type WaitCommand struct {
	Remote
	IDs []string `arg:"" name:"id" help:"Ids of the units."`
}

// Run waits until every unit is final. It ends with 1 unless all succeeded.
func (c *WaitCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	units, err := waitFor(app.Ctx, client, c.IDs, newProgress(app.Stderr, len(c.IDs)))
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if err := showUnits(app.Stdout, units, c.JSON); err != nil {
		return err
	}
	return succeeded(units)
}

// waitForOne waits for a unit and prints all of it.
func waitForOne(app *App, c *client, id string, asJSON bool) error {
	units, err := waitFor(app.Ctx, c, []string{id}, newProgress(app.Stderr, 1))
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if asJSON {
		err = printJSON(app.Stdout, units[0].document)
	} else {
		err = printUnit(app.Stdout, units[0])
	}
	if err != nil {
		return err
	}
	return succeeded(units)
}

// succeeded is an error that counts the units which did not succeed, or nil.
func succeeded(units []*unit) error {
	bad := 0
	for _, u := range units {
		if u.State != work.Succeeded {
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	return &exitError{exitUnsuccessful, fmt.Errorf("%d of %d did not succeed", bad, len(units))}
}

// waitFor polls until every unit is final and returns them in the order of
// ids. Polls come less often the longer nothing changes.
func waitFor(ctx context.Context, c *client, ids []string, bar progress) ([]*unit, error) {
	defer bar.end()
	units := make([]*unit, len(ids))
	pause, answered := firstPoll, time.Now()
	for done := 0; ; {
		before := done
		for i, id := range ids {
			if units[i] != nil && units[i].State.Final() {
				continue
			}
			u, err := c.unit(ctx, id)
			if isUnreachable(err) && units[i] != nil && time.Since(answered) < patience {
				break // the others would meet the same silence
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", safeLine(id), err)
			}
			answered, units[i] = time.Now(), u
			if u.State.Final() {
				done++
				bar.show(done)
			}
		}
		if done == len(ids) {
			return units, nil
		}
		if done > before {
			pause = firstPoll
		}
		if err := c.sleep(ctx, pause); err != nil {
			return nil, interrupted(err)
		}
		pause = min(pause*3/2, lastPoll)
	}
}

func isUnreachable(err error) bool {
	var exit *exitError
	return errors.As(err, &exit) && exit.code == exitUnreachable
}

// progress shows how many of the units are done: as a bar on a terminal, else
// not at all, or as lines where somebody reads a log.
type progress struct {
	bar   *progressbar.ProgressBar
	lines io.Writer
	total int
}

func newProgress(w io.Writer, total int) progress {
	if !isTerminal(w) {
		return progress{}
	}
	return progress{bar: progressbar.NewOptions(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription("waiting"),
		progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(30),
	)}
}

// orLines makes a progress without a terminal write a line for each change.
func (p progress) orLines(w io.Writer, total int) progress {
	if p.bar == nil {
		p.lines, p.total = w, total
	}
	return p
}

func (p progress) show(done int) {
	switch {
	case p.bar != nil:
		_ = p.bar.Set(done)
	case p.lines != nil:
		_, _ = fmt.Fprintf(p.lines, "%d of %d done\n", done, p.total)
	}
}

func (p progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}
