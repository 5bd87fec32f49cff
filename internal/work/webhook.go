package work

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Events are the types of events that endpoints can ask for.
var Events = []string{
	"work_unit.succeeded", "work_unit.failed", "work_unit.cancelled", "work_unit.timed_out",
	"batch.awaiting_approval", "batch.completed", "batch.completed_with_failures", "batch.failed", "batch.cancelled", "batch.expired",
}

// EventTest is what a test of an endpoint sends, whatever it asks for.
const EventTest = "webhook.test"

// KnownEvents tells whether a pattern, a type, noun.* or *, means any event.
func KnownEvents(pattern string) bool {
	if noun, all := strings.CutSuffix(pattern, ".*"); all {
		return slices.ContainsFunc(Events, func(e string) bool { return strings.HasPrefix(e, noun+".") })
	}
	return pattern == "*" || slices.Contains(Events, pattern)
}

// Endpoint is a place that is told of events.
type Endpoint struct {
	ID            uuid.UUID  `json:"id" db:"id"`
	Tenant        string     `json:"-" db:"tenant"`
	URL           string     `json:"url" db:"url"`
	Description   string     `json:"description" db:"description"`
	Events        []string   `json:"events" db:"-" nullable:"false"`
	DisabledAt    *time.Time `json:"disabled_at" db:"disabled_at"`
	DisabledWhy   string     `json:"disabled_why" db:"disabled_why"`
	PreviousUntil *time.Time `json:"previous_secret_until" db:"previous_until"` // until then the secret before signs too
	CreatedAt     time.Time  `json:"created_at" db:"created_at"`
}

// Secrets sign messages: the newest, and until a time the one before it.
type Secrets struct {
	Secret        string     `json:"secret" db:"secret"`
	Previous      *string    `json:"previous_secret" db:"previous_secret"`
	PreviousUntil *time.Time `json:"previous_secret_until" db:"previous_until"`
}

// All are the secrets that sign.
func (s Secrets) All() []string {
	if s.Previous == nil {
		return []string{s.Secret}
	}
	return []string{s.Secret, *s.Previous}
}

// DeliveryState is how far a delivery got.
type DeliveryState string

// The states of a delivery.
const (
	DeliveryPending   DeliveryState = "pending"
	DeliveryDelivered DeliveryState = "delivered"
	DeliveryDead      DeliveryState = "dead"      // every try failed
	DeliveryCancelled DeliveryState = "cancelled" // its endpoint was disabled or deleted
)

// DeliveryStates are all of them.
var DeliveryStates = []DeliveryState{DeliveryPending, DeliveryDelivered, DeliveryDead, DeliveryCancelled}

// Delivery is one message to one receiver, and its tries.
type Delivery struct {
	ID          uuid.UUID     `json:"id" db:"id"`
	Tenant      string        `json:"-" db:"tenant"`
	WebhookID   string        `json:"webhook_id" db:"-"`
	EndpointID  *uuid.UUID    `json:"endpoint_id" db:"endpoint_id"` // nil: to a callback_url
	URL         string        `json:"url" db:"url"`                 // that was tried last, or will be first
	UnitID      *uuid.UUID    `json:"unit_id" db:"unit_id"`
	BatchID     *uuid.UUID    `json:"batch_id" db:"batch_id"`
	EventType   string        `json:"event_type" db:"event_type"`
	State       DeliveryState `json:"status" db:"state"`
	Attempts    int           `json:"attempts" db:"attempts"`
	NextAt      *time.Time    `json:"next_at" db:"next_at"` // of the next try; nil: there is none
	TriedAt     *time.Time    `json:"tried_at" db:"tried_at"`
	LastStatus  *int          `json:"last_status" db:"last_status"` // of HTTP
	LastError   *string       `json:"last_error" db:"last_error"`
	Response    *string       `json:"response" db:"response"` // the start of the last answer
	CreatedAt   time.Time     `json:"created_at" db:"created_at"`
	DeliveredAt *time.Time    `json:"delivered_at" db:"delivered_at"`
	Body        *string       `json:"body,omitempty" db:"body"` // as it is sent; absent in lists
}

// WebhookID is the webhook-id of a delivery: the same at every try.
func WebhookID(delivery uuid.UUID) string {
	return "msg_" + strings.ReplaceAll(delivery.String(), "-", "")
}
