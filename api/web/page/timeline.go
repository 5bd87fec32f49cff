package page

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Timeline is where the time of a run went.
type Timeline struct {
	Bars   []Bar
	Shares []Share
	Took   string
}

// Bar is a stretch of the timeline; the whole is 1000 wide.
type Bar struct {
	X, Width float64
	Class    string
	Name     string
	Step     int // that ended it
}

// Share is all that went to the model or to one tool.
type Share struct {
	Name, Class, Took string
	Percent           int
	Times             int
	spent             time.Duration
}

// The timeline's colours; the model has its own.
const modelClass, toolClasses = "model", 5

// maxShares is how many tools have a share of their own.
const maxShares = 20

// timeline gives each stretch between two steps to who was at work: the tool
// whose answer ended it, or else the model.
type timeline struct {
	start, over time.Time
	last        time.Time // when the newest step came
	number      int       // of that step
	steps       int
	shares      map[string]*Share
	order       []*Share
	bars        []Bar
	whole       *Timeline // once it has been asked for
}

func newTimeline(run work.Run, now time.Time) timeline {
	t := timeline{start: run.StartedAt, last: run.StartedAt, over: now, shares: map[string]*Share{}}
	if run.CompletedAt != nil {
		t.over = *run.CompletedAt
	}
	t.share(modelName)
	return t
}

func (t *timeline) add(step *transcript.Step) {
	t.number, t.steps = step.Number, t.steps+1
	name := modelName
	if step.Type == transcript.ToolResult {
		name = cmp.Or(step.Name, "tool")
	}
	t.spend(name, step.Time)
	if step.Time.After(t.last) {
		t.last = step.Time
	}
}

func (t *timeline) share(name string) *Share {
	share := t.shares[name]
	if share == nil {
		share = &Share{Name: name, Class: modelClass}
		if name != modelName {
			share.Class = "tool tool-" + string(rune('0'+min(len(t.order), toolClasses)))
		}
		t.shares[name] = share
		t.order = append(t.order, share)
	}
	return share
}

func (t *timeline) spend(name string, to time.Time) {
	share := t.share(name)
	share.Times++
	total := t.over.Sub(t.start)
	if to.Before(t.last) || total <= 0 {
		return
	}
	share.spent += to.Sub(t.last)
	x := float64(t.last.Sub(t.start)) / float64(total) * 1000
	width := float64(to.Sub(t.last)) / float64(total) * 1000
	if last := len(t.bars) - 1; last >= 0 && (t.bars[last].Name == name || width < 0.5) { // half a pixel at most
		t.bars[last].Width = x + width - t.bars[last].X
		return
	}
	t.bars = append(t.bars, Bar{X: x, Width: width, Class: share.Class, Name: name, Step: t.number})
}

// end is the timeline of what was added.
func (t *timeline) end() Timeline {
	if t.whole == nil {
		t.whole = t.sum()
	}
	return *t.whole
}

func (t *timeline) sum() *Timeline {
	total := t.over.Sub(t.start)
	if total <= 0 || t.steps == 0 {
		return &Timeline{}
	}
	t.spend(modelName, t.over)
	out := &Timeline{Bars: t.bars, Took: lasted(total)}
	for _, share := range t.order {
		share.Took, share.Percent = lasted(share.spent), int(100*share.spent/total)
		out.Shares = append(out.Shares, *share)
	}
	slices.SortStableFunc(out.Shares, func(a, b Share) int { return cmp.Compare(b.spent, a.spent) })
	if len(out.Shares) > maxShares {
		rest := Share{Name: "others", Class: "tool tool-" + strconv.Itoa(toolClasses)}
		for _, share := range out.Shares[maxShares:] {
			rest.spent, rest.Times = rest.spent+share.spent, rest.Times+share.Times
		}
		rest.Took, rest.Percent = lasted(rest.spent), int(100*rest.spent/total)
		out.Shares = append(out.Shares[:maxShares], rest)
	}
	return out
}

// modelName is who has the time that no tool has: the model, and the way to it.
const modelName = "model"
