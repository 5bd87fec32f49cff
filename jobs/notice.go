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
	chanPause  = "piecework:pause"  // a queue or a backend was paused or resumed; its name
)

// Kind says what a notice is about.
type Kind string

// The kinds of notice.
const (
	NoticeWake   Kind = chanWake
	NoticeCancel Kind = chanCancel
	NoticeUnit   Kind = chanUnit
	NoticePause  Kind = chanPause
)

// Notice is one hint from another process.
type Notice struct {
	Kind Kind
	Unit uuid.UUID // of NoticeCancel and NoticeUnit
	Lane string    // of NoticeWake
	Name string    // of NoticePause
}

// Cancelled tells worker processes that units were asked to stop.
func (b *Bell) Cancelled(ctx context.Context, units ...uuid.UUID) error {
	return b.publish(ctx, chanCancel, texts(units))
}

// Changed tells whoever watches units that they have moved.
func (b *Bell) Changed(ctx context.Context, units ...uuid.UUID) error {
	return b.publish(ctx, chanUnit, texts(units))
}

// PauseChanged tells worker processes that a queue or a backend was paused or
// resumed.
func (b *Bell) PauseChanged(ctx context.Context, name string) error {
	return b.publish(ctx, chanPause, []string{name})
}

func (b *Bell) publish(ctx context.Context, channel string, messages []string) error {
	if !b.Up() || len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ringBudget+time.Duration(len(messages))*time.Millisecond)
	defer cancel()
	tell := b.redis.Pipeline()
	for _, m := range messages {
		tell.Publish(ctx, channel, m)
	}
	if _, err := tell.Exec(ctx); err != nil {
		return fmt.Errorf("tell of %s: %w", messages[0], err)
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
			if n, ok := noticeOf(m.Channel, m.Payload); ok {
				hear(n)
			}
		}
	}
}

func noticeOf(channel, payload string) (Notice, bool) {
	switch channel {
	case chanWake:
		return Notice{Kind: NoticeWake, Lane: payload}, true
	case chanPause:
		return Notice{Kind: NoticePause, Name: payload}, true
	}
	unit, err := uuid.Parse(payload)
	return Notice{Kind: Kind(channel), Unit: unit}, err == nil
}

func texts(units []uuid.UUID) []string {
	all := make([]string, len(units))
	for i, u := range units {
		all[i] = u.String()
	}
	return all
}
