package chaos

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Figures are what one run came to.
type Figures struct {
	Accepted, Unknown, Faults, Runs, Extra int
	Lost, Doubled, Crowded, Orphans        int
	Batches, Moves, Messages, Tries        int // accepted; pauses, resumes and cancels of them; ends told, and how often they came

	// From kill -9 of a worker process to the next run of a unit that it ran:
	// when it is started again at once, and when it is not.
	Redelivered, TakenOver []time.Duration
	Rerung                 []time.Duration // from the loss of Redis's memory to the unit's next bell or run
	Stopped                []time.Duration // from the answer to a cancel to the end of the run, 0 when it came first
	Drained                time.Duration   // from the last fault to the last final state
}

// Measure reads the figures out of a history and its ledger.
func Measure(h History, l Ledger) Figures {
	f := Figures{Runs: len(l.Runs)}
	state, unit, answered, wanted := map[string]string{}, map[string]string{}, map[string]bool{}, 0
	for _, u := range l.Units {
		state[u.ID], unit[u.Request] = u.State, u.ID
		f.Extra += u.Losses
	}
	deleted := map[string]bool{}
	accepted, batch, messages := map[string]bool{}, map[string][]string{}, map[string]bool{}
	for _, e := range h {
		switch {
		case e.Kind == KindIntend:
			wanted++
			batch[e.Want.Batch] = append(batch[e.Want.Batch], e.Request)
		case e.Kind == KindBatch && e.Status == http.StatusAccepted && !answered[e.Request]:
			f.Batches, answered[e.Request] = f.Batches+1, true
			wanted++
			for _, request := range batch[e.Request] {
				accepted[cmp.Or(unit[request], request)], answered[request] = true, true
			}
		case e.Kind == KindMove && e.Status < 300 && e.Status != 0:
			f.Moves++
		case e.Kind == KindMessage:
			f.Tries, messages[e.Message] = f.Tries+1, true
		case e.Kind == KindSubmit && e.Status == http.StatusAccepted:
			accepted[e.Unit], answered[e.Request] = true, true
		case e.Kind == KindDelete:
			deleted[e.Unit] = true
		case e.Kind == KindFault:
			f.Faults++
			f.hit(e, l)
		case e.Kind == KindCancel && e.Status == http.StatusAccepted:
			f.Stopped = append(f.Stopped, stopped(e, l)...)
		case e.Kind == KindAgent && e.Crowded:
			f.Crowded++
		case e.Kind == KindOrphan:
			f.Orphans++
		case e.Kind == KindDrained:
			f.Drained = time.Duration(e.Seconds * float64(time.Second))
		}
	}
	f.Accepted, f.Unknown, f.Messages = len(accepted), wanted-len(answered), len(messages)
	for id := range accepted {
		if !final(state[id]) && !(deleted[id] && state[id] == "") {
			f.Lost++
		}
	}
	succeeded := map[string]int{}
	for _, r := range l.Runs {
		if r.Status == "succeeded" {
			succeeded[r.Unit]++
		}
	}
	for _, n := range succeeded {
		f.Doubled += n - 1
	}
	return f
}

// hit measures the way back from one fault.
func (f *Figures) hit(e Event, l Ledger) {
	switch e.Fault {
	case "kill worker":
		f.Redelivered = append(f.Redelivered, rerun(e, l)...)
	case "lose worker":
		f.TakenOver = append(f.TakenOver, rerun(e, l)...)
	case "flush redis", "kill redis and its memory":
		if e.Error == "" {
			f.Rerung = append(f.Rerung, rerung(e, l)...)
		}
	}
}

// stopped is how long the run of a unit went on whose cancel was accepted.
func stopped(e Event, l Ledger) []time.Duration {
	for _, m := range l.RunMoves {
		if m.Unit == e.Unit && m.To == "cancelled" {
			return []time.Duration{max(0, m.At.Sub(e.At))}
		}
	}
	return nil // it had not begun
}

