package store

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/work"
)

var aSum = strings.Repeat("ab", 32)

// upload makes a file, with its bytes noted before.
func (l *fixture) upload(name string) work.File {
	l.t.Helper()
	id := uuid.Must(uuid.NewV7())
	l.must(l.Files.ExpectBlobs(l.t.Context(), []uuid.UUID{id}))
	f, err := l.Files.Add(l.t.Context(), work.File{ID: id, Tenant: work.DefaultTenant, Name: name, Size: 3, MediaType: "text/plain", SHA256: aSum})
	l.must(err)
	return f
}

func (l *fixture) strays() int { return get[int](l, `SELECT count(*) FROM stray_blobs`) }

func uses(ids ...uuid.UUID) func(*NewUnit) {
	return func(n *NewUnit) {
		for _, id := range ids {
			n.Files = append(n.Files, id.String())
		}
	}
}

func TestFileIsAddedReadAndDeleted(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	f := l.upload("a.txt")
	if f.Name != "a.txt" || f.Size != 3 || f.MediaType != "text/plain" || f.SHA256 != aSum || f.CreatedAt.IsZero() || f.RunID != nil ||
		l.strays() != 0 {
		t.Errorf("file %+v, %d strays", f, l.strays())
	}
	again, err := l.Files.Add(t.Context(), f)
	if err != nil || again != f {
		t.Errorf("again %+v, %v", again, err)
	}
	if _, err := l.Files.Get(t.Context(), "other", f.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	if files, err := l.Files.ByID(t.Context(), "other", []uuid.UUID{f.ID}); err != nil || len(files) > 0 {
		t.Errorf("another tenant: %v, %v", files, err)
	}
	if err := l.Files.Delete(t.Context(), "other", f.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	l.must(l.Files.Delete(t.Context(), work.DefaultTenant, f.ID))
	if err := l.Files.Delete(t.Context(), work.DefaultTenant, f.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("twice: %v", err)
	}
	if ids, err := l.Files.StrayBlobs(t.Context(), 10); err != nil || len(ids) != 1 || ids[0] != f.ID {
		t.Errorf("strays %v, %v", ids, err)
	}
	l.must(l.Files.BlobsGone(t.Context(), []uuid.UUID{f.ID}))
	if l.strays() != 0 {
		t.Error("still a stray")
	}
}

func TestStraysAreLeftAloneWhileTheyMayBeWritten(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	l.must(l.Files.ExpectBlobs(t.Context(), ids))
	l.must(l.Files.ExpectBlobs(t.Context(), ids)) // a statement that the driver repeats
	l.exec(`UPDATE stray_blobs SET remove_at = remove_at - interval '25 hours' WHERE id = $1`, ids[0])
	if due, err := l.Files.StrayBlobs(t.Context(), 10); err != nil || len(due) != 1 || due[0] != ids[0] {
		t.Errorf("due %v, %v", due, err)
	}
}

func TestFileOfAUnitThatIsNotFinalStays(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	f := l.upload("a.txt")
	for _, state := range []work.State{work.Queued, work.Running, work.Waiting} {
		c := l.run(uses(f.ID))
		if string(c.Files[0]) != f.ID.String() {
			t.Errorf("claimed with %v", c.Files)
		}
		l.exec(`UPDATE work_units SET state = $2, lane = CASE WHEN $2 = 'waiting' THEN 'batch' ELSE 'live' END WHERE id = $1`, c.ID, string(state))
		if err := l.Files.Delete(t.Context(), work.DefaultTenant, f.ID); !errors.Is(err, work.ErrConflict) {
			t.Errorf("%s: %v", state, err)
		}
		l.exec(`UPDATE work_units SET state = 'cancelled', finished_at = now() WHERE id = $1`, c.ID)
	}
	// However the unit named it.
	u := l.put(func(n *NewUnit) { n.Payload = []byte(`{"file_path":"` + f.ID.String() + `"}`) })
	if err := l.Files.Delete(t.Context(), work.DefaultTenant, f.ID); !errors.Is(err, work.ErrConflict) {
		t.Errorf("named in the payload: %v", err)
	}
	if _, err := l.Units.Cancel(t.Context(), work.DefaultTenant, u.ID); err != nil {
		t.Fatal(err)
	}
	l.must(l.Files.Delete(t.Context(), work.DefaultTenant, f.ID))
}

func TestUnitWhoseFileIsGoneFailsAlone(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	f := l.upload("a.txt")
	outs := make([]error, 20)
	var all sync.WaitGroup
	for i := range outs {
		id := f.ID
		if i%2 == 1 {
			id = uuid.New()
		}
		all.Go(func() { _, _, outs[i] = l.Units.Accept(t.Context(), newUnit(uses(id, id))) })
	}
	all.Wait()
	for i, err := range outs {
		var invalid *work.Invalid
		if (i%2 == 1) != errors.As(err, &invalid) || i%2 == 0 && err != nil {
			t.Errorf("unit %d: %v", i, err)
		}
	}
}

// Whoever comes first wins: a unit is never accepted with a file that is gone,
// and a file of an accepted unit is never deleted.
func TestAcceptAndDeleteAtOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for range 30 {
		f := l.upload("a.txt")
		var accepted, deleted error
		var both sync.WaitGroup
		both.Go(func() { _, _, accepted = l.Units.Accept(t.Context(), newUnit(uses(f.ID))) })
		both.Go(func() { deleted = l.Files.Delete(t.Context(), work.DefaultTenant, f.ID) })
		both.Wait()
		if (accepted == nil) == (deleted == nil) {
			t.Fatalf("accepted: %v, deleted: %v", accepted, deleted)
		}
	}
}

func TestOutputFilesBecomeFilesWithTheEndOfTheRun(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	id := uuid.Must(uuid.NewV7())
	l.must(l.Files.ExpectBlobs(t.Context(), []uuid.UUID{id}))
	f := ending(c, work.Succeeded, func(f *Finish) {
		f.OutputFiles = []work.OutputFile{
			{ID: &id, Name: "sub/<ü>.md", Size: 3, MediaType: "text/markdown", SHA256: aSum}, {Name: "big", Size: 1 << 40, Reason: "larger than allowed"},
		}
	})
	l.end(f, Recorded)
	l.end(f, Recorded) // repeated
	files, next, err := l.Files.List(t.Context(), FileFilter{Tenant: work.DefaultTenant, Run: c.RunID})
	if err != nil || next != nil || len(files) != 1 || files[0].ID != id || files[0].Name != "sub/<ü>.md" || *files[0].RunID != c.RunID ||
		files[0].SHA256 != aSum {
		t.Errorf("files %+v, %v", files, err)
	}
	if l.strays() != 0 {
		t.Error("its bytes are still strays")
	}
	if outs := l.theRun(c.RunID).OutputFiles; len(outs) != 2 || *outs[0].ID != id || outs[1].ID != nil || outs[1].Reason == "" {
		t.Errorf("run's files %+v", outs)
	}
}

// A finish that comes when its bytes were swept must not promise them.
func TestSweptOutputFilesBecomeNone(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c, id := l.run(), uuid.Must(uuid.NewV7())
	l.end(ending(c, work.Succeeded, func(f *Finish) {
		f.OutputFiles = []work.OutputFile{{ID: &id, Name: "a", Size: 3, MediaType: "text/plain", SHA256: aSum}}
	}), Recorded)
	if _, err := l.Files.Get(t.Context(), work.DefaultTenant, id); !errors.Is(err, work.ErrNotFound) {
		t.Error(err)
	}
}

func TestFencedRunKeepsItsFiles(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	stale := l.run()
	l.lose(stale)
	id := uuid.Must(uuid.NewV7())
	l.must(l.Files.ExpectBlobs(t.Context(), []uuid.UUID{id}))
	l.end(ending(stale, work.Succeeded, func(f *Finish) {
		f.OutputFiles = []work.OutputFile{{ID: &id, Name: "late.txt", Size: 3, MediaType: "text/plain", SHA256: aSum}}
	}), Fenced)
	if f, err := l.Files.Get(t.Context(), work.DefaultTenant, id); err != nil || *f.RunID != stale.RunID {
		t.Errorf("%+v, %v", f, err)
	}
}

// A file stays as long as units are being made of it, and goes when its time is
// over.
func TestFilesOfBatches(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	f, old := l.upload("lines.jsonl"), l.upload("old.jsonl")
	id := l.enumerating(func(b *NewBatch) { b.InputFile = &f.ID })
	l.exec(`UPDATE files SET expires_at = now() - interval '1 second'`)
	_, err := l.Retention.ExpireFiles(t.Context(), 10)
	l.must(err)
	if _, err := l.Files.Get(t.Context(), work.DefaultTenant, old.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a file whose time is over: %v", err)
	}
	if err := l.Files.Delete(t.Context(), work.DefaultTenant, f.ID); !errors.Is(err, work.ErrConflict) {
		t.Errorf("delete of what units are made of: %v", err)
	}
	l.fillMore(id, 0, 3)
	l.must(l.Batches.FinishEnumeration(t.Context(), id, l.process))
	l.must(l.Files.Delete(t.Context(), work.DefaultTenant, f.ID))
	strays, err := l.Files.StrayBlobs(t.Context(), 10)
	if l.must(err); len(strays) != 2 {
		t.Errorf("%d blobs are to be removed", len(strays))
	}
}

func TestDeletedBatchesAreRemoved(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id, other := l.batch(5), l.batch(1)
	if err := l.Batches.Delete(t.Context(), work.DefaultTenant, id); !errors.Is(err, work.ErrConflict) {
		t.Errorf("delete of a batch that goes on: %v", err)
	}
	l.works(l.advance(id).Messages, nil, 1)
	l.advance(id)
	if b := l.is(id, work.BatchCompleted); b.Counts.Usage == nil {
		t.Errorf("%+v has no usage", b.Counts)
	}
	l.must(l.Batches.Delete(t.Context(), work.DefaultTenant, id))
	if _, err := l.Batches.Get(t.Context(), work.DefaultTenant, id); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a deleted batch: %v", err)
	}
	for n := 1; n > 0; {
		var err error
		n, err = l.Retention.PurgeBatches(t.Context(), 2)
		l.must(err)
	}
	if n := get[int](l, `SELECT (SELECT count(*) FROM batches) + (SELECT count(*) FROM work_units)`); n != 2 {
		t.Errorf("%d rows are left", n)
	}
	l.is(other, work.BatchInProgress)
}

// A cancel of Anthropic's kind of batch lets all its units be made first.
func TestCancelWhileFilling(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.enumerating(func(b *NewBatch) { b.Protocol = work.ProtocolAnthropic })
	l.fillMore(id, 0, 2)
	_, err := l.Batches.Cancel(t.Context(), work.DefaultTenant, id, "")
	l.must(err)
	l.is(id, work.BatchEnumerating)
	l.fillMore(id, 2, 5)
	l.must(l.Batches.FinishEnumeration(t.Context(), id, l.process))
	for a := l.advance(id); a.More; a = l.advance(id) {
	}
	if b := l.is(id, work.BatchCancelled); b.Counts.Cancelled != 5 {
		t.Errorf("%+v", b.Counts)
	}
}
