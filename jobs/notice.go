package jobs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// The channels. What goes through them is a hint: whoever needs to know for
// sure reads Postgres.
const (
	chanWake   = "piecework:wake"   // a bell was rung; the message is its lane
	chanCancel = "piecework:cancel" // a running unit was asked to stop; its id
	chanUnit   = "piecework:unit"   // a unit changed; its id
	chanSteps  = "piecework:steps"  // a run of a unit wrote steps; the unit's id
	chanPause  = "piecework:pause"  // a queue or a backend was paused or resumed; its name
)

// Kind says what a notice is about.
type Kind string

// The kinds of notice.
const (
	NoticeWake   Kind = chanWake
	NoticeCancel Kind = chanCancel
	NoticeUnit   Kind = chanUnit
	NoticeSteps  Kind = chanSteps
	NoticePause  Kind = chanPause
)

// Notice is one hint from another process.
type Notice struct {
	Kind Kind
	Unit uuid.UUID // of NoticeCancel, NoticeUnit and NoticeSteps
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

// Stepped tells whoever watches a unit that a run of it wrote steps. It does
// not wait: units that come while one message is on its way go with the next.
func (b *Bell) Stepped(unit uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stepped[unit] = true
	if !b.telling {
		b.telling = true
		go b.tellSteps()
	}
}

func (b *Bell) tellSteps() {
	for {
		b.mu.Lock()
		units := slices.Collect(maps.Keys(b.stepped))
		clear(b.stepped)
		b.telling = len(units) > 0
		b.mu.Unlock()
		if len(units) == 0 {
			return
		}
		if err := b.publish(context.Background(), chanSteps, texts(units)); err != nil {
			b.log.Debug("tell of steps", "err", err)
		}
	}
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
