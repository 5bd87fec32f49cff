package handlers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// cacheForm is part of every key. Another one makes all earlier results
// unknown: count it up when a key's parts come to mean something else.
const cacheForm = 1

// cacheInput is all that shapes an answer beside the bytes of the files.
type cacheInput struct {
	Form         int
	Backend      string
	Settings     string // of the backend
	Worker       string
	Model        string
	Prompt       string
	SystemPrompt string
	Payload      json.RawMessage `json:",omitempty"`
	OutputSchema json.RawMessage `json:",omitempty"`
	Accept       json.RawMessage `json:",omitempty"` // a result that is kept has met it
	ReadsProject bool            `json:",omitempty"`
	MCPServers   []string        `json:",omitempty"`
	MaxTurns     int
	MaxCostUSD   *float64
	OnDenied     string   `json:",omitempty"` // only note: a result in spite of denials
	Files        []string // names, in their order
}

// cacheLook is a unit's look into the result cache.
type cacheLook struct {
	came  work.Cache
	from  *store.Cached // that was found
	key   []byte        // nil: the unit's result is not to be kept
	files []byte        // a digest of the bytes that went into the key
}

// inCache looks for an earlier run's result, if the unit asked for that. When
// the look fails, the unit runs. Units with equal keys that run at the same time
// do not wait for each other.
func (a *attempt) inCache(ctx context.Context) bool {
	c := a.claimed
	if c.CacheTTL <= 0 {
		return false
	}
	var err error
	if a.look.files, err = digest(a.prep.req.Files); err == nil {
		a.look.key, err = a.cacheKey()
	}
	if err == nil {
		err = untilAnswered(ctx, func() (err error) {
			a.look.from, err = a.w.Store.Runs.Cached(ctx, c.Tenant, a.look.key, c.CacheTTL.Duration())
			return err
		})
	}
	if err != nil {
		a.look.key = nil
		a.w.Log.Warn("look for a result to take over; the unit runs", "unit", c.ID, "err", err)
		return false
	}
	if a.look.came = work.CacheMiss; a.look.from == nil {
		return false
	}
	a.look.came, a.look.key = work.CacheHit, nil
	return true
}

// fromCache takes over an earlier run's result, if there is one.
func (a *attempt) fromCache(ctx context.Context) bool {
	if !a.inCache(ctx) {
		return false
	}
	from := a.look.from
	a.rec.steps.Add(transcript.Step{Type: transcript.SystemText, Text: fmt.Sprintf(
		"From the cache: this is the result of run %s of %s, which was asked the same. No model was called.",
		from.RunID, from.CompletedAt.UTC().Format(time.RFC3339))})
	a.ran.Result = backend.Result{Success: true, Output: from.Result, Metadata: backend.Metadata{Model: from.Model, TotalCostUSD: new(0.0)}}
	a.ran.files = from.OutputFiles
	return true
}

// cacheKey is a digest of all that shapes the answer to a prepared unit.
func (a *attempt) cacheKey() ([]byte, error) {
	c, req := a.claimed, a.prep.req
	what := cacheInput{
		Form: cacheForm, Backend: c.Backend, Worker: c.Worker, Model: req.Model, Prompt: req.Prompt, SystemPrompt: req.SystemPrompt,
		OutputSchema: req.OutputSchema, Accept: c.Accept,
		ReadsProject: c.ProjectSettings == work.SettingsRead && !backend.MustReadProject(c.Backend),
		MCPServers:   c.MCPServers, MaxTurns: req.MaxTurns, MaxCostUSD: req.MaxCostUSD,
	}
	if c.OnDenied == work.OnDeniedNote {
		what.OnDenied = c.OnDenied
	}
	if backend.ReadsPayload(c.Backend) {
		what.Payload = req.Payload
	}
	if configured, ok := a.w.health.Of(c.Backend).Backend.(backend.Configured); ok {
		what.Settings = configured.Settings()
	}
	for _, f := range req.Files {
		what.Files = append(what.Files, f.Name)
	}
	text, err := json.Marshal(what) // which also takes the blanks out of payload and schema
	if err != nil {
		return nil, fmt.Errorf("make a key for the result: %w", err)
	}
	key := sha256.New()
	_, _ = key.Write(a.look.files) // 32 bytes, so the two cannot run into each other
	_, _ = key.Write(text)
	return key.Sum(nil), nil
}

// digest is a digest of the bytes of files, which are read as they lie here.
func digest(files []backend.File) ([]byte, error) {
	all := sha256.New()
	for _, f := range files {
		one := sha256.New()
		if err := read(one, f); err != nil {
			return nil, fmt.Errorf("read the attached file %q: %w", f.Name, reason(err))
		}
		if !f.InPlace() {
			return nil, fmt.Errorf("the attached file %q was replaced by another", f.Name)
		}
		_, _ = all.Write(one.Sum(nil))
	}
	return all.Sum(nil), nil
}

func read(into io.Writer, f backend.File) error {
	file, err := f.Open()
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(into, file)
	return err
}

// keepable looks whether the result of a run may be taken over by others, and
// forgets its key if not: when it is not whole, or when a file was changed
// meanwhile and nobody knows which bytes the model has seen.
func (a *attempt) keepable() {
	if a.look.key == nil {
		return
	}
	files, err := digest(a.prep.req.Files)
	lost := func(f work.OutputFile) bool { return f.ID == nil }
	if err != nil || !bytes.Equal(files, a.look.files) || !a.ran.Success || len(a.ran.Output) > maxResult ||
		len(a.ran.files) >= maxOutputFiles || slices.ContainsFunc(a.ran.files, lost) {
		a.look.key = nil
	}
}
