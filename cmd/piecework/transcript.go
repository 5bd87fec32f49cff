package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// TranscriptCommand is `piecework transcript`.
type TranscriptCommand struct {
	Remote
	ID     string `arg:"" name:"run-or-unit" help:"Id of a run, or of a unit: then its newest run is shown."`
	Format string `help:"text, json or jsonl." enum:"text,json,jsonl" default:"text"`
}

// Run prints the transcript of a run.
func (c *TranscriptCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	document, err := c.fetch(app, client)
	if err != nil {
		return fmt.Errorf("transcript of %s: %w", safeLine(c.ID), err)
	}
	switch {
	case c.JSON || c.Format == "json":
		return printJSON(app.Stdout, document)
	case c.Format == "jsonl":
		return printSteps(app, document)
	}
	var steps []transcript.Step
	if err := json.Unmarshal(document, &steps); err != nil {
		return fmt.Errorf("read the transcript: %w", err)
	}
	return transcript.Plain(app.Stdout, steps)
}

// fetch asks for a run first. What is no run may be a unit.
func (c *TranscriptCommand) fetch(app *App, client *client) ([]byte, error) {
	document, err := client.get(app.Ctx, transcriptPath(c.ID), nil)
	if err == nil || !isNotFound(err) {
		return document, err
	}
	u, unitErr := client.unit(app.Ctx, c.ID)
	if isNotFound(unitErr) {
		return nil, err
	}
	if unitErr != nil {
		return nil, unitErr
	}
	newest := newestRun(u.Runs)
	if newest == nil {
		return nil, &exitError{exitNotFound, fmt.Errorf("the unit is %s and has no run yet", u.State)}
	}
	return client.get(app.Ctx, transcriptPath(newest.ID.String()), nil)
}

func transcriptPath(run string) string { return "/runs/" + url.PathEscape(run) + "/transcript" }

func isNotFound(err error) bool {
	var p *problem
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

func newestRun(runs []work.Run) *work.Run {
	var newest *work.Run
	for i, r := range runs {
		if newest == nil || r.Attempt > newest.Attempt {
			newest = &runs[i]
		}
	}
	return newest
}

func printSteps(app *App, document []byte) error {
	var steps []json.RawMessage
	if err := json.Unmarshal(document, &steps); err != nil {
		return fmt.Errorf("read the transcript: %w", err)
	}
	for _, step := range steps {
		if err := printLine(app.Stdout, step); err != nil {
			return err
		}
	}
	return nil
}
