package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"piecework/internal/work"
)

// BackendCommand is `piecework backend`.
type BackendCommand struct {
	Ls     BackendLsCommand `cmd:"" help:"List backends: whether they can run, and why not."`
	Pause  PauseCommand     `cmd:"" help:"Let no unit of a backend begin."`
	Resume ResumeCommand    `cmd:"" help:"Let a backend go on, also one that refused its credentials."`
}

// AfterApply tells the commands below what they are about.
func (BackendCommand) AfterApply(k *kong.Context) error { //nolint:unparam // kong calls it so
	k.Bind(pauseKind("/backends"))
	return nil
}

// BackendLsCommand is `piecework backend ls`.
type BackendLsCommand struct {
	Remote
}

// listed is a backend in the list.
type listed struct {
	Name      string         `json:"name"`
	Status    string         `json:"status"`
	Slots     int            `json:"slots"`
	Paused    *operatorPause `json:"paused"`
	Processes []struct {
		Available bool              `json:"available"`
		Detail    string            `json:"detail"`
		Paused    *work.Pause       `json:"paused"`
		Limits    []work.ModelLimit `json:"limits"`
	} `json:"processes"`
}

// why is what stands in its way: an operator's word, or the first of a worker
// process.
func (b *listed) why() string {
	if b.Paused != nil {
		return b.Paused.String()
	}
	if b.Status == "available" {
		return b.shutModels()
	}
	for _, p := range b.Processes {
		if p.Paused != nil {
			return string(p.Paused.Class) + ": " + p.Paused.Message
		}
	}
	for _, p := range b.Processes {
		if !p.Available {
			return p.Detail
		}
	}
	return ""
}

// shutModels tells which models wait for the end of a rate limit in any worker
// process, and until when.
func (b *listed) shutModels() string {
	until := map[string]time.Time{}
	for _, p := range b.Processes {
		for _, l := range p.Limits {
			if l.Until != nil && l.Until.After(until[l.Name()]) {
				until[l.Name()] = *l.Until
			}
		}
	}
	var shut []string
	for _, model := range slices.Sorted(maps.Keys(until)) {
		shut = append(shut, fmt.Sprintf("rate limit of %s until %s", model, until[model].Local().Format(time.TimeOnly)))
	}
	return strings.Join(shut, "; ")
}

// Run prints every backend.
func (c *BackendLsCommand) Run(app *App) error {
	backends, err := items[listed](app, c.Remote, "/backends")
	if err != nil || c.JSON {
		return err
	}
	t := newTable(app.Stdout, "BACKEND", "STATUS", "SLOTS", "WHY")
	for _, b := range backends {
		t.row(b.Name, b.Status, strconv.Itoa(b.Slots), excerpt(b.why(), 120))
	}
	return t.flush()
}
