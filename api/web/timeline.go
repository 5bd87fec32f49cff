package web

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
func timeline(run work.Run, steps []transcript.Step, now time.Time) Timeline {
	end := now
	if run.CompletedAt != nil {
		end = *run.CompletedAt
	}
	total := end.Sub(run.StartedAt)
	if total <= 0 || len(steps) == 0 {
		return Timeline{}
	}
	shares := map[string]*Share{}
	var order []*Share
	var bars []Bar
	spend := func(name string, from, to time.Time, step int) {
		share := shares[name]
		if share == nil {
			share = &Share{Name: name, Class: modelClass}
			if name != modelName {
				share.Class = "tool tool-" + string(rune('0'+min(len(order), toolClasses)))
			}
			shares[name] = share
			order = append(order, share)
		}
		share.Times++
		if to.Before(from) {
			return
		}
		share.spent += to.Sub(from)
		x := float64(from.Sub(run.StartedAt)) / float64(total) * 1000
		width := float64(to.Sub(from)) / float64(total) * 1000
		if last := len(bars) - 1; last >= 0 && (bars[last].Name == name || width < 0.5) { // half a pixel at most
			bars[last].Width = x + width - bars[last].X
			return
		}
		bars = append(bars, Bar{X: x, Width: width, Class: share.Class, Name: name, Step: step})
	}
	shares[modelName] = &Share{Name: modelName, Class: modelClass}
	order = append(order, shares[modelName])
	last := run.StartedAt
	for _, step := range steps {
		name := modelName
		if step.Type == transcript.ToolResult {
			name = cmp.Or(step.Name, "tool")
		}
		spend(name, last, step.Time, step.Number)
		if step.Time.After(last) {
			last = step.Time
		}
	}
	spend(modelName, last, end, steps[len(steps)-1].Number)
	out := Timeline{Bars: bars, Took: lasted(total)}
	for _, share := range order {
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
