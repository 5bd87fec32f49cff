package handlers

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// recorder brings a run's steps to Postgres while the run goes on. The first
// are written firstWrite after they came, so that a run which ends before that is
// written once, by its finish. After that it has no timer while Postgres answers,
// and a goroutine only while it writes: what comes while one write is under way goes
// with the next, and a step that changed several times goes once. Nothing is left out on the way: readers take the
// newest revision they have seen for the end of what they know.
type recorder struct {
	steps *transcript.Writer
	store *store.Store
	run   uuid.UUID
	wrote func() // is called after each write
	begun time.Time
	log   *slog.Logger

	mu       sync.Mutex
	live     string // status and prompt that are to be written
	rendered string
	pending  bool // there is something to write
	writing  bool
	closed   bool
	finished sync.WaitGroup
	stop     context.CancelFunc // ends the write that is under way

	written int // the revision that is in Postgres; the writing goroutine's
}

// maxChunk bounds what one write takes to Postgres, in bytes of steps.
const maxChunk = 4 << 20

// firstWrite is how old a run is when its first steps are written.
const firstWrite = 50 * time.Millisecond

// writeAgain is the pause after a write that failed.
const writeAgain = time.Second

func newRecorder(s *store.Store, run uuid.UUID, redact func(string) string, wrote func(), log *slog.Logger) *recorder {
	r := &recorder{store: s, run: run, wrote: wrote, log: log, begun: time.Now()}
	r.steps = transcript.NewWriter(r.take, redact)
	return r
}

// prompt shows the rendered prompt before the run has ended.
func (r *recorder) prompt(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rendered = r.steps.Redact(work.Clean(text))
	r.wake()
}

// take is called by the writer for each step.
func (r *recorder) take(s transcript.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = cmp.Or(liveStatus(s), r.live)
	r.wake()
}

// wake sees that what is pending gets written; mu is held.
func (r *recorder) wake() {
	r.pending = true
	if !r.writing && !r.closed {
		r.writing = true
		ctx, stop := context.WithCancel(context.Background())
		r.stop = stop
		r.finished.Go(func() { r.write(ctx); stop() })
	}
}

func (r *recorder) write(ctx context.Context) {
	if early := firstWrite - time.Since(r.begun); early > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(early):
		}
	}
	for {
		r.mu.Lock()
		if !r.pending || r.closed {
			r.writing = false
			r.mu.Unlock()
			return
		}
		p := store.Progress{RunID: r.run, LiveStatus: r.live, RenderedPrompt: r.rendered}
		r.live, r.rendered, r.pending = "", "", false
		r.mu.Unlock()
		p.Steps = r.steps.After(r.written, maxChunk)
		p.ToolCalls = r.steps.ToolCalls() // after the steps are taken: what is taken is counted, and nothing may come after it
		if err := r.store.Transcripts.Append(ctx, p); err != nil {
			r.failed(ctx, p, err)
			continue
		}
		if n := len(p.Steps); n > 0 {
			r.written = p.Steps[n-1].Rev
		}
		if r.steps.Rev() > r.written {
			r.mu.Lock()
			r.pending = true
			r.mu.Unlock()
		}
		r.wrote()
	}
}

// failed sees that what was not written goes with the next write.
func (r *recorder) failed(ctx context.Context, p store.Progress, err error) {
	if ctx.Err() == nil {
		r.log.Warn("steps not written yet", "run", r.run, "err", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(writeAgain):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live, r.rendered, r.pending = cmp.Or(r.live, p.LiveStatus), cmp.Or(r.rendered, p.RenderedPrompt), true
}

// close ends the recording and gives the whole transcript to the finish.
func (r *recorder) close(f *store.Finish) {
	r.mu.Lock()
	r.closed = true
	if r.writing {
		r.stop()
	}
	r.mu.Unlock()
	r.finished.Wait()
	r.steps.Close()
	steps := r.steps.Steps()
	blob, err := r.store.Transcripts.Encode(steps)
	if err != nil {
		r.log.Error("transcript could not be encoded", "run", r.run, "err", err)
		only := transcript.Step{Number: 1, Type: transcript.SystemText, Text: "transcript could not be encoded: " + err.Error()}
		blob, _ = r.store.Transcripts.Encode([]transcript.Step{only})
	}
	f.Steps, f.Rev, f.Blob = len(steps), r.steps.Rev(), blob
}

// liveStatus says in a line what a step is about.
func liveStatus(s transcript.Step) string {
	line := s.Text
	if n := len(s.Content); n > 0 {
		c := s.Content[n-1]
		if line = c.Text; c.Type == transcript.ToolCall {
			line = c.Name + " " + c.Args
		}
	}
	if s.Type == transcript.ToolResult {
		line = s.Name + " answered"
	}
	line, _ = work.Cut(line, 200)
	return line
}
