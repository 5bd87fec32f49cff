package handlers

import (
	"context"
	"log/slog"
	"sync"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// recorder brings a run's steps to the ledger while the run goes on. It has
// no timer, and a goroutine only while it writes: what comes while one write is
// under way goes with the next. When the ledger is away it keeps what it has;
// the whole transcript goes with the finish in any case.
type recorder struct {
	steps *transcript.Writer
	store *store.Store
	run   uuid.UUID
	log   *slog.Logger

	mu       sync.Mutex
	pending  store.Progress
	news     bool // pending has something
	writing  bool
	closed   bool
	finished sync.WaitGroup
	stop     context.CancelFunc // ends the write that is under way
}

// maxPending bounds the steps that wait for the ledger; older ones are in the
// transcript all the same.
const maxPending = 2000

func newRecorder(s *store.Store, run uuid.UUID, redact func(string) string, log *slog.Logger) *recorder {
	r := &recorder{store: s, run: run, log: log}
	r.pending.RunID = run
	r.steps = transcript.NewWriter(r.take, redact)
	return r
}

// prompt shows the rendered prompt before the run has ended.
func (r *recorder) prompt(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending.RenderedPrompt = r.steps.Redact(work.Clean(text))
	r.wake()
}

// take receives each step from the writer.
func (r *recorder) take(s transcript.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending.Steps) < maxPending {
		r.pending.Steps = append(r.pending.Steps, s)
	}
	if live := liveStatus(s); live != "" {
		r.pending.LiveStatus = live
	}
	r.wake()
}

// wake sees that what is pending gets written; mu is held.
func (r *recorder) wake() {
	r.news = true
	if !r.writing && !r.closed {
		r.writing = true
		ctx, stop := context.WithCancel(context.Background())
		r.stop = stop
		r.finished.Go(func() { r.write(ctx); stop() })
	}
}

func (r *recorder) write(ctx context.Context) {
	for {
		r.mu.Lock()
		if !r.news || r.closed {
			r.writing = false
			r.mu.Unlock()
			return
		}
		p := r.pending
		r.pending, r.news = store.Progress{RunID: r.run}, false
		r.mu.Unlock()
		p.ToolCalls = r.steps.ToolCalls() // after p is taken: what is taken is counted, and nothing may come after it
		if err := r.store.Append(ctx, p); err != nil && ctx.Err() == nil {
			r.log.Warn("steps not written yet; they will come with the finish", "run", r.run, "err", err)
		}
	}
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
	blob, err := r.store.Encode(steps)
	if err != nil {
		r.log.Error("transcript could not be encoded", "run", r.run, "err", err)
		blob, _ = r.store.Encode([]transcript.Step{{Number: 1, Type: transcript.SystemText, Text: "transcript could not be encoded: " + err.Error()}})
	}
	f.Steps, f.Blob = len(steps), blob
}

// liveStatus says in a line what a step is about.
func liveStatus(s transcript.Step) string {
	line := s.Text
	for _, c := range s.Content {
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
