package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/prompt"
	"piecework/internal/work"
	"piecework/store"
)

// prepared is a claimed unit made ready, and the directories made for it.
type prepared struct {
	req backend.Request
	own string // the run's own directory; empty when the unit named one
}

func (w *Worker) unitsDir() string { return filepath.Join(w.Data, "units") }

// prepare renders the prompt, finds the files and makes the directories. What
// is wrong with a unit is found here, before any money is spent.
func (w *Worker) prepare(c *store.Claimed) (prepared, *work.Failure) {
	p := prepared{req: backend.Request{
		UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, SystemPrompt: c.SystemPrompt, Model: c.Model,
		Payload: c.Payload, OutputSchema: c.OutputSchema, MaxTurns: c.MaxTurns, MaxCostUSD: c.MaxCostUSD,
		IdleTimeout: c.IdleTimeout.Duration(), SessionID: c.SessionID, SessionCostUSD: c.SessionCostUSD,
	}}
	rendered, err := prompt.Render(c.Prompt, c.Payload, prompt.Missing(c.MissingKey))
	if err != nil {
		return p, work.Fail(work.ClassInvalidRequest, err.Error())
	}
	p.req.Prompt = rendered
	if p.req.Files, err = w.files(c.Payload); err != nil {
		return p, work.Fail(work.ClassInvalidRequest, err.Error())
	}
	if err := w.directories(c, &p); err != nil {
		return p, work.Fail(work.ClassInvalidRequest, err.Error())
	}
	if c.ResumeSession != "" && w.homeKept(p.req.Home) {
		p.req.SessionID, p.req.Resume = c.ResumeSession, true
	} else {
		p.req.SessionCostUSD = 0
	}
	return p, nil
}

// homeKept tells whether an earlier run left its home on this machine.
func (w *Worker) homeKept(home string) bool {
	entries, err := os.ReadDir(home)
	return err == nil && len(entries) > 0
}

func (w *Worker) files(payload json.RawMessage) ([]backend.File, error) {
	var files []backend.File
	taken := map[string]bool{}
	for _, ref := range work.Attachments(payload) {
		path, err := w.Roots.File(ref)
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", ref, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("file %q is gone: %w", ref, errors.Unwrap(err))
		}
		if info.Size() > work.MaxFileBytes {
			return nil, fmt.Errorf("file %q has grown to %d bytes; at most %d may be attached", ref, info.Size(), work.MaxFileBytes)
		}
		name := filepath.Base(path)
		for n := 2; taken[name]; n++ {
			ext := filepath.Ext(path)
			name = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(filepath.Base(path), ext), n, ext)
		}
		taken[name] = true
		files = append(files, backend.File{Name: name, Path: path, Size: info.Size(), MediaType: mime.TypeByExtension(filepath.Ext(path))})
	}
	return files, nil
}

func (w *Worker) directories(c *store.Claimed, p *prepared) error {
	unit := filepath.Join(w.unitsDir(), c.ID.String())
	p.req.Home = filepath.Join(unit, "home")
	if err := os.MkdirAll(p.req.Home, 0o700); err != nil {
		return fmt.Errorf("make the unit's home: %w", err)
	}
	now := time.Now()
	if err := os.Chtimes(unit, now, now); err != nil { // prune goes by it
		return fmt.Errorf("mark the unit's directory as in use: %w", err)
	}
	if c.WorkingDirectory != "" {
		dir, err := w.Roots.Dir(c.WorkingDirectory)
		if err != nil {
			return fmt.Errorf("working_directory %q: %w", c.WorkingDirectory, err)
		}
		p.req.Dir = dir
		return nil
	}
	// A resumed session goes on in the directory it began in.
	p.own = filepath.Join(unit, "work")
	p.req.Dir = p.own
	if err := os.MkdirAll(p.own, 0o700); err != nil {
		return fmt.Errorf("make the unit's directory: %w", err)
	}
	return nil
}

// maxOutputFiles bounds how many files of a run are listed.
const maxOutputFiles = 200

// outputFiles lists what the run left in its own directory.
func (p prepared) outputFiles() []work.File {
	if p.own == "" {
		return nil
	}
	input := map[string]bool{}
	for _, f := range p.req.Files {
		input[f.Name] = true
	}
	var files []work.File
	// What cannot be read is not listed; the run's result does not hang on it.
	_ = filepath.WalkDir(p.own, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // see above
		}
		name, err := filepath.Rel(p.own, path)
		if err != nil || input[name] {
			return nil //nolint:nilerr // see above
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		files = append(files, work.File{Name: name, Size: info.Size()})
		if len(files) == maxOutputFiles {
			return fs.SkipAll
		}
		return nil
	})
	return files
}

// tidy removes the directories that nothing was put into.
func (p prepared) tidy() {
	for _, dir := range []string{p.own, p.req.Home, filepath.Dir(p.req.Home)} {
		if dir != "" {
			_ = os.Remove(dir) // fails unless empty, which is the point
		}
	}
}
