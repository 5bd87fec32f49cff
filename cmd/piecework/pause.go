package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// operatorPause is why a person has paused something.
type operatorPause struct {
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
}

func (p *operatorPause) String() string {
	if p == nil {
		return ""
	}
	text := "since " + clock(&p.Since)
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Why != "" {
		text += ": " + p.Why
	}
	return text
}

// PauseCommand is `piecework queue pause` and `piecework backend pause`.
type PauseCommand struct {
	Remote
	Name string `arg:"" help:"Its name."`
	By   string `help:"Who pauses it." env:"USER" placeholder:"NAME"`
	Why  string `help:"For those who wonder why nothing happens." placeholder:"TEXT"`
}

// ResumeCommand is `piecework queue resume` and `piecework backend resume`.
type ResumeCommand struct {
	Remote
	Name string `arg:"" help:"Its name."`
}

// Run pauses it. The kind is the path of the API that the command stands for.
func (c *PauseCommand) Run(app *App, kind pauseKind) error {
	return kind.call(app, c.Remote, c.Name, "pause", struct {
		By  string `json:"by,omitempty"`
		Why string `json:"why,omitempty"`
	}{c.By, c.Why})
}

// Run lets it go on.
func (c *ResumeCommand) Run(app *App, kind pauseKind) error {
	return kind.call(app, c.Remote, c.Name, "resume", nil)
}

// pauseKind is the path under which the API keeps what can be paused.
type pauseKind string

func (k pauseKind) call(app *App, remote Remote, name, verb string, body any) error {
	client, err := newClient(app, remote)
	if err != nil {
		return err
	}
	document, err := client.do(app.Ctx, request{
		method: http.MethodPost, path: string(k) + "/" + url.PathEscape(name) + "/" + verb, body: body,
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, safeLine(name), err)
	}
	if remote.JSON {
		return printJSON(app.Stdout, document)
	}
	var state struct {
		Paused *operatorPause `json:"paused"`
	}
	if err := json.Unmarshal(document, &state); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	words := "goes on"
	if state.Paused != nil {
		words = "is paused " + state.Paused.String()
	}
	_, err = fmt.Fprintln(app.Stdout, safeLine(name+" "+words))
	return err
}

// items reads a list that has no pages. With --json it prints it, and returns
// nothing.
func items[T any](app *App, remote Remote, path string) ([]T, error) {
	client, err := newClient(app, remote)
	if err != nil {
		return nil, err
	}
	document, err := client.get(app.Ctx, path, nil)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path[1:], err)
	}
	if remote.JSON {
		return nil, printJSON(app.Stdout, document)
	}
	var list struct {
		Items []T `json:"items"`
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return list.Items, nil
}
