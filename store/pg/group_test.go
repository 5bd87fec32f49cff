package pg

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// echo is a flush that answers with its rows and stops at a gate.
type echo struct {
	gate    chan struct{}
	entered chan struct{}
	bad     func([]int) error

	mu      sync.Mutex
	flushes [][]int
}

func newEcho(bad func([]int) error) *echo {
	return &echo{gate: make(chan struct{}), entered: make(chan struct{}, 100), bad: bad}
}

func (e *echo) flush(_ context.Context, rows []int) ([]int, error) {
	e.entered <- struct{}{}
	<-e.gate
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flushes = append(e.flushes, rows)
	if e.bad != nil {
		if err := e.bad(rows); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

type answer struct {
	row, out int
	err      error
}

// together hands in row 0, and the other rows while its flush is under way.
func together(t *testing.T, g *Group[int, int], e *echo, rows int) []answer {
	t.Helper()
	answers := make(chan answer, rows)
	call := func(row int) {
		out, err := g.Do(t.Context(), row)
		answers <- answer{row, out, err}
	}
	go call(0)
	<-e.entered
	for row := 1; row < rows; row++ {
		go call(row)
	}
	testkit.Eventually(t, "all callers wait", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.waiting) == rows-1
	})
	close(e.gate)
	all := make([]answer, 0, rows)
	for range rows {
		all = append(all, <-answers)
	}
	return all
}

func (e *echo) sizes() (sizes []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rows := range e.flushes {
		sizes = append(sizes, len(rows))
	}
	return sizes
}

func TestGroupFlushes(t *testing.T) {
	t.Parallel()
	heavy := func(int) int { return maxWeight / 3 }
	for name, test := range map[string]struct {
		max   int
		weigh func(int) int
		want  []int
	}{
		"all that wait go together":      {max: 500, want: []int{1, 99}},
		"no more than the most":          {max: 40, want: []int{1, 40, 40, 19}},
		"no more than a statement bears": {max: 50, weigh: heavy, want: append([]int{1}, slices.Repeat([]int{3}, 33)...)},
		"a giant goes alone":             {max: 99, weigh: func(int) int { return 2 * maxWeight }, want: slices.Repeat([]int{1}, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEcho(nil)
			e.entered = make(chan struct{}, 200)
			g := NewGroup(test.max, test.weigh, newWrites(&pulse{begun: time.Now()}), e.flush)
			for _, a := range together(t, g, e, 100) {
				if a.err != nil || a.out != a.row {
					t.Errorf("row %d got %d, error %v", a.row, a.out, a.err)
				}
			}
			if got := e.sizes(); !slices.Equal(got, test.want) {
				t.Errorf("flushed %v, want %v", got, test.want)
			}
		})
	}
}

func TestGroupBadRowFailsAlone(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	e := newEcho(func(rows []int) error {
		if slices.Contains(rows, 7) {
			return broken
		}
		return nil
	})
	for _, a := range together(t, NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}), e.flush), e, 20) {
		if (a.row == 7) != errors.Is(a.err, broken) || a.row != 7 && a.out != a.row {
			t.Errorf("row %d got %d, error %v", a.row, a.out, a.err)
		}
	}
}

// When Postgres is away there is no use in trying each row.
func TestGroupAwayFailsTogether(t *testing.T) {
	t.Parallel()
	e := newEcho(func([]int) error { return &work.Unavailable{What: "postgres", Err: errors.New("gone")} })
	for _, a := range together(t, NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}), e.flush), e, 20) {
		var away *work.Unavailable
		if !errors.As(a.err, &away) {
			t.Errorf("row %d: error %v", a.row, a.err)
		}
	}
	if got := e.sizes(); !slices.Equal(got, []int{1, 19}) {
		t.Errorf("flushed %v", got)
	}
}

func TestGroupCallerLeaves(t *testing.T) {
	t.Parallel()
	e := newEcho(nil)
	g := NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}), e.flush)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := g.Do(ctx, 0)
		done <- err
	}()
	<-e.entered
	left := errors.New("left")
	cancel(left)
	if err := <-done; !errors.Is(err, left) {
		t.Errorf("error %v", err)
	}
	close(e.gate)
	if out, err := g.Do(t.Context(), 5); err != nil || out != 5 {
		t.Errorf("the next call got %d, error %v", out, err)
	}
	testkit.Eventually(t, "idle, with nothing kept", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return !g.busy && g.waiting == nil
	})
}

// A flush that does not come back is left behind, and others go on. What it
// brings late is nobody's.
func TestGroupLeavesAStuckFlushBehind(t *testing.T) {
	t.Parallel()
	stuck, entered := make(chan struct{}), make(chan int, 10)
	g := NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}), func(_ context.Context, rows []int) ([]int, error) {
		entered <- rows[0]
		if rows[0] == 0 {
			<-stuck
		}
		return rows, nil
	})
	g.Limit = 10 * time.Millisecond
	first := make(chan error, 1)
	go func() { _, err := g.Do(t.Context(), 0); first <- err }()
	<-entered
	if out, err := g.Do(t.Context(), 1); err != nil || out != 1 {
		t.Errorf("the next got %d, error %v", out, err)
	}
	if err := <-first; !unanswered(err) {
		t.Errorf("error %v", err)
	}
	close(stuck)
}

// A silent Postgres is asked twice; one that answers with an error is not.
func TestGroupRepeatsWhatHadNoAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want int
	}{
		"silent": {os.ErrDeadlineExceeded, 2},
		"away":   {&work.Unavailable{What: "postgres", Err: errors.New("57014")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flushes := 0
			g := NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}),
				func(context.Context, []int) ([]int, error) { flushes++; return nil, test.err })
			if _, err := g.Do(t.Context(), 1); !errors.As(err, new(*work.Unavailable)) || flushes != test.want {
				t.Errorf("%d flushes, error %v", flushes, err)
			}
			if err := g.writes.Trouble(); err == nil {
				t.Error("nobody knows that a write failed")
			}
			if g.writes.pulse.away.Load() != unanswered(test.err) {
				t.Error("silence is mistaken")
			}
		})
	}
}

// Who leaves before his row is on its way takes it back: it is not committed
// after he was told that it was not.
func TestGroupForgetsWhoLeft(t *testing.T) {
	t.Parallel()
	e := newEcho(nil)
	g := NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}), e.flush)
	go func() { _, _ = g.Do(t.Context(), 0) }()
	<-e.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Do(ctx, 1); err == nil {
		t.Error("no error")
	}
	last := make(chan error, 1)
	go func() { _, err := g.Do(t.Context(), 2); last <- err }()
	testkit.Eventually(t, "the last waits", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.waiting) == 1
	})
	close(e.gate)
	if err := <-last; err != nil {
		t.Error(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.flushes) != 2 || !slices.Equal(e.flushes[1], []int{2}) {
		t.Errorf("flushed %v", e.flushes)
	}
}

// Who comes while Postgres is known to be silent does not wait for long.
func TestGroupImpatience(t *testing.T) {
	t.Parallel()
	e := newEcho(nil)
	g := NewGroup(500, nil, newWrites(&pulse{begun: time.Now()}), e.flush)
	g.Impatience = time.Millisecond
	late := g.writes.Begin(0) // a write that should have come back
	go func() { _, _ = g.Do(t.Context(), 0) }()
	<-e.entered
	if _, err := g.Do(t.Context(), 1); !errors.As(err, new(*work.Unavailable)) {
		t.Errorf("error %v", err)
	}
	late(nil)
	close(e.gate)
	if err := g.writes.Trouble(); err != nil {
		t.Error(err)
	}
}
