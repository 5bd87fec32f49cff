package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"piecework/jobs"
)

// Period is how long something is kept: a duration such as 12h, days such as 90d,
// or 0, which is for ever.
type Period time.Duration

// UnmarshalText reads 90d, 12h or 0.
func (p *Period) UnmarshalText(text []byte) error {
	word := strings.TrimSpace(string(text))
	if days, ok := strings.CutSuffix(word, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > 36500 {
			return fmt.Errorf("%q: give days such as 90d, hours such as 12h, or 0 for ever", word)
		}
		*p = Period(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	d, err := time.ParseDuration(word)
	if err != nil || d < 0 {
		return fmt.Errorf("%q: give days such as 90d, hours such as 12h, or 0 for ever", word)
	}
	*p = Period(d)
	return nil
}

// String writes it as it can be read.
func (p Period) String() string {
	switch d := time.Duration(p); {
	case d == 0:
		return "0"
	case d%(24*time.Hour) == 0:
		return strconv.Itoa(int(d/(24*time.Hour))) + "d"
	default:
		return d.String()
	}
}

// leastKeepKeys is the shortest time for which a repeated request finds what it
// made.
const leastKeepKeys = Period(24 * time.Hour)

// Kept is how long what is over is kept.
type Kept struct {
	Keep            Period `env:"PIECEWORK_KEEP" default:"0" placeholder:"DAYS" help:"Remove units and batches this long after their end, with runs, transcripts and output files, and uploads that nobody names: 90d; 0 is for ever (${default})."`
	KeepTranscripts Period `env:"PIECEWORK_KEEP_TRANSCRIPTS" default:"0" placeholder:"DAYS" help:"Remove transcripts this long after the end of their run; the run stays: 30d; 0 is as long as the unit (${default})."`
	KeepKeys        Period `env:"PIECEWORK_KEEP_KEYS" default:"30d" placeholder:"DAYS" help:"Forget idempotency keys this long after they came first, 24h at least; 0 is as long as the unit (${default})."`
	KeepDeliveries  Period `env:"PIECEWORK_KEEP_DELIVERIES" default:"30d" placeholder:"DAYS" help:"Remove webhook deliveries that are settled this long after they were written; 0 is for ever (${default})."`
}

func (k Kept) retention() jobs.Retention {
	return jobs.Retention{Units: time.Duration(k.Keep), Transcripts: time.Duration(k.KeepTranscripts), Keys: time.Duration(k.KeepKeys),
		Deliveries: time.Duration(k.KeepDeliveries)}
}

// PruneCommand is `piecework prune`.
type PruneCommand struct {
	Remote
	Before string `required:"" placeholder:"WHEN" help:"Units and batches that ended before this: a time such as 2026-01-31T00:00:00Z, a day such as 2026-01-31 (UTC), or an age such as 90d."`
	DryRun bool   `help:"Count what would be removed, and remove nothing."`
}

// before is the time that the flag means.
func (c *PruneCommand) before(now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, c.Before); err == nil {
			return t, nil
		}
	}
	var age Period
	if err := age.UnmarshalText([]byte(c.Before)); err != nil || age == 0 {
		return now, usagef("--before: %q: give a time such as 2026-01-31T00:00:00Z, a day such as 2026-01-31, or an age such as 90d", c.Before)
	}
	return now.Add(-time.Duration(age)), nil
}

// pruned is the answer to POST /prune.
type pruned struct {
	DryRun  bool  `json:"dry_run"`
	Units   int   `json:"units"`
	Batches int   `json:"batches"`
	Files   int   `json:"files"`
	Bytes   int64 `json:"bytes"`
	More    bool  `json:"more"`
}

// Run removes what is old, call after call until nothing is left.
func (c *PruneCommand) Run(app *App) error {
	before, err := c.before(time.Now())
	if err != nil {
		return err
	}
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	query := url.Values{"before": {before.UTC().Format(time.RFC3339)}}
	if c.DryRun {
		query.Set("dry_run", "true")
	}
	var all pruned
	for {
		document, err := client.do(app.Ctx, request{method: http.MethodPost, path: "/prune", query: query})
		if err != nil {
			return fmt.Errorf("prune: %w", err)
		}
		var some pruned
		if err := json.Unmarshal(document, &some); err != nil {
			return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
		}
		some.Units, some.Batches = some.Units+all.Units, some.Batches+all.Batches
		if all = some; !all.More {
			break
		}
	}
	if c.JSON {
		document, err := json.Marshal(all)
		if err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		return printJSON(app.Stdout, document)
	}
	line := fmt.Sprintf("removed %d units and %d batches that ended before %s", all.Units, all.Batches, before.UTC().Format(time.RFC3339))
	if c.DryRun {
		line = fmt.Sprintf("would remove %d units and %d batches that ended before %s, with %d output files of %d bytes",
			all.Units, all.Batches, before.UTC().Format(time.RFC3339), all.Files, all.Bytes)
	}
	_, err = fmt.Fprintln(app.Stdout, line)
	return err
}
