package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/process"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// One check that hangs must not keep the others from being seen.
const checkTimeout = 20 * time.Second

// DoctorCommand is `piecework doctor`.
type DoctorCommand struct {
	Remote
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Postgres to look at; the server's own view of it when left out."`
	RedisURL    string `name:"redis-url" env:"REDIS_URL" placeholder:"URL" help:"Redis to look at; the server's own view of it when left out."`
	Files       string `env:"PIECEWORK_FILES" placeholder:"URL" help:"File store to try; none when left out."`
	Agents

	checks   []func(context.Context) []work.Finding // of what this machine is configured to use
	backends []backend.Backend                      // that this machine could run
}

// plug finds out what there is to look at.
func (c *DoctorCommand) plug(app *App) (err error) {
	if url := c.DatabaseURL; url != "" {
		c.checks = append(c.checks, func(ctx context.Context) []work.Finding { return store.Diagnose(ctx, url) })
	}
	if url := c.RedisURL; url != "" {
		c.checks = append(c.checks, func(ctx context.Context) []work.Finding { return queue.Diagnose(ctx, url) })
	}
	if address := c.Files; address != "" {
		c.checks = append(c.checks, func(ctx context.Context) []work.Finding { return []work.Finding{checkFiles(ctx, address)} })
	}
	c.checks = append(c.checks, func(context.Context) []work.Finding { return []work.Finding{checkContainment(app.Supervisor)} })
	c.backends, _, err = c.Agents.backends(app.Getenv, app.Supervisor) // nothing is stored, so no secret needs to be known
	return err
}

// Run looks at everything and says how to mend what it finds. It ends with 1
// when something does not work.
func (c *DoctorCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	if c.backends == nil {
		if err := c.plug(app); err != nil {
			return err
		}
	}
	findings := c.examine(app.Ctx, client)
	if err := app.Ctx.Err(); err != nil {
		return interrupted(err)
	}
	if c.JSON {
		document, err := json.Marshal(findings)
		if err != nil {
			return fmt.Errorf("encode the findings: %w", err)
		}
		if err := printJSON(app.Stdout, document); err != nil {
			return err
		}
	} else if err := printFindings(app.Stdout, findings); err != nil {
		return err
	}
	return verdict(findings)
}

func (c *DoctorCommand) examine(ctx context.Context, client *client) []work.Finding {
	checks := slices.Clone(c.checks)
	for _, b := range c.backends {
		checks = append(checks, func(ctx context.Context) []work.Finding { return []work.Finding{checkBackend(ctx, b)} })
	}
	checks = append(checks, client.checkServer)
	findings := []work.Finding{}
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		findings = append(findings, check(ctx)...)
		cancel()
	}
	return findings
}

// checkFiles writes, reads and removes a blob.
func checkFiles(ctx context.Context, address string) work.Finding {
	finding := work.Finding{Name: "file store", Status: work.FindingOK}
	store, err := blob.Open(ctx, address)
	if err == nil {
		defer func() { _ = store.Close() }()
		finding.Detail = store.Name() + " takes, gives and removes files"
		err = store.Check(ctx)
	}
	if err != nil {
		finding.Status, finding.Detail = work.FindingFail, err.Error()
		finding.Mend = "Look at PIECEWORK_FILES and at the store's credentials."
		return finding
	}
	if strings.HasPrefix(address, "file:") {
		finding.Status = work.FindingWarn
		finding.Detail += ", on this machine's disk"
		finding.Mend = "API and worker processes on other machines need the same files: mount the directory there, or use S3 or GCS."
	}
	return finding
}

// checkContainment tells how sure it is that no process of an agent outlives
// its run.
func checkContainment(supervisor process.Supervisor) work.Finding {
	kind := supervisor.Containment()
	finding := work.Finding{Name: "containment", Status: work.FindingOK, Detail: kind.String()}
	if kind == process.MarksOnly {
		finding.Status = work.FindingWarn
		finding.Mend = "Run worker processes on Linux, with /proc."
	}
	return finding
}

func checkBackend(ctx context.Context, b backend.Backend) work.Finding {
	finding := work.Finding{Name: "backend: " + b.Name(), Status: work.FindingOK, Detail: "available"}
	if err := b.Available(ctx); err != nil {
		finding.Status, finding.Detail = work.FindingWarn, err.Error()
		finding.Mend = "Needed only if units are to use this backend on this machine."
		return finding
	}
	versioned, ok := b.(backend.Versioned)
	if !ok {
		return finding
	}
	version, err := versioned.Version(ctx)
	if err != nil {
		finding.Status, finding.Detail = work.FindingWarn, "version unknown: "+err.Error()
		return finding
	}
	finding.Detail = "version " + version
	return finding
}

// readiness is the answer to GET /readyz.
type readiness struct {
	Status string `json:"status"`
	Checks map[string]struct {
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
	} `json:"checks"`
}

// checkServer asks a running server how it does. That none runs is no fault:
// doctor is also for the time before the first start.
func (c *client) checkServer(ctx context.Context) []work.Finding {
	name := "server " + c.base.Redacted()
	ready, err := c.readiness(ctx)
	if err != nil {
		return []work.Finding{{
			Name: name, Status: work.FindingWarn, Detail: err.Error(),
			Mend: "Start one with `piecework dev`, or name one with --server.",
		}}
	}
	overall := work.Finding{Name: name, Status: work.FindingOK, Detail: ready.Status}
	if ready.Status != "ready" {
		overall.Status, overall.Mend = work.FindingFail, "See the checks below; the server's log has more."
	}
	findings := []work.Finding{overall}
	for _, name := range slices.Sorted(maps.Keys(ready.Checks)) {
		check := ready.Checks[name]
		finding := work.Finding{Name: "server: " + name, Status: work.FindingOK, Detail: check.Detail}
		if !check.OK && overall.Status == work.FindingFail {
			finding.Status = work.FindingFail
		} else if !check.OK {
			finding.Status = work.FindingWarn // the server does without
		}
		findings = append(findings, finding)
	}
	return findings
}

// readiness reads the answer whatever its status: a server that is not ready
// says so with 503 and the same body.
func (c *client) readiness(ctx context.Context) (*readiness, error) {
	req, err := c.build(ctx, request{method: http.MethodGet, path: "/readyz"})
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, errors.New("no answer")
	}
	defer func() { _ = resp.Body.Close() }()
	var ready readiness
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&ready); err != nil || ready.Status == "" {
		return nil, fmt.Errorf("what answers there is no Piecework (status %d)", resp.StatusCode)
	}
	return &ready, nil
}

func printFindings(w io.Writer, findings []work.Finding) error {
	t := newTable(w, "", "CHECK", "FOUND")
	for _, f := range findings {
		t.row(f.Status, f.Name, f.Detail)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, f := range findings {
		if f.Mend == "" || f.Status == work.FindingOK {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s %s\n  %s\n", f.Status, safeLine(f.Name), indent(work.Visible(f.Mend))); err != nil {
			return fmt.Errorf("write findings: %w", err)
		}
	}
	return nil
}

func indent(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") }

func verdict(findings []work.Finding) error {
	bad := 0
	for _, f := range findings {
		if f.Status == work.FindingFail {
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	return &exitError{exitUnsuccessful, fmt.Errorf("%d of %d checks failed", bad, len(findings))}
}
