package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// What a finished run came to is kept on disk while the ledger does not take
// it: the work is paid for, and this process may die before Postgres is back.
const (
	spoolAfter = time.Second      // without an answer
	spoolEvery = 30 * time.Second // between two looks at what is left there
	spoolEnd   = ".json"
	refusedEnd = ".refused" // behind spoolEnd: what the ledger has refused
)

func (w *Worker) spoolDir() string { return filepath.Join(w.Data, "spool") }

func (w *Worker) spoolPath(run uuid.UUID) string {
	return filepath.Join(w.spoolDir(), run.String()+spoolEnd)
}

// spool writes a finish to disk for good, or not at all.
func (w *Worker) spool(f store.Finish) error { return w.spoolAs(f, "") }

func (w *Worker) spoolAs(f store.Finish, end string) error {
	raw, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode finish of run %s: %w", f.RunID, err)
	}
	if err := os.MkdirAll(w.spoolDir(), 0o700); err != nil {
		return fmt.Errorf("make spool directory: %w", err)
	}
	file, err := os.CreateTemp(w.spoolDir(), "new-*")
	if err != nil {
		return fmt.Errorf("spool run %s: %w", f.RunID, err)
	}
	_, err = file.Write(raw)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), w.spoolPath(f.RunID)+end)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("spool run %s: %w", f.RunID, err)
	}
	return syncDir(w.spoolDir())
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open spool directory: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// unspool hands in what was spooled, by this process or by one that died, and
// what this process could not spool. The run number tells the ledger whether it
// still wants it.
func (w *Worker) unspool(ctx context.Context) {
	for _, f := range w.inMemory() {
		if err := w.handIn(ctx, f, time.Now()); err != nil {
			w.Log.Warn("finished run still waits in memory", "unit", f.UnitID, "err", err)
		}
	}
	entries, err := os.ReadDir(w.spoolDir())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.Log.Warn("look at the spool", "err", err)
		}
		return
	}
	for _, e := range entries {
		run, err := uuid.Parse(strings.TrimSuffix(e.Name(), spoolEnd))
		if err != nil || !strings.HasSuffix(e.Name(), spoolEnd) {
			continue
		}
		err = w.handInFile(ctx, run)
		switch {
		case errors.Is(err, fs.ErrNotExist): // another has handed it in
			w.gone(run)
		case err != nil:
			w.Log.Warn("finished run still waits on disk", "file", e.Name(), "err", err)
			if errors.As(err, new(*work.Unavailable)) {
				return
			}
		}
	}
}

func (w *Worker) handInFile(ctx context.Context, run uuid.UUID) error {
	path := w.spoolPath(run)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f store.Finish
	if err := json.Unmarshal(raw, &f); err != nil {
		// It was written whole, so the disk has changed it.
		w.gone(run)
		return errors.Join(fmt.Errorf("read %s, which is set aside: %w", path, err), os.Rename(path, path+".bad"))
	}
	if err := w.handIn(ctx, f, info.ModTime()); err != nil {
		return err
	}
	return os.Remove(path)
}

// handIn gives the ledger the end of a run that it did not take before.
func (w *Worker) handIn(ctx context.Context, f store.Finish, begun time.Time) error {
	written, verdict, err := w.record(ctx, f, begun)
	if err != nil {
		return err
	}
	w.settled(f.RunID)
	w.announce(f.UnitID)
	w.Log.Warn("finished run handed in late", "unit", f.UnitID, "run", f.RunID, "status", written.Status, "verdict", verdict)
	return nil
}

// watchSpool hands in what a settle has given up.
func (w *Worker) watchSpool(ctx context.Context) {
	ticker := time.NewTicker(spoolEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.unspool(ctx)
		}
	}
}
