package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// leftBehind ends a run with an output file and returns it.
func (l *fixture) leftBehind(c *Claimed) uuid.UUID {
	l.t.Helper()
	id := uuid.Must(uuid.NewV7())
	l.must(l.Files.ExpectBlobs(l.t.Context(), []uuid.UUID{id}))
	l.end(ending(c, work.Succeeded, func(f *Finish) {
		f.OutputFiles = []work.OutputFile{{ID: &id, Name: "report.md", Size: 3, MediaType: "text/plain", SHA256: aSum}}
	}), Recorded)
	return id
}

// Output files go with their unit and leave a note for their bytes; those that a
// unit which is not over needs keep theirs.
func TestOutputFilesGoWithTheirUnit(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	first := l.run()
	file := l.leftBehind(first)
	user := l.put(uses(file))
	if err := l.Units.Delete(t.Context(), work.DefaultTenant, first.ID); !errors.Is(err, work.ErrConflict) {
		t.Errorf("delete of a unit whose file is needed: %v", err)
	}
	soon := time.Now().Add(time.Hour)
	if n, err := l.Retention.PruneUnits(t.Context(), work.DefaultTenant, soon, 10); n != 0 || err != nil {
		t.Errorf("%d units pruned, %v", n, err)
	}
	_, err := l.Units.Cancel(t.Context(), work.DefaultTenant, user.ID)
	l.must(err)
	if n, err := l.Retention.PruneUnits(t.Context(), work.DefaultTenant, soon, 10); n != 2 || err != nil {
		t.Errorf("%d units pruned, %v", n, err)
	}
	strays, err := l.Files.StrayBlobs(t.Context(), 10)
	if l.must(err); len(strays) != 1 || strays[0] != file {
		t.Errorf("bytes to be removed: %v, want %s", strays, file)
	}
	for _, table := range []string{"work_units", "worker_runs", "transcripts", "files", "unit_files"} {
		if n := get[int](l, `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("%d rows of %s are left", n, table)
		}
	}
}

// A unit that somebody is at work on, that is not over, or that is young stays.
func TestPruneLeavesWhatIsNeeded(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	locked, young, waits := l.run(), l.run(), l.put()
	l.end(ending(locked, work.Succeeded), Recorded)
	l.end(ending(young, work.Succeeded), Recorded)
	l.exec(`UPDATE work_units SET finished_at = finished_at - interval '2 hours' WHERE id <> $1 AND finished_at IS NOT NULL`, young.ID)
	tx, err := l.db.BeginTxx(t.Context(), nil)
	l.must(err)
	_, err = tx.ExecContext(t.Context(), `SELECT FROM work_units WHERE id = $1 FOR UPDATE`, locked.ID)
	l.must(err)
	before := time.Now().Add(-time.Hour)
	if n, err := l.Retention.PruneUnits(t.Context(), work.DefaultTenant, before, 10); n != 0 || err != nil {
		t.Errorf("%d pruned beside somebody at work, %v", n, err)
	}
	l.must(tx.Rollback())
	if n, err := l.Retention.PruneUnits(t.Context(), work.DefaultTenant, before, 10); n != 1 || err != nil {
		t.Errorf("%d pruned, %v", n, err)
	}
	if got := get[int](l, `SELECT count(*) FROM work_units WHERE id = ANY($1::uuid[])`, pg.UUIDs([]uuid.UUID{young.ID, waits.ID})); got != 2 {
		t.Errorf("%d of 2 are left", got)
	}
}

// Uploads that something still names stay.
func TestUploadsThatAreNamedStay(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	byUnit, bySchedule, byNobody := l.upload("a"), l.upload("b"), l.upload("c")
	l.put(uses(byUnit.ID))
	l.exec(`INSERT INTO schedules (tenant, name, cron, timezone, catch_up, title, unit, next_at, created_at)
		VALUES ('default', 's', '@daily', 'UTC', 'skip', 't', jsonb_build_object('files', ARRAY[$1::text]), now(), now())`, bySchedule.ID.String())
	if n, err := l.Retention.PruneUploads(t.Context(), work.DefaultTenant, time.Now().Add(time.Hour), 10); n != 1 || err != nil {
		t.Errorf("%d pruned, %v", n, err)
	}
	if _, err := l.Files.Get(t.Context(), work.DefaultTenant, byNobody.ID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("an upload that nobody names: %v", err)
	}
}

// A process of the version before, which notes the bytes of a file by itself, can
// delete one beside the trigger that does so now.
func TestOlderProcessesDeleteFiles(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	f := l.upload("a")
	l.exec(`WITH gone AS (DELETE FROM files WHERE id = $1 RETURNING id)
		INSERT INTO stray_blobs (id, remove_at) SELECT id, clock_timestamp() FROM gone
		ON CONFLICT (id) DO UPDATE SET remove_at = excluded.remove_at`, f.ID)
	if l.strays() != 1 {
		t.Errorf("%d notes", l.strays())
	}
}
