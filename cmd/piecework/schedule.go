package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"piecework/internal/work"
)

// ScheduleCommand is `piecework schedule`.
type ScheduleCommand struct {
	Ls  ScheduleLsCommand  `cmd:"" help:"List schedules."`
	Put SchedulePutCommand `cmd:"" help:"Make a schedule, or replace the one of its name."`
	Rm  ScheduleRmCommand  `cmd:"" help:"Delete a schedule; its units stay."`
	Run ScheduleRunCommand `cmd:"" help:"Make a schedule's unit now."`
}

func schedulePath(name, more string) string { return "/schedules/" + url.PathEscape(name) + more }

// ScheduleLsCommand is `piecework schedule ls`.
type ScheduleLsCommand struct{ Remote }

// Run prints every schedule.
func (c *ScheduleLsCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	document, err := client.get(app.Ctx, "/schedules", nil)
	if err != nil {
		return fmt.Errorf("list schedules: %w", err)
	}
	if c.JSON {
		return printJSON(app.Stdout, document)
	}
	var list struct {
		Items []work.Schedule `json:"items"`
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return printSchedules(app.Stdout, list.Items)
}

// clockIn is a moment as clocks of a time zone show it.
func clockIn(zone string, t *time.Time) string {
	place, err := time.LoadLocation(zone)
	if t == nil || t.IsZero() || err != nil {
		return clock(t)
	}
	return t.In(place).Format("2006-01-02 15:04:05")
}

func printSchedules(w io.Writer, schedules []work.Schedule) error {
	t := newTable(w, "NAME", "CRON", "TIMEZONE", "NEXT", "LAST", "BACKEND", "TITLE")
	for _, s := range schedules {
		next := clockIn(s.Timezone, &s.NextAt)
		if s.Paused {
			next = "paused"
		}
		t.row(s.Name, s.Cron, s.Timezone, next, clockIn(s.Timezone, s.LastAt), s.Unit.Backend, excerpt(s.Title, 60))
	}
	return t.flush()
}

// SchedulePutCommand is `piecework schedule put`.
type SchedulePutCommand struct {
	Remote
	Name     string `arg:"" help:"The schedule's name."`
	Cron     string `arg:"" help:"When: five fields such as \"0 6 * * 1-5\", or @hourly, @daily, @every 90s."`
	Unit     string `arg:"" default:"-" placeholder:"PATH" help:"File with the unit as the API takes it, in JSON; - is standard input."`
	Timezone string `help:"IANA name of the time zone; UTC by default." placeholder:"ZONE"`
	CatchUp  string `help:"About times that passed while nothing ran: skip, one, all." enum:"skip,one,all" default:"one"`
	Paused   bool   `help:"Make no units for now."`
}

// Run puts the schedule and prints it.
func (c *SchedulePutCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	unit, err := readUnit(app, c.Unit)
	if err != nil {
		return err
	}
	document, err := client.do(app.Ctx, request{method: http.MethodPut, path: schedulePath(c.Name, ""), body: map[string]any{
		"cron": c.Cron, "timezone": c.Timezone, "catch_up": c.CatchUp, "paused": c.Paused, "unit": unit,
	}})
	if err != nil {
		return fmt.Errorf("put schedule %s: %w", safeLine(c.Name), err)
	}
	if c.JSON {
		return printJSON(app.Stdout, document)
	}
	var s work.Schedule
	if err := json.Unmarshal(document, &s); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return printSchedules(app.Stdout, []work.Schedule{s})
}

// readUnit reads a unit as the API takes it from a file; - is standard input.
func readUnit(app *App, path string) (json.RawMessage, error) {
	text, err := readInput(app, path)
	if err != nil {
		return nil, usagef("read the unit: %w", err)
	}
	if !json.Valid(text) {
		return nil, usagef("the unit in %s is not JSON: write an object such as {\"backend\":\"mock\",\"prompt\":\"…\"}", path)
	}
	return text, nil
}

func readInput(app *App, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(app.Stdin)
	}
	return os.ReadFile(path)
}

// ScheduleRmCommand is `piecework schedule rm`.
type ScheduleRmCommand struct {
	Remote
	Name string `arg:"" help:"The schedule's name."`
}

// Run deletes the schedule.
func (c *ScheduleRmCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	if _, err := client.do(app.Ctx, request{method: http.MethodDelete, path: schedulePath(c.Name, "")}); err != nil {
		return fmt.Errorf("delete schedule %s: %w", safeLine(c.Name), err)
	}
	return nil
}

// ScheduleRunCommand is `piecework schedule run`.
type ScheduleRunCommand struct {
	Remote
	Name string `arg:"" help:"The schedule's name."`
}

// Run makes a unit and prints it.
func (c *ScheduleRunCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	u, err := client.unitCall(app.Ctx, request{method: http.MethodPost, path: schedulePath(c.Name, "/run")})
	if err != nil {
		return fmt.Errorf("run schedule %s: %w", safeLine(c.Name), err)
	}
	return showUnits(app.Stdout, []*unit{u}, c.JSON)
}
