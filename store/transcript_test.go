package store

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

func step(number int, text string) transcript.Step {
	return transcript.Step{Number: number, Time: time.Unix(0, 0).UTC(), Type: transcript.SystemText, Text: text}
}

func (l *fixture) tell(run uuid.UUID, steps ...transcript.Step) {
	l.t.Helper()
	l.must(l.Transcripts.Append(l.t.Context(), Progress{RunID: run, Steps: steps}))
}

func TestTranscriptWhileRunning(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	run := l.run().RunID
	if got := l.steps(run); len(got) != 0 || l.theRun(run).HasTranscript {
		t.Errorf("before the first step: %q", got)
	}
	l.tell(run, step(1, "one"), step(2, "tw"))
	l.tell(run, step(2, "two"), step(3, "three"))
	if got := l.steps(run); !slices.Equal(got, []string{"one", "two", "three"}) || !l.theRun(run).HasTranscript {
		t.Errorf("steps %q", got)
	}
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: run, LiveStatus: "reading", ToolCalls: 2, RenderedPrompt: "rendered"}))
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: run, ToolCalls: 1}))
	if r := l.theRun(run); *r.LiveStatus != "reading" || r.ToolCalls != 2 || *r.RenderedPrompt != "rendered" {
		t.Errorf("run %+v", r)
	}
	if n := get[int](l, `SELECT count(*) FROM transcript_chunks`); n != 2 {
		t.Errorf("%d chunks: one without steps was written", n)
	}
	if _, err := l.Transcripts.Open(t.Context(), "other", run); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("another tenant's transcript: %v", err)
	}
}

// Many runs write at once, in shared statements; none sees another's steps.
func TestTranscriptsTogether(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	var all sync.WaitGroup
	runs := make([]uuid.UUID, 20)
	for i := range runs {
		runs[i] = l.run().RunID
		all.Go(func() {
			for n := range 10 {
				l.tell(runs[i], step(n+1, fmt.Sprintf("é%d/%d", i, n)))
			}
		})
	}
	all.Wait()
	for i, run := range runs {
		for n, text := range l.steps(run) {
			if want := fmt.Sprintf("é%d/%d", i, n); text != want {
				t.Errorf("step %q, want %q", text, want)
			}
		}
	}
}

// Two writes of one run in one statement keep their order, however Postgres
// joins them.
func TestAppendKeepsOrder(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l = openFixture(t, l.with("enable_hashjoin=off&enable_nestloop=off"))
	rows := make([]Progress, 0, 100)
	runs := []uuid.UUID{l.run().RunID, l.run().RunID}
	for n := range 100 {
		rows = append(rows, Progress{RunID: runs[n%2], Steps: []transcript.Step{step(1, fmt.Sprint(n))}})
	}
	_, err := l.Transcripts.appendAll(t.Context(), rows)
	l.must(err)
	for i, run := range runs {
		if got := l.steps(run); !slices.Equal(got, []string{fmt.Sprint(98 + i)}) {
			t.Errorf("run %d: the last word is %q", i, got)
		}
	}
}

// A writer whose run is over, or was given up, leaves nothing behind.
func TestAppendToARunThatIsOver(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.end(ending(c, work.Succeeded, func(f *Finish) { f.Blob, _ = l.Transcripts.Encode([]transcript.Step{step(1, "end")}) }), Recorded)
	for _, run := range []uuid.UUID{c.RunID, uuid.New()} {
		l.must(l.Transcripts.Append(t.Context(), Progress{RunID: run, LiveStatus: "late", Steps: []transcript.Step{step(2, "late")}}))
	}
	if n := get[int](l, `SELECT count(*) FROM transcript_chunks`); n != 0 || l.theRun(c.RunID).LiveStatus != nil {
		t.Errorf("%d chunks", n)
	}
	if got := l.steps(c.RunID); !slices.Equal(got, []string{"end"}) {
		t.Errorf("steps %q", got)
	}
}

func TestFoldLost(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	alive, lost := l.run(), l.run()
	l.tell(alive.RunID, step(1, "alive"))
	l.tell(lost.RunID, step(1, "o"), step(2, "two"))
	l.tell(lost.RunID, step(1, "one"))
	l.exec(`UPDATE worker_runs SET worker_process = gen_random_uuid() WHERE id = $1`, lost.RunID)
	_, err := l.Runs.ExpireLeases(t.Context())
	l.must(err)
	before := l.steps(lost.RunID)
	for _, want := range []int{1, 0} {
		if n, err := l.Transcripts.FoldLost(t.Context(), 10); n != want || err != nil {
			t.Errorf("folded %d, error %v, want %d", n, err, want)
		}
	}
	if got := l.steps(lost.RunID); !slices.Equal(got, before) || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("steps %q, before %q", got, before)
	}
	if n := get[int](l, `SELECT count(*) FROM transcript_chunks`); n != 1 {
		t.Errorf("%d chunks left, want the live run's", n)
	}
	if got := l.steps(alive.RunID); !slices.Equal(got, []string{"alive"}) {
		t.Errorf("live run: %q", got)
	}
}

// A reader sees the chunks or the blob, at every moment all of it.
func TestTranscriptWhileFinishing(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for range 20 {
		c := l.run()
		l.tell(c.RunID, step(1, "one"))
		var all sync.WaitGroup
		all.Go(func() {
			l.end(ending(c, work.Succeeded, func(f *Finish) { f.Blob, _ = l.Transcripts.Encode([]transcript.Step{step(1, "one")}) }), Recorded)
		})
		for range 20 {
			if got := l.steps(c.RunID); !slices.Equal(got, []string{"one"}) {
				t.Fatalf("steps %q", got)
			}
		}
		all.Wait()
	}
}

func TestTranscriptBlobIsKeptOutOfLine(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	blob := []byte(strings.Repeat("zip", 1<<20))
	l.end(ending(c, work.Succeeded, func(f *Finish) { f.Blob = blob }), Recorded)
	stored, err := l.Transcripts.Open(t.Context(), work.DefaultTenant, c.RunID)
	l.must(err)
	if got, err := io.ReadAll(stored); err != nil || string(got) != string(blob) {
		t.Errorf("%d bytes, error %v", len(got), err)
	}
	if size := get[int](l, `SELECT pg_column_size(blob) FROM transcripts`); size < len(blob) {
		t.Errorf("Postgres compressed %d bytes to %d", len(blob), size)
	}
}

// Of a transcript that is removed while somebody reads it, he gets no more: what
// there is of it must not look like the whole.
func TestTranscriptThatIsReplacedWhileItIsRead(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.end(ending(c, work.Succeeded, func(f *Finish) { f.Blob = []byte(strings.Repeat("zip", partSize)) }), Recorded)
	stored, err := l.Transcripts.Open(t.Context(), work.DefaultTenant, c.RunID)
	l.must(err)
	l.exec(`UPDATE transcripts SET blob = decode(repeat('00', $1), 'hex')`, 3*partSize)
	for range 2 {
		if got, err := io.ReadAll(stored); !errors.Is(err, errReplaced) {
			t.Errorf("%d bytes, error %v", len(got), err)
		}
	}
}
