package work

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Scheme is how the senders of a trigger prove who they are. The fields after
// Preset belong to the presets that others cannot know: hmac, basic, api_key.
type Scheme struct {
	Preset          string  `json:"preset"`
	Header          string  `json:"header,omitempty"`           // with the signature, or with the key
	Algorithm       string  `json:"algorithm,omitempty"`        // sha256 or sha512
	Encoding        string  `json:"encoding,omitempty"`         // of the signature: hex or base64
	Prefix          string  `json:"prefix,omitempty"`           // before the signature
	Signed          string  `json:"signed,omitempty"`           // what is signed, with {body}, {timestamp} and {id}
	TimestampHeader string  `json:"timestamp_header,omitempty"` // seconds since 1970
	IDHeader        string  `json:"id_header,omitempty"`        // the delivery's id
	Username        string  `json:"username,omitempty"`
	Tolerance       Seconds `json:"tolerance,omitempty"` // how far a timestamp may be from now
}

// Secret is what may be told of a secret.
type Secret struct {
	Fingerprint string `json:"fingerprint"`
}

// The largest body that a trigger takes, in bytes: when nothing else is asked
// for, and at most.
const (
	DefaultTriggerBody = 1 << 20
	MaxTriggerBody     = 25 << 20 // GitHub sends no larger ones
)

// Trigger makes a unit, or a batch, of each webhook that comes for it.
type Trigger struct {
	Tenant string `json:"-"`
	Name   string `json:"name"`
	Scheme
	Secrets      []Secret          `json:"secrets"` // the current one first
	Sealed       [][]byte          `json:"-"`       // the secrets themselves, as they are stored
	Events       []string          `json:"events"`  // patterns; none: every event
	Filter       string            `json:"filter,omitempty"`
	EventFrom    string            `json:"event_from,omitempty"`
	DeliveryFrom string            `json:"delivery_from,omitempty"`
	Mapping      map[string]string `json:"mapping,omitempty"` // payload key → expression
	MaxBodyBytes int64             `json:"max_body_bytes"`
	Paused       bool              `json:"paused"`
	Unit         *Spec             `json:"unit,omitempty"`  // this or Batch
	Batch        json.RawMessage   `json:"batch,omitempty"` // as callers wrote it
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at"`
}

// Wants tells whether an event is one of those that the trigger names.
func (t *Trigger) Wants(event string) bool {
	return len(t.Events) == 0 || slices.ContainsFunc(t.Events, func(pattern string) bool {
		ok, err := path.Match(slashless.Replace(pattern), slashless.Replace(event))
		return err == nil && ok
	})
}

// slashless lets * match slashes too: Slack's commands begin with one.
var slashless = strings.NewReplacer("/", "\x01")

// CheckEvent says what is wrong with a pattern of events, if something is.
func CheckEvent(pattern string) error {
	_, err := path.Match(pattern, "")
	return err
}

// Outcome of a delivery to a trigger.
const (
	DeliveryAccepted = "accepted" // it made a unit or a batch
	DeliveryFiltered = "filtered" // the trigger does not want such events
	DeliveryPaused   = "paused"   // the trigger is paused
)

// TriggerDelivery is one webhook that came for a trigger, and what became of it.
type TriggerDelivery struct {
	ID         uuid.UUID  `json:"id" db:"id"`
	Tenant     string     `json:"-" db:"tenant"`
	Trigger    string     `json:"trigger" db:"trigger"`
	Delivery   string     `json:"delivery" db:"delivery"` // the sender's name for it
	Event      string     `json:"event" db:"event"`
	Outcome    string     `json:"outcome" db:"outcome"`
	UnitID     *uuid.UUID `json:"unit_id" db:"unit_id"`
	BatchID    *uuid.UUID `json:"batch_id" db:"batch_id"`
	Duplicates int        `json:"duplicates" db:"duplicates"` // times that it came again
	ReceivedAt time.Time  `json:"received_at" db:"received_at"`
}
