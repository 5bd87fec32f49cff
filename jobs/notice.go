package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Kind says what a notice is about. Each kind has a channel. What goes through it
// is a hint: whoever needs to know for sure reads Postgres.
type Kind string

// The kinds of notice.
const (
	NoticeWake   Kind = "wake"   // a bell was rung; the message is its lane
	NoticeCancel Kind = "cancel" // a running unit was asked to stop; its id
	NoticeUnit   Kind = "unit"   // a unit changed; its id
	NoticeSteps  Kind = "steps"  // a run of a unit wrote steps; the unit's id
	NoticePause  Kind = "pause"  // a queue or a backend was paused or resumed; its name
	NoticeWatch  Kind = "watch"  // somebody watches units just now; their ids
	NoticeBatch  Kind = "batch"  // a batch was submitted; its id
	NoticeDraft  Kind = "draft"  // words of a step that is being written; a Draft
)

const channels = "piecework:"

func (b *Bell) channel(k Kind) string { return channels + string(k) + b.suffix }

func kindOf(channel string) Kind {
	name, _, _ := strings.Cut(strings.TrimPrefix(channel, channels), "@")
	return Kind(name)
}

// Notice is one hint from another process.
type Notice struct {
	Kind  Kind
	Unit  uuid.UUID   // of NoticeCancel, NoticeUnit and NoticeSteps
	Batch uuid.UUID   // of NoticeBatch
	Units []uuid.UUID // of NoticeWatch
	Draft Draft       // of NoticeDraft
	Lane  string      // of NoticeWake
	Name  string      // of NoticePause
}

// Draft is words of a run that are in no step yet. They are told on the side,
// may be lost, and are no part of the transcript: the step that has them is.
type Draft struct {
	Unit    uuid.UUID `json:"unit"`
	Attempt int       `json:"attempt"`
	Rev     int       `json:"rev"`  // of the transcript that they come after
	Type    string    `json:"type"` // of the step
	Text    string    `json:"text"`
}

// Cancelled tells worker processes that units were asked to stop.
func (b *Bell) Cancelled(ctx context.Context, units ...uuid.UUID) error {
	return b.publish(ctx, NoticeCancel, texts(units))
}

// Changed tells whoever watches units that they have moved.
func (b *Bell) Changed(ctx context.Context, units ...uuid.UUID) error {
	return b.publish(ctx, NoticeUnit, texts(units))
}

// BatchSubmitted tells worker processes that the units of a batch are to be made.
func (b *Bell) BatchSubmitted(ctx context.Context, id uuid.UUID) error {
	return b.publish(ctx, NoticeBatch, []string{id.String()})
}

// Watched tells worker processes that somebody watches units, for the next few
// seconds. Like Stepped it does not wait.
func (b *Bell) Watched(units []uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watched = units
	b.tellSoon()
}

// Stepped tells whoever watches a unit that a run of it wrote steps. It does
// not wait: units that come while one message is on its way go with the next.
func (b *Bell) Stepped(unit uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stepped[unit] = true
	b.tellSoon()
}

// Drafted tells whoever watches a unit what is being written. It does not wait
// either: of one unit the newest words go.
func (b *Bell) Drafted(d Draft) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drafted[d.Unit] = d
	b.tellSoon()
}

// tellSoon sees that there is somebody who tells; mu is held.
func (b *Bell) tellSoon() {
	if !b.telling {
		b.telling = true
		go b.tellSteps()
	}
}

func (b *Bell) tellSteps() {
	for {
		b.mu.Lock()
		units := slices.Collect(maps.Keys(b.stepped))
		var drafts []string
		for _, d := range b.drafted {
			text, _ := json.Marshal(d) // texts and numbers
			drafts = append(drafts, string(text))
		}
		var watched []string
		if len(b.watched) > 0 {
			watched = []string{strings.Join(texts(b.watched), ",")}
		}
		clear(b.stepped)
		clear(b.drafted)
		b.watched = nil
		b.telling = len(units)+len(drafts)+len(watched) > 0
		b.mu.Unlock()
		if len(units)+len(drafts)+len(watched) == 0 {
			return
		}
		ctx := context.Background()
		if err := errors.Join(b.publish(ctx, NoticeSteps, texts(units)), b.publish(ctx, NoticeDraft, drafts), b.publish(ctx, NoticeWatch, watched)); err != nil {
			b.log.Debug("tell of steps", "err", err)
		}
	}
}

// PauseChanged tells worker processes that a queue or a backend was paused or
// resumed.
func (b *Bell) PauseChanged(ctx context.Context, name string) error {
	return b.publish(ctx, NoticePause, []string{name})
}

func (b *Bell) publish(ctx context.Context, k Kind, messages []string) error {
	if !b.Up() || len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ringBudget+time.Duration(len(messages))*time.Millisecond)
	defer cancel()
	if len(messages) == 1 {
		if err := b.together().Publish(ctx, b.channel(k), messages[0]).Err(); err != nil {
			return fmt.Errorf("tell of %s: %w", messages[0], err)
		}
		return nil
	}
	tell := b.redis.Pipeline()
	for _, m := range messages {
		tell.Publish(ctx, b.channel(k), m)
	}
	if _, err := tell.Exec(ctx); err != nil {
		return fmt.Errorf("tell of %s: %w", messages[0], err)
	}
	return nil
}

// Listen calls hear with every notice of the given kinds until ctx ends. It
// reconnects by itself; what was said meanwhile is lost.
func (b *Bell) Listen(ctx context.Context, hear func(Notice), kinds ...Kind) {
	heard := make([]string, len(kinds))
	for i, k := range kinds {
		heard[i] = b.channel(k)
	}
	sub := b.redis.Subscribe(ctx, heard...)
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
			if n, ok := noticeOf(kindOf(m.Channel), m.Payload); ok {
				hear(n)
			}
		}
	}
}

func noticeOf(k Kind, payload string) (Notice, bool) {
	switch k {
	case NoticeWake:
		return Notice{Kind: NoticeWake, Lane: payload}, true
	case NoticePause:
		return Notice{Kind: NoticePause, Name: payload}, true
	case NoticeDraft:
		n := Notice{Kind: NoticeDraft}
		err := json.Unmarshal([]byte(payload), &n.Draft)
		return n, err == nil
	case NoticeWatch:
		n := Notice{Kind: NoticeWatch}
		for _, text := range strings.Split(payload, ",") {
			id, err := uuid.Parse(text)
			if err != nil {
				return n, false
			}
			n.Units = append(n.Units, id)
		}
		return n, true
	}
	id, err := uuid.Parse(payload)
	if k == NoticeBatch {
		return Notice{Kind: k, Batch: id}, err == nil
	}
	return Notice{Kind: k, Unit: id}, err == nil
}

func texts(units []uuid.UUID) []string {
	all := make([]string, len(units))
	for i, u := range units {
		all[i] = u.String()
	}
	return all
}
