package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store/pg"
)

// Transcripts are the steps of runs.
type Transcripts struct {
	db     *pg.DB
	codec  transcript.Codec
	append *pg.Group[Progress, struct{}]
}

// Progress is what a run has to tell before it ends.
type Progress struct {
	RunID          uuid.UUID
	Steps          []transcript.Step
	LiveStatus     string // what it does now; empty: as before
	ToolCalls      int
	RenderedPrompt string // empty: as before
}

// Append adds steps to a run's transcript and brings its live status up to
// date. It returns when the steps are committed.
func (s *Transcripts) Append(ctx context.Context, p Progress) error {
	if _, err := s.append.Do(ctx, p); err != nil {
		return fmt.Errorf("append to transcript of run %s: %w", p.RunID, err)
	}
	return nil
}

func (p Progress) weight() int {
	n := len(p.RenderedPrompt)
	for _, s := range p.Steps {
		n += len(s.Text)
		for _, c := range s.Content {
			n += len(c.Text) + len(c.Args)
		}
	}
	return n
}

type progressIn struct {
	RunID          uuid.UUID `json:"run_id"`
	LiveStatus     string    `json:"live_status"`
	ToolCalls      int       `json:"tool_calls"`
	RenderedPrompt string    `json:"rendered_prompt"`
	From           int       `json:"body_from"`
	Length         int       `json:"body_length"`
	Rev            int       `json:"rev"`
}

// In: $1 a JSON array of progressIn, $2 all their JSON lines end to end. A run
// that is over or gone is passed over: what it still says comes with its
// finish.
const appendSteps = `
WITH p AS (
    SELECT * FROM json_to_recordset($1) AS p(run_id uuid, live_status text, tool_calls integer, rendered_prompt text,
        body_from integer, body_length integer, rev integer)
), told AS (
    UPDATE worker_runs r SET live_status = coalesce(nullif(p.live_status, ''), r.live_status),
        tool_calls = greatest(r.tool_calls, p.tool_calls),
        rendered_prompt = coalesce(nullif(p.rendered_prompt, ''), r.rendered_prompt),
        rev = greatest(r.rev, (SELECT nullif(max(rev), 0) FROM p WHERE p.run_id = r.id))
    FROM p WHERE r.id = p.run_id AND r.status = 'running'
)
INSERT INTO transcript_chunks (run_id, body, rev)
SELECT p.run_id, substr($2::bytea, p.body_from, p.body_length), coalesce(nullif(p.rev, 0), 2147483647) FROM p JOIN worker_runs r ON r.id = p.run_id
WHERE p.body_length > 0 AND r.status = 'running' ORDER BY p.body_from`

func (s *Transcripts) appendAll(ctx context.Context, rows []Progress) ([]struct{}, error) {
	in := make([]progressIn, len(rows))
	var bodies bytes.Buffer
	for i, p := range rows {
		lines, err := transcript.EncodeLines(p.Steps)
		if err != nil {
			return nil, err
		}
		in[i] = progressIn{RunID: p.RunID, LiveStatus: work.Clean(p.LiveStatus), ToolCalls: p.ToolCalls,
			RenderedPrompt: work.Clean(p.RenderedPrompt), From: bodies.Len() + 1, Length: len(lines), Rev: newestRev(p.Steps)}
		bodies.Write(lines)
	}
	param, err := pg.Encode(in)
	if err != nil {
		return nil, err
	}
	if _, err := s.db.Hot.ExecContext(pg.Prepare(ctx), appendSteps, param, bodies.Bytes()); err != nil {
		return nil, err
	}
	return make([]struct{}, len(rows)), nil
}

// newestRev is the revision that steps bring a transcript to, 0 when they do
// not count.
func newestRev(steps []transcript.Step) (rev int) {
	for _, s := range steps {
		rev = max(rev, s.Rev)
	}
	return rev
}

// partSize is how much of a transcript is in memory at once, in bytes as it is stored.
const partSize = 256 << 10

// Transcript is a run's steps as gzipped JSON: the stored blob as it is, or what
// there was of a run that still goes on. What is stored comes from Postgres part by
// part, one of them ahead of the reader; between two no connection is held.
type Transcript struct {
	ctx     context.Context
	db      *sqlx.DB
	run     uuid.UUID
	version string // of the row: what has been replaced is not read on
	left    int    // bytes that the reader has not been given
	part    []byte // the first of them
	room    []byte // of the part before
	coming  chan fetched
}

// fetched is a part of a stored transcript, or why there is none.
type fetched struct {
	body []byte
	err  error
}

// Open opens a run's steps. ctx is that of all reads.
func (s *Transcripts) Open(ctx context.Context, tenant string, run uuid.UUID) (*Transcript, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var row struct {
		Part    []byte        `db:"part"`
		Size    int           `db:"size"`
		Version string        `db:"version"`
		Chunks  pq.ByteaArray `db:"chunks"`
		Removed *time.Time    `db:"removed_at"`
	}
	// One statement: between two, a finish could turn the chunks into the blob.
	err := s.db.GetContext(ctx, &row, `SELECT substr(t.blob, 1, $3) AS part, coalesce(octet_length(t.blob), 0) AS size, coalesce(t.xmin::text, '') AS version,
			t.removed_at, CASE WHEN t.run_id IS NULL THEN
			ARRAY(SELECT body FROM transcript_chunks c WHERE c.run_id = r.id ORDER BY rev, seq) END AS chunks
		FROM worker_runs r LEFT JOIN transcripts t ON t.run_id = r.id WHERE r.id = $1 AND r.tenant = $2`, run, tenant, partSize)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read transcript of run %s: %w", run, err))
	}
	if row.Removed != nil {
		return nil, &work.RemovedError{What: "the transcript", At: *row.Removed}
	}
	t := &Transcript{ctx: ctx, db: s.db.DB, run: run, version: row.Version, left: row.Size, part: row.Part, coming: make(chan fetched, 1)}
	if row.Size > 0 {
		t.ask(len(row.Part))
		return t, nil
	}
	steps, err := transcript.DecodeLines(row.Chunks...)
	if err != nil {
		return nil, fmt.Errorf("read transcript of run %s: %w", run, err)
	}
	if t.part, err = s.codec.Encode(steps); err != nil {
		return nil, err
	}
	t.left = len(t.part)
	return t, nil
}

