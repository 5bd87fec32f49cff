package page

import (
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Unit is the right column: one unit, and one of its runs.
type Unit struct {
	work.Unit
	Filter     Filter     // of the list beside it
	Batch      string     // the title of its batch, if it is of one
	Waits      []string   // why it has not begun; empty unless it is queued
	Held       []Switch   // what keeps it back and can be resumed
	Runs       []work.Run // newest first, without prompts and results
	Run        *work.Run  // the chosen one, whole; nil when there is none
	Script     *Script    // of the chosen run; nil when it has no transcript
	At         int        // the step to show; 0: the end
	Now        time.Time
	Deliveries []work.Delivery // of messages about it, newest first
}

// Render writes the unit alone, for the script.
func (u Unit) Render(w io.Writer) error { return render(w, "unit", u) }

// Status is the unit's state as the pages call it.
func (u Unit) Status() string { return status(u.Unit, u.Now) }

// Newest tells whether the chosen run is the unit's last.
func (u Unit) Newest() bool { return u.Run == nil || len(u.Runs) == 0 || u.Run.ID == u.Runs[0].ID }

// Link is the page with another run of the unit chosen.
func (u Unit) Link(attempt int) string {
	v := u.Filter.values()
	v.Set("run", strconv.Itoa(attempt))
	return "/units/" + u.ID.String() + query(v)
}

// Origin is the query of a comparison with the run that the result was taken
// from.
func (u Unit) Origin() string {
	v := url.Values{"a": {u.CachedFrom.String()}}
	if u.Run != nil {
		v.Set("b", u.Run.ID.String())
	}
	return query(v)
}

// Steps are the steps in sight.
func (u Unit) Steps() Steps { return u.Script.At(u.At) }

// Result is what the chosen run gave, or the unit when none is chosen.
func (u Unit) Result() string {
	switch {
	case u.Run != nil && !u.Newest():
		return deref(u.Run.Result)
	case u.Output != nil:
		return *u.Output
	case u.Run != nil:
		return deref(u.Run.Result)
	}
	return ""
}

// Problem is why the chosen run failed, or the unit.
func (u Unit) Problem() *work.Failure {
	if u.Newest() && u.Error != nil {
		return u.Error
	}
	if u.Run != nil {
		return u.Run.Error
	}
	return nil
}

// Whole tells whether the result is a success.
func (u Unit) Whole() bool {
	if u.Newest() {
		return u.State == work.Succeeded
	}
	return u.Run.Status == work.RunSucceeded
}

// JSON is the result laid out, when it is a JSON object or array.
func (u Unit) JSON() string {
	text := strings.TrimSpace(u.Result())
	if !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "[") || !json.Valid([]byte(text)) {
		return ""
	}
	return pretty(json.RawMessage(text))
}

// PromptText is the rendered prompt of the chosen run, or else the template.
func (u Unit) PromptText() string {
	if u.Run != nil && deref(u.Run.RenderedPrompt) != "" {
		return *u.Run.RenderedPrompt
	}
	return u.Prompt
}

// HasPayload tells whether there is anything in the payload.
func (u Unit) HasPayload() bool {
	return !slices.Contains([]string{"", "{}", "null"}, string(u.Payload))
}

// HasLabels tells whether the unit has labels.
func (u Unit) HasLabels() bool { return !slices.Contains([]string{"", "{}", "null"}, string(u.Labels)) }

// HasSteps tells whether there is a transcript to show.
func (u Unit) HasSteps() bool { return u.Script != nil && len(u.Script.links) > 0 }

// Setting is something a unit was given, in words.
type Setting struct{ Name, Value string }

// Limits are what the unit was given.
func (u Unit) Limits() (list []Setting) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, Setting{name, value})
		}
	}
	seconds := func(s work.Seconds) string { return lasted(s.Duration()) }
	add("queue", u.Queue)
	add("priority", strconv.Itoa(u.Priority))
	add("timeout", seconds(u.Timeout))
	add("idle timeout", seconds(u.IdleTimeout))
	if u.CacheTTL > 0 {
		add("cache", "results up to "+seconds(u.CacheTTL)+" old")
	}
	if u.MaxTurns > 0 {
		add("max turns", strconv.Itoa(u.MaxTurns))
	}
	if u.MaxCostUSD != nil {
		add("max cost", work.Dollars(*u.MaxCostUSD))
	}
	if u.OnDenied == work.OnDeniedNote {
		add("denied tools", "noted")
	}
	if u.MaxRetries != nil {
		add("max retries", strconv.Itoa(*u.MaxRetries))
	}
	for _, t := range []struct {
		name string
		at   *time.Time
	}{{"not before", u.NotBefore}, {"deadline", u.Deadline}, {"expires", u.ExpiresAt}} {
		if t.at != nil {
			add(t.name, work.When(*t.at))
		}
	}
	add("working directory", u.WorkingDirectory)
	return list
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// NewUnit makes the page of a unit and one of its runs.
func NewUnit(unit work.Unit, runs []work.Run, chosen *work.Run, steps []transcript.Step, now time.Time) Unit {
	u := Unit{Unit: unit, Runs: runs, Run: chosen, Now: now}
	if chosen != nil {
		u.Script = NewScript(*chosen, steps, now)
	}
	return u
}