// rerun is how long each unit of a killed worker process waited for its next
// run.
func rerun(e Event, l Ledger) []time.Duration {
	var waits []time.Duration
	for i, r := range l.Runs[:max(0, len(l.Runs)-1)] {
		next := l.Runs[i+1]
		if e.PID != 0 && r.PID == e.PID && next.Unit == r.Unit && r.Started.Before(e.At) && next.Started.After(e.At) &&
			(r.Status == "lost" || r.Status == "fenced") {
			waits = append(waits, next.Started.Sub(e.At))
		}
	}
	return waits
}

// rerung is how long each unit that was queued and due waited for its next move.
// Those of batches are left out: they may be held.
func rerung(e Event, l Ledger) []time.Duration {
	due, batched := map[string]time.Time{}, map[string]bool{}
	for _, u := range l.Units {
		batched[u.ID] = u.Batch != ""
		if u.NotBefore != nil {
			due[u.ID] = *u.NotBefore
		}
	}
	queued := map[string]bool{}
	var waits []time.Duration
	for _, m := range l.Moves {
		if m.At.Before(e.At) {
			queued[m.Unit] = m.To == "queued" && due[m.Unit].Before(e.At) && !batched[m.Unit]
		} else if queued[m.Unit] {
			waits = append(waits, m.At.Sub(e.At))
			delete(queued, m.Unit)
		}
	}
	return waits
}

// and adds up the figures of two runs.
func (f Figures) and(g Figures) Figures {
	f.Accepted, f.Unknown, f.Faults, f.Runs, f.Extra = f.Accepted+g.Accepted, f.Unknown+g.Unknown, f.Faults+g.Faults, f.Runs+g.Runs, f.Extra+g.Extra
	f.Lost, f.Doubled, f.Crowded, f.Orphans = f.Lost+g.Lost, f.Doubled+g.Doubled, f.Crowded+g.Crowded, f.Orphans+g.Orphans
	f.Batches, f.Moves, f.Messages, f.Tries = f.Batches+g.Batches, f.Moves+g.Moves, f.Messages+g.Messages, f.Tries+g.Tries
	f.Redelivered, f.TakenOver = slices.Concat(f.Redelivered, g.Redelivered), slices.Concat(f.TakenOver, g.TakenOver)
	f.Rerung, f.Stopped = slices.Concat(f.Rerung, g.Rerung), slices.Concat(f.Stopped, g.Stopped)
	f.Drained = max(f.Drained, g.Drained)
	return f
}

// Columns are what Row has.
const Columns = `| seed | accepted | faults | lost | doubled | orphans | extra runs (caused by faults) | promises broken |
|---|---|---|---|---|---|---|---|
`

// Row is a line of a table.
func (f Figures) Row(seed string, broken int) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d |\n", seed, f.Accepted, f.Faults, f.Lost, f.Doubled, f.Orphans, f.Extra, broken)
}

func (f Figures) String() string {
	return fmt.Sprintf(`
accepted %d (unknown to the client %d), faults %d, runs %d (%d beyond need)
batches %d (%d times paused, resumed or cancelled), messages %d in %d tries
lost %d, doubled %d, agents beside another of their unit %d, orphans %d
run again after kill -9 of a worker process: %s
the same when it stays away: %s
rung again after Redis forgot: %s
run ended after its cancel was accepted: %s
ended %v after the last fault`,
		f.Accepted, f.Unknown, f.Faults, f.Runs, f.Extra, f.Batches, f.Moves, f.Messages, f.Tries, f.Lost, f.Doubled, f.Crowded, f.Orphans,
		spread(f.Redelivered), spread(f.TakenOver), spread(f.Rerung), spread(f.Stopped), f.Drained.Round(100*time.Millisecond))
}

func spread(of []time.Duration) string {
	if len(of) == 0 {
		return "none"
	}
	slices.Sort(of)
	at := func(q float64) time.Duration { return of[int(q*float64(len(of)-1))].Round(10 * time.Millisecond) }
	return strings.TrimSpace(fmt.Sprintf("n %d, p50 %v, p90 %v, p99 %v, most %v", len(of), at(0.5), at(0.9), at(0.99), at(1)))
}
