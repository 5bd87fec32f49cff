package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// The channels. What goes through them is a hint: whoever needs to know for
// sure reads Postgres.
const (
	chanWake   = "piecework:wake"   // a bell was rung; the message is its lane
	chanCancel = "piecework:cancel" // a running unit was asked to stop; its id
	chanUnit   = "piecework:unit"   // a unit changed; its id
)

// Kind says what a notice is about.
type Kind string

// The kinds of notice.
const (
	NoticeWake   Kind = chanWake
	NoticeCancel Kind = chanCancel
	NoticeUnit   Kind = chanUnit
)

// Notice is one hint from another process.
type Notice struct {
	Kind Kind
	Unit uuid.UUID // of NoticeCancel and NoticeUnit
	Lane string    // of NoticeWake
}

// Cancelled tells worker processes that units were asked to stop.
func (b *Bell) Cancelled(ctx context.Context, units ...uuid.UUID) error {
	return b.publish(ctx, chanCancel, units)
}

// Changed tells whoever watches units that they have moved.
func (b *Bell) Changed(ctx context.Context, units ...uuid.UUID) error {
	return b.publish(ctx, chanUnit, units)
}

func (b *Bell) publish(ctx context.Context, channel string, units []uuid.UUID) error {
	if !b.Up() || len(units) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ringBudget+time.Duration(len(units))*time.Millisecond)
	defer cancel()
	tell := b.redis.Pipeline()
	for _, unit := range units {
		tell.Publish(ctx, channel, unit.String())
	}
	if _, err := tell.Exec(ctx); err != nil {
		return fmt.Errorf("tell of units: %w", err)
	}
	return nil
}

// Listen calls hear with every notice of the given kinds until ctx ends. It
// reconnects by itself; what was said meanwhile is lost.
func (b *Bell) Listen(ctx context.Context, hear func(Notice), kinds ...Kind) {
	channels := make([]string, len(kinds))
	for i, k := range kinds {
		channels[i] = string(k)
	}
	sub := b.redis.Subscribe(ctx, channels...)
	defer func() { _ = sub.Close() }()
	messages := sub.Channel()
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			if m.Channel == chanWake {
				hear(Notice{Kind: NoticeWake, Lane: m.Payload})
			} else if unit, err := uuid.Parse(m.Payload); err == nil {
				hear(Notice{Kind: Kind(m.Channel), Unit: unit})
			}
		}
	}
}
