package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"piecework/api/web"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// script reads the transcript of a run for a page that needs some steps of it. The
// whole goes by once; most pages are of its end, which is still there then. For
// another it goes by again.
func (a *API) script(ctx context.Context, run work.Run, needs func(*web.Script) []int) (*web.Script, error) {
	script := web.Outline(run, time.Now())
	if !run.HasTranscript {
		return script, nil
	}
	stored, err := a.Store.Transcripts.Open(ctx, work.DefaultTenant, run.ID)
	if err != nil {
		return nil, err
	}
	var outline transcript.Step
	end := tails.Get().(*tail)
	defer tails.Put(end)
	end.empty()
	err = transcript.Scan(stored, func(step []byte) error {
		if err := outline.Outline(step); err != nil {
			return err
		}
		script.Add(&outline)
		end.keep(step)
		return nil
	})
	if err != nil {
		return nil, err
	}
	needed := needs(script)
	known := make(map[int]*transcript.Step, len(needed))
	know := func(i int, text []byte) error {
		known[i] = new(transcript.Step)
		if err := json.Unmarshal(text, known[i]); err != nil {
			return fmt.Errorf("read step %d of run %s: %w", i+1, run.ID, err)
		}
		return nil
	}
	missing, _ := slices.BinarySearch(needed, end.dropped)
	for _, i := range needed[missing:] {
		if err := know(i, end.step(i)); err != nil {
			return nil, err
		}
	}
	if err := a.readSteps(ctx, run, needed[:missing], know); err != nil {
		return nil, err
	}
	script.Know(known)
	return script, nil
}

// errEnough ends a scan that has found all it looked for.
var errEnough = errors.New("enough")

// readSteps hands some steps to know, by their places from 0, in order.
func (a *API) readSteps(ctx context.Context, run work.Run, wanted []int, know func(i int, text []byte) error) error {
	if len(wanted) == 0 {
		return nil
	}
	stored, err := a.Store.Transcripts.Open(ctx, work.DefaultTenant, run.ID)
	if err != nil {
		return err
	}
	i := -1
	err = transcript.Scan(stored, func(step []byte) error {
		if i++; i != wanted[0] {
			return nil
		}
		if err := know(i, step); err != nil {
			return err
		}
		if wanted = wanted[1:]; len(wanted) == 0 {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("read step %d of run %s: it is gone", wanted[0]+1, run.ID)
	}
	return err
}

// tailRoom is how much of a transcript's end is kept while it goes by.
const tailRoom = 1 << 20

// tail is the last steps of a transcript, as JSON.
type tail struct {
	dropped int   // steps before those that are kept
	ends    []int // of these, in texts
	texts   []byte
}

// tails are used again: each comes to hold a few megabytes.
var tails = sync.Pool{New: func() any { return new(tail) }}

func (t *tail) empty() { t.dropped, t.ends, t.texts = 0, t.ends[:0], t.texts[:0] }

// keep takes a step, and drops the older half when there is too much.
func (t *tail) keep(step []byte) {
	if len(t.texts) > 0 && len(t.texts)+len(step) > 2*tailRoom {
		n, _ := slices.BinarySearch(t.ends, len(t.texts)-tailRoom)
		from := t.ends[min(n, len(t.ends)-1)]
		t.texts = t.texts[:copy(t.texts, t.texts[from:])]
		t.ends = t.ends[:copy(t.ends, t.ends[n+1:])]
		for i := range t.ends {
			t.ends[i] -= from
		}
		t.dropped += n + 1
	}
	t.texts = append(t.texts, step...)
	t.ends = append(t.ends, len(t.texts))
}

// step is one that was not dropped, from 0.
func (t *tail) step(i int) []byte {
	from := 0
	if i > t.dropped {
		from = t.ends[i-t.dropped-1]
	}
	return t.texts[from:t.ends[i-t.dropped]]
}
