package work

import "slices"

// State is where a unit stands.
type State string

// The states of a unit. A unit with a not_before in the future is queued; the
// pages call it scheduled.
const (
	Queued    State = "queued"
	Running   State = "running"
	Waiting   State = "waiting"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
	TimedOut  State = "timed_out"
)

// States lists every state in the order a reader expects to meet them.
var States = []State{Queued, Running, Waiting, Succeeded, Failed, Cancelled, TimedOut}

// FinalStates are those of units that have ended.
var FinalStates = []State{Succeeded, Failed, Cancelled, TimedOut}

// moves is the one table of allowed transitions. The store's statements carry
// them as WHERE clauses; a test tries every verb from every state and compares
// what happened with this table.
var moves = map[State][]State{
	Queued:    {Running, Waiting, Failed, Cancelled, TimedOut},
	Running:   {Queued, Waiting, Succeeded, Failed, Cancelled, TimedOut},
	Waiting:   {Queued, Failed, Cancelled, TimedOut},
	Failed:    {Queued, Waiting}, // only by a person's retry
	Cancelled: {Queued, Waiting},
	TimedOut:  {Queued, Waiting},
}

// CanMove tells whether a unit may go from one state to another.
func CanMove(from, to State) bool { return slices.Contains(moves[from], to) }

// Final tells whether a unit in state s has ended: only a person's retry takes
// it out again.
func (s State) Final() bool {
	return s == Succeeded || s == Failed || s == Cancelled || s == TimedOut
}

// RunStatus is where one run stands.
type RunStatus string

// A run is running, or it has ended in one of the unit's final states, or in
// one of the ways that only a run can end.
const (
	RunRunning   RunStatus = "running"
	RunSucceeded RunStatus = "succeeded"
	RunFailed    RunStatus = "failed"
	RunCancelled RunStatus = "cancelled"
	RunTimedOut  RunStatus = "timed_out"
	// RunLost: the worker process died or lost its lease; nothing came back.
	RunLost RunStatus = "lost"
	// RunFenced: the run came back after it had been given up as lost. It keeps
	// its transcript, cost and output; its unit gets no result from it.
	RunFenced RunStatus = "fenced"
	// RunReleased: given back by a worker process that shuts down or has no room
	// on its disk.
	RunReleased RunStatus = "released"
)

// RunStatuses lists every status of a run.
var RunStatuses = []RunStatus{
	RunRunning, RunSucceeded, RunFailed, RunCancelled, RunTimedOut, RunLost, RunFenced, RunReleased,
}
