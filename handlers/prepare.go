package handlers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"piecework/internal/accept"
	"piecework/internal/backend"
	"piecework/internal/prompt"
	"piecework/internal/work"
	"piecework/store"
)

// prepared is a claimed unit made ready, and the directories made for it.
type prepared struct {
	req backend.Request
	own string // the run's own directory; empty when the unit named one

	accept *accept.Check    // that the result must meet; nil: there is none
	inputs string           // where uploaded files are
	before map[string]stamp // what own held before the run
}

// prepare renders the prompt, finds the files and makes the directories. What
// is wrong with a unit is found here, before any money is spent.
func (w *Worker) prepare(ctx context.Context, c *store.Claimed) (prepared, *work.Failure) {
	p := prepared{req: backend.Request{
		UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, SystemPrompt: c.SystemPrompt, Model: c.Model,
		Payload: c.Payload, OutputSchema: c.OutputSchema, MaxTurns: c.MaxTurns, MaxCostUSD: c.MaxCostUSD,
		IdleTimeout: c.IdleTimeout.Duration(), StartupTimeout: c.StartupTimeout.Duration(),
		SessionID: c.SessionID, SessionCostUSD: c.SessionCostUSD,
	}}
	var err error
	if p.accept, err = w.acceptance(c); err != nil {
		return p, work.Fail(work.ClassInvalidRequest, err.Error())
	}
	if p.req.Call, err = c.Call(); err != nil {
		return p, work.Fail(work.ClassInvalidRequest, err.Error())
	}
	if p.req.Call != nil { // it has no prompt, no files and no directory
		return p, nil
	}
	rendered, err := prompt.Render(c.Prompt, c.Payload, prompt.Missing(c.MissingKey))
	if err != nil {
		return p, work.Fail(work.ClassInvalidRequest, err.Error())
	}
	p.req.Prompt, p.req.ProjectSettings = rendered, c.ProjectSettings
	for _, name := range c.MCPServers {
		server, known := w.MCPServers[name]
		if !known {
			return p, work.Fail(work.ClassInvalidRequest,
				fmt.Sprintf("this worker process knows no MCP server %q: give API and worker processes the same PIECEWORK_MCP_SERVERS", name))
		}
		p.req.MCPServers = append(p.req.MCPServers, server)
	}
	var failure *work.Failure
	if p.needsDirectory(c) {
		if failure = w.directories(c, &p); failure != nil {
			return p, failure
		}
	}
	if p.req.Files, failure = w.files.inputs(ctx, c, p.inputs); failure != nil {
		return p, failure
	}
	// A run that was lost or released has stored nothing: what it left counts
	// as this one's.
	if c.Losses == 0 {
		if p.before, err = listFiles(p.own); err != nil {
			return p, work.Fail(work.ClassInfra, "look at the unit's directory: "+err.Error())
		}
	}
	if c.ResumeSession != "" && homeKept(p.req.Home) {
		p.req.SessionID, p.req.Resume = c.ResumeSession, true
	} else {
		p.req.SessionCostUSD = 0
	}
	return p, nil
}

// homeKept tells whether an earlier run left its home on this machine.
func homeKept(home string) bool {
	entries, err := os.ReadDir(home)
	return err == nil && len(entries) > 0
}

// needsDirectory tells whether anything of this run would touch a directory.
func (p *prepared) needsDirectory(c *store.Claimed) bool {
	return c.WorkingDirectory != "" || p.accept != nil || len(c.Uploads()) > 0 || backend.UsesDirectory(c.Backend, c.Payload)
}

func (w *Worker) directories(c *store.Claimed, p *prepared) *work.Failure {
	unit := filepath.Join(w.disk.Units(), c.ID.String())
	p.req.Home, p.inputs = filepath.Join(unit, "home"), filepath.Join(unit, "files")
	if err := os.MkdirAll(p.req.Home, 0o700); err != nil {
		return work.Fail(work.ClassInfra, "make the unit's home: "+err.Error())
	}
	now := time.Now()
	if err := os.Chtimes(unit, now, now); err != nil { // prune goes by it
		return work.Fail(work.ClassInfra, "mark the unit's directory as in use: "+err.Error())
	}
	if c.WorkingDirectory != "" {
		opened, dir, err := w.Roots.OpenDir(c.WorkingDirectory)
		if err != nil {
			return work.Fail(work.ClassInvalidRequest, fmt.Sprintf("working_directory %q: %v", c.WorkingDirectory, err))
		}
		p.req.Dir, p.req.OpenedDir = dir, opened
		return nil
	}
	// A resumed session goes on in the directory it began in.
	p.own = filepath.Join(unit, "work")
	p.req.Dir = p.own
	err := os.MkdirAll(p.own, 0o700)
	if err == nil {
		p.req.OpenedDir, err = openOwn(p.own)
	}
	if err != nil {
		return work.Fail(work.ClassInfra, "make the unit's directory: "+err.Error())
	}
	return nil
}

// tidy removes the uploaded files, which can be had again, and the directories
// that nothing was put into.
func (p *prepared) tidy() {
	closeFiles(p.req.Files)
	if p.req.OpenedDir != nil {
		_ = p.req.OpenedDir.Close()
	}
	if p.req.Home == "" {
		return // nothing was made yet
	}
	_ = os.RemoveAll(p.inputs) // the next run makes it anew
	for _, dir := range []string{p.own, p.req.Home, filepath.Dir(p.req.Home)} {
		if dir != "" {
			_ = os.Remove(dir) // fails unless empty, which is the point
		}
	}
}
