package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// WatchCommand is `piecework watch`.
type WatchCommand struct {
	Remote
	ID string `arg:"" name:"id" help:"Id of the unit."`
}

const (
	watchSilence = 40 * time.Second // two comments of the server are missing
	watchAgain   = time.Second
)

// Run shows what a unit's agent does until the unit is final. It ends with 1
// unless the unit succeeded. When the connection breaks it goes on from where
// it was.
func (c *WatchCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	client.http.Timeout = 0 // as long as the unit takes
	w := watch{app: app, client: client, path: "/work-units/" + url.PathEscape(c.ID) + "/events", json: c.JSON, shown: map[int]transcript.Step{}}
	for heard := time.Now(); ; {
		before := w.last
		err := w.listen()
		if w.end != "" {
			return w.verdict()
		}
		if w.last != before {
			heard = time.Now()
		}
		if err != nil && (!isUnreachable(err) || w.last == "" || time.Since(heard) > patience) {
			return fmt.Errorf("watch %s: %w", safeLine(c.ID), err)
		}
		if err := client.sleep(app.Ctx, watchAgain); err != nil {
			return interrupted(err)
		}
	}
}

// watch is what was shown of a unit so far.
type watch struct {
	app    *App
	client *client
	path   string
	json   bool
	last   string // id of the newest event
	end    work.State

	attempt int
	shown   map[int]transcript.Step // of this attempt, by number
	state   string                  // of unit or run, as it was shown last
}

// listen shows what comes until the connection ends.
func (w *watch) listen() error {
	ctx, cancel := context.WithCancel(w.app.Ctx)
	defer cancel()
	req, err := w.client.build(ctx, request{method: http.MethodGet, path: w.path})
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if w.last != "" {
		req.Header.Set("Last-Event-ID", w.last)
	}
	resp, err := w.client.http.Do(req)
	if err != nil {
		return w.client.unreachable(w.app.Ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 300 {
		return readProblem(resp)
	}
	silent := time.AfterFunc(watchSilence, cancel) // the line may be dead without saying so
	defer silent.Stop()
	events := bufio.NewReader(resp.Body)
	var id, event, data string
	for {
		line, err := events.ReadString('\n')
		if err != nil {
			return w.broken(err)
		}
		silent.Reset(watchSilence)
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			data = value
		case "":
			if line != "\n" || event == "" {
				continue // a comment
			}
			if err := w.show(event, data); err != nil {
				return err
			}
			if id != "" {
				w.last = id
			}
			if id, event, data = "", "", ""; w.end != "" {
				return nil
			}
		}
	}
}

func (w *watch) broken(err error) error {
	if w.app.Ctx.Err() != nil {
		return interrupted(context.Cause(w.app.Ctx))
	}
	return &exitError{exitUnreachable, fmt.Errorf("the connection broke: %w", err)}
}

// show prints one event.
func (w *watch) show(event, data string) error {
	var err error
	if w.json && event != "lagged" {
		err = printLine(w.app.Stdout, json.RawMessage(fmt.Sprintf(`{"event":%q,"data":%s}`, event, data)))
	}
	if err != nil {
		return err
	}
	switch event {
	case "unit":
		var u work.Unit
		if err = json.Unmarshal([]byte(data), &u); err == nil {
			w.say("unit %s", u.State)
		}
	case "run":
		var r work.Run
		if err = json.Unmarshal([]byte(data), &r); err == nil {
			w.begin(r.Attempt)
			w.say("run %d %s%s", r.Attempt, r.Status, why(r.Error))
		}
	case "step":
		var s struct {
			Attempt int `json:"attempt"`
			transcript.Step
		}
		if err = json.Unmarshal([]byte(data), &s); err == nil {
			w.begin(s.Attempt)
			err = w.step(s.Step)
		}
	case "end":
		var e struct{ Status work.State }
		if err = json.Unmarshal([]byte(data), &e); err == nil {
			w.end = e.Status
		}
	}
	if err != nil {
		return fmt.Errorf("read a %s event: %w", safeLine(event), err)
	}
	return nil
}

func why(f *work.Failure) string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf(": %s: %s", f.Class, f.Message)
}

func (w *watch) begin(attempt int) {
	if attempt != w.attempt {
		w.attempt = attempt
		clear(w.shown)
	}
}

// say prints a line about the unit or a run, unless it was the last.
func (w *watch) say(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !w.json && line != w.state {
		w.state = line
		fmt.Fprintln(w.app.Stdout, "●", safeLine(line))
	}
}

// step prints a step, or what has come to one that was printed.
func (w *watch) step(s transcript.Step) error {
	was, again := w.shown[s.Number]
	w.shown[s.Number] = s
	if w.json {
		return nil
	}
	if again {
		s = grown(was, s)
	}
	if again && s.Text == "" && len(s.Content) == 0 {
		return nil
	}
	return transcript.Plain(w.app.Stdout, []transcript.Step{s})
}

// grown is what a step has that it had not before. Text that was rewritten is
// given whole.
func grown(was, s transcript.Step) transcript.Step {
	s.Text = strings.TrimPrefix(s.Text, was.Text)
	var parts []transcript.Content
	for i, c := range s.Content {
		if i < len(was.Content) {
			if was.Content[i].Type == c.Type && c.Type == transcript.Text {
				c.Text = strings.TrimPrefix(c.Text, was.Content[i].Text)
			}
			if c == was.Content[i] || c.Type == transcript.Text && c.Text == "" {
				continue
			}
		}
		parts = append(parts, c)
	}
	s.Content = parts
	return s
}

func (w *watch) verdict() error {
	if w.end == work.Succeeded {
		return nil
	}
	return &exitError{exitUnsuccessful, errors.New("the unit has not succeeded: " + safeLine(string(w.end)))}
}
