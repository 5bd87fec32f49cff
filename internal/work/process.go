package work

import (
	"cmp"
	"time"

	"github.com/google/uuid"
)

// Process is one worker process as the ledger knows it.
type Process struct {
	ID         uuid.UUID  `json:"id" db:"id"`
	Hostname   string     `json:"hostname" db:"hostname"`
	PID        int        `json:"pid" db:"pid"`
	Identity   string     `json:"-" db:"identity"` // boot, pid namespace, pid and start time; empty: unknown
	Version    string     `json:"version" db:"version"`
	Slots      int        `json:"slots" db:"slots"`
	Running    int        `json:"running" db:"running"`
	Queues     []string   `json:"queues" db:"-"`
	Backends   []Offer    `json:"backends" db:"-"`
	StartedAt  time.Time  `json:"started_at" db:"started_at"`
	BeatAt     time.Time  `json:"beat_at" db:"beat_at"`
	LeaseUntil time.Time  `json:"lease_until" db:"lease_until"`
	Live       bool       `json:"live" db:"live"` // its lease has not run out
	Quiet      bool       `json:"-" db:"quiet"`   // it has missed a sign of life or two, so it takes no units
	StoppedAt  *time.Time `json:"stopped_at,omitempty" db:"stopped_at"`
	Blocked    string     `json:"blocked,omitempty" db:"blocked"` // why it takes no units at all, such as a full disk
}

// Offer is one backend as a worker process found it.
type Offer struct {
	Name         string       `json:"name"`
	Available    bool         `json:"available"`
	Detail       string       `json:"detail,omitempty"` // why not, and how to mend it
	Version      string       `json:"version,omitempty"`
	Capabilities []Capability `json:"capabilities"`
	Paused       *Pause       `json:"paused,omitempty"` // nil: its units may begin
	Limits       []ModelLimit `json:"limits,omitempty"` // of models; no other model waits for them
}

// LimitOf returns the rate limit that holds for a model, nil when none does.
func (o Offer) LimitOf(model string) *ModelLimit {
	for _, l := range o.Limits {
		if l.Model == model {
			return &l
		}
	}
	return nil
}

// ModelLimit is a rate limit that one model of a backend has met in a worker
// process.
type ModelLimit struct {
	Model     string     `json:"model"` // as units name it; empty: the backend's default
	Message   string     `json:"message"`
	Until     *time.Time `json:"until,omitempty"`      // no unit of the model begins before; nil: they begin
	PerSecond float64    `json:"per_second,omitempty"` // units that begin in a second, since it is over
}

// Name is the model for people.
func (l ModelLimit) Name() string { return cmp.Or(l.Model, "the default model") }

// Pause is why units of a backend that is there do not begin in a worker
// process.
type Pause struct {
	Class   Class      `json:"class"`
	Message string     `json:"message"`
	Since   time.Time  `json:"since,omitzero"`
	Until   *time.Time `json:"until,omitempty"` // of a rate limit; else until a unit is answered
}