func (t *Transcript) Read(into []byte) (int, error) {
	if t.left == 0 {
		return 0, io.EOF
	}
	if len(t.part) == 0 {
		next := <-t.coming
		if next.err != nil {
			t.coming <- next // for whoever reads again
			return 0, pg.Translate(fmt.Errorf("read transcript of run %s: %w", t.run, next.err))
		}
		t.part = next.body
		t.ask(len(t.part))
		t.room = next.body[:0]
	}
	n := copy(into, t.part)
	t.part, t.left = t.part[n:], t.left-n
	return n, nil
}

// ask has the part read that comes after one of so many bytes, into the room of the
// part before that.
func (t *Transcript) ask(after int) {
	if t.left > after {
		go t.fetch(t.left-after, t.room)
	}
}

// errReplaced: what was read so far belongs to a transcript that is no more.
var errReplaced = errors.New("it was removed or replaced in the meantime")

// fetch reads the part that so many bytes before the end begins.
func (t *Transcript) fetch(left int, room []byte) {
	body, err := t.partAt(left, room)
	t.coming <- fetched{body, err}
}

func (t *Transcript) partAt(left int, room []byte) ([]byte, error) {
	rows, err := t.db.QueryContext(t.ctx, `SELECT substr(blob, octet_length(blob) - $2 + 1, $3) FROM transcripts WHERE run_id = $1 AND xmin::text = $4`,
		t.run, left, partSize, t.version)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var body sql.RawBytes // which is ours until the rows are closed
	if rows.Next() {
		if err := rows.Scan(&body); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(body) == 0 {
		return nil, errReplaced
	}
	return append(room, body...), nil
}

// StepsAfter returns the steps of a run that changed after revision rev of its
// transcript, in the order in which they did; rev 0 is before the first. Of a
// step that changed several times it returns the newest form. The revision
// means the same while the run goes on and when it is over.
func (s *Transcripts) StepsAfter(ctx context.Context, run uuid.UUID, rev int) ([]transcript.Step, error) {
	var row struct {
		Blob   []byte        `db:"blob"`
		Chunks pq.ByteaArray `db:"chunks"`
	}
	err := s.db.GetContext(ctx, &row, `SELECT t.blob, CASE WHEN t.run_id IS NULL THEN
			ARRAY(SELECT body FROM transcript_chunks c WHERE c.run_id = r.id AND c.rev > $2 ORDER BY rev, seq) END AS chunks
		FROM worker_runs r LEFT JOIN transcripts t ON t.run_id = r.id WHERE r.id = $1`, run, rev)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read steps of run %s: %w", run, err))
	}
	var steps []transcript.Step
	if len(row.Blob) > 0 {
		steps, err = transcript.Decode(bytes.NewReader(row.Blob))
	} else {
		steps, err = transcript.DecodeLines(row.Chunks...)
	}
	if err != nil {
		return nil, fmt.Errorf("read steps of run %s: %w", run, err)
	}
	return transcript.After(steps, rev), nil
}

func (s *Transcripts) chunks(ctx context.Context, run uuid.UUID) ([]transcript.Step, error) {
	var bodies [][]byte
	err := s.db.SelectContext(ctx, &bodies, `SELECT body FROM transcript_chunks WHERE run_id = $1 ORDER BY rev, seq`, run)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read transcript chunks of run %s: %w", run, err))
	}
	return transcript.DecodeLines(bodies...)
}

// Encode gzips steps the way the database keeps them.
func (s *Transcripts) Encode(steps []transcript.Step) ([]byte, error) { return s.codec.Encode(steps) }

// FoldLost turns the chunks of runs that ended without their worker process
// into one blob each, and returns how many it folded.
func (s *Transcripts) FoldLost(ctx context.Context, limit int) (int, error) {
	var runs []uuid.UUID
	err := s.db.SelectContext(ctx, &runs, `SELECT DISTINCT c.run_id FROM transcript_chunks c
		JOIN worker_runs r ON r.id = c.run_id WHERE r.status <> 'running' LIMIT $1`, limit)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("find unfolded transcripts: %w", err))
	}
	for _, run := range runs {
		if err := s.fold(ctx, run); err != nil {
			return 0, err
		}
	}
	return len(runs), nil
}

func (s *Transcripts) fold(ctx context.Context, run uuid.UUID) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	steps, err := s.chunks(ctx, run)
	if err != nil {
		return err
	}
	blob, err := s.codec.Encode(steps)
	if err != nil {
		return err
	}
	// A blob that is there already came from the run itself and knows more.
	_, err = s.db.ExecContext(ctx, `WITH swept AS (DELETE FROM transcript_chunks WHERE run_id = $1)
		INSERT INTO transcripts (run_id, steps, blob) VALUES ($1, $2, $3) ON CONFLICT (run_id) DO NOTHING`,
		run, len(steps), blob)
	if err != nil {
		return pg.Translate(fmt.Errorf("fold transcript of run %s: %w", run, err))
	}
	return nil
}
