package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

const (
	// SpoolAfter is how long a finished run is kept in memory only while Postgres does
	// not answer.
	SpoolAfter = time.Second
	// SpoolEvery is the pause between two looks at what is left there.
	SpoolEvery = 30 * time.Second
	// Patience is how long a Postgres that answers may refuse the end of a run for a
	// reason that nobody knows. Then it gets the bare end of the run.
	Patience = 10 * time.Minute

	spoolEnd   = ".json"
	refusedEnd = ".refused" // behind spoolEnd: what Postgres has refused
)

// Spool has finished runs that are not in Postgres yet. They are on disk, in files,
// for the work is paid for and this process may die before Postgres is back. What
// cannot be written there is in memory.
type Spool struct {
	Store    *store.Store
	Log      *slog.Logger
	Dir      string
	Announce func(unit uuid.UUID) // that a unit has changed

	mu      sync.Mutex
	waiting map[uuid.UUID]waiting // finished runs of this process that Postgres has not taken
}

// waiting is where the end of a run is that Postgres does not have.
type waiting struct {
	finish *store.Finish // nil: it is on disk
	lost   bool          // it was on disk, and is not there any more
}

// NewSpool returns the spool in a directory.
func NewSpool(s *store.Store, dir string, announce func(uuid.UUID), log *slog.Logger) *Spool {
	return &Spool{Store: s, Dir: dir, Announce: announce, Log: log, waiting: map[uuid.UUID]waiting{}}
}

// Path is the file of a run.
func (s *Spool) Path(run uuid.UUID) string { return filepath.Join(s.Dir, run.String()+spoolEnd) }

// Keep sees that the end of a run is not lost while Postgres does not take it.
func (s *Spool) Keep(f store.Finish) {
	if err := s.write(f, ""); err != nil {
		s.Log.Error("finished run is in memory only", "unit", f.UnitID, "err", err)
		s.wait(f.RunID, &f)
		return
	}
	s.wait(f.RunID, nil)
}

// write writes a finish to disk for good, or not at all.
func (s *Spool) write(f store.Finish, end string) error {
	raw, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode finish of run %s: %w", f.RunID, err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make spool directory: %w", err)
	}
	file, err := os.CreateTemp(s.Dir, "new-*")
	if err != nil {
		return fmt.Errorf("spool run %s: %w", f.RunID, err)
	}
	_, err = file.Write(raw)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), s.Path(f.RunID)+end)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("spool run %s: %w", f.RunID, err)
	}
	return syncDir(s.Dir)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open spool directory: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// HandIn hands in what was spooled, by this process or by one that died, and
// what this process could not spool. The run number tells Postgres whether it
// still wants it.
func (s *Spool) HandIn(ctx context.Context) error {
	var errs []error
	for _, f := range s.inMemory() {
		if err := s.handIn(ctx, f, time.Now()); err != nil {
			errs = append(errs, fmt.Errorf("the finished run of unit %s still waits in memory: %w", f.UnitID, err))
		}
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("look at the spool: %w", err))
	}
	for _, e := range entries {
		run, err := uuid.Parse(strings.TrimSuffix(e.Name(), spoolEnd))
		if err != nil || !strings.HasSuffix(e.Name(), spoolEnd) {
			continue
		}
		err = s.handInFile(ctx, run)
		switch {
		case errors.Is(err, fs.ErrNotExist): // another has handed it in
			s.markLost(run)
		case err != nil:
			errs = append(errs, fmt.Errorf("the finished run in %s still waits on disk: %w", e.Name(), err))
			if errors.As(err, new(*work.Unavailable)) {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Spool) handInFile(ctx context.Context, run uuid.UUID) error {
	path := s.Path(run)
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
		s.markLost(run)
		return errors.Join(fmt.Errorf("read %s, which is set aside: %w", path, err), os.Rename(path, path+".bad"))
	}
	if err := s.handIn(ctx, f, info.ModTime()); err != nil {
		return err
	}
	return os.Remove(path)
}

// handIn gives Postgres the end of a run that it did not take before.
func (s *Spool) handIn(ctx context.Context, f store.Finish, begun time.Time) error {
	written, verdict, err := s.Record(ctx, f, begun)
	if err != nil {
		return err
	}
	s.forget(f.RunID)
	s.Announce(f.UnitID)
	s.Log.Warn("finished run handed in late", "unit", f.UnitID, "run", f.RunID, "status", written.Status, "verdict", verdict)
	return nil
}

// Record writes a finish into Postgres and returns what was written. One that
// Postgres refuses twice is written bare, as failed with its cost, and so is one
// that it has refused since begun, for Patience, for another reason than being away.
func (s *Spool) Record(ctx context.Context, f store.Finish, begun time.Time) (store.Finish, store.Verdict, error) {
	verdict, err := s.Store.Runs.Finish(ctx, f)
	if store.Refused(err) {
		verdict, err = s.Store.Runs.Finish(ctx, f)
	}
	hopeless := store.Refused(err) || err != nil && ctx.Err() == nil && time.Since(begun) > Patience &&
		!errors.As(err, new(*work.Unavailable))
	if !hopeless {
		return f, verdict, err
	}
	s.Log.Error("POSTGRES REFUSES THE END OF A RUN: it is written bare, as failed, and what it came to is kept on disk",
		"unit", f.UnitID, "run", f.RunID, "file", s.Path(f.RunID)+refusedEnd, "err", err)
	if err := s.write(f, refusedEnd); err != nil {
		s.Log.Error("what the run came to is lost", "unit", f.UnitID, "run", f.RunID, "err", err)
	}
	bare := f.Bare(err)
	verdict, err = s.Store.Runs.Finish(ctx, bare)
	return bare, verdict, err
}

// Recorded forgets the end of a run that Postgres has.
func (s *Spool) Recorded(run uuid.UUID) {
	s.forget(run)
	if err := os.Remove(s.Path(run)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("take a finished run from the spool", "err", err) // handing it in again changes nothing
	}
}

// has tells whether the end of a run is on disk.
func (s *Spool) has(run uuid.UUID) bool {
	_, err := os.Stat(s.Path(run))
	return !errors.Is(err, fs.ErrNotExist) // when in doubt it is
}

func (s *Spool) wait(run uuid.UUID, f *store.Finish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[run] = waiting{finish: f}
}

func (s *Spool) forget(run uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, run)
}

// markLost notes that the end of a run that had come to its end here is lost.
func (s *Spool) markLost(run uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ours := s.waiting[run]; ours {
		s.waiting[run] = waiting{lost: true}
	}
}

// left is what this process still has of a run that it does not run.
func (s *Spool) left(run uuid.UUID) (left waiting, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, any = s.waiting[run]
	return left, any
}

// inMemory are the finished runs that neither Postgres nor the disk has taken.
func (s *Spool) inMemory() (list []store.Finish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, left := range s.waiting {
		if left.finish != nil {
			list = append(list, *left.finish)
		}
	}
	return list
}
