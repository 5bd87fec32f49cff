package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Kind says what a notice is about. Each kind has a channel. What goes through it
// is a hint: whoever needs to know for sure reads Postgres.
type Kind string

// The kinds of notice.
const (
	NoticeWake   Kind = "wake"   // a message was enqueued; the name of its queue
	NoticeCancel Kind = "cancel" // a running unit was asked to stop; its id
	NoticeUnit   Kind = "unit"   // a unit changed; its id
	NoticeSteps  Kind = "steps"  // a run of a unit wrote steps; the unit's id
	NoticePause  Kind = "pause"  // a queue or a backend was paused or resumed; its name
	NoticeWatch  Kind = "watch"  // somebody watches units just now; their ids
	NoticeBatch  Kind = "batch"  // a batch was submitted; its id
	NoticeDraft  Kind = "draft"  // words of a step that is being written; a Draft
)

const channels = "piecework:"

// notices sends and receives notices.
type notices struct {
	client *Client

	mu         sync.Mutex
	stepped    map[uuid.UUID]bool // units whose new steps are to be published
	drafted    map[uuid.UUID]Draft
	watched    []uuid.UUID
	publishing bool
}

func (s *notices) channel(k Kind) string { return channels + string(k) + s.client.suffix }

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
	Queue string      // of NoticeWake
	Name  string      // of NoticePause
}

// Draft is words of a run that are in no step yet. They are published on the side,
// may be lost, and are no part of the transcript: the step that has them is.
type Draft struct {
	Unit    uuid.UUID `json:"unit"`
	Attempt int       `json:"attempt"`
	Rev     int       `json:"rev"`  // of the transcript that they come after
	Type    string    `json:"type"` // of the step
	Text    string    `json:"text"`
}

// Cancelled tells worker processes that units were asked to stop.
func (s *notices) Cancelled(ctx context.Context, units ...uuid.UUID) error {
	return s.publish(ctx, NoticeCancel, texts(units))
}

// Changed tells whoever watches units that they have moved.
func (s *notices) Changed(ctx context.Context, units ...uuid.UUID) error {
	return s.publish(ctx, NoticeUnit, texts(units))
}

// BatchSubmitted tells worker processes that the units of a batch are to be made.
func (s *notices) BatchSubmitted(ctx context.Context, id uuid.UUID) error {
	return s.publish(ctx, NoticeBatch, []string{id.String()})
}

// Watched tells worker processes that somebody watches units, for the next few
// seconds. Like Stepped it does not wait.
func (s *notices) Watched(units []uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = units
	s.publishSoon()
}

// Stepped tells whoever watches a unit that a run of it wrote steps. It does
// not wait: units that come while one message is on its way go with the next.
func (s *notices) Stepped(unit uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepped[unit] = true
	s.publishSoon()
}

// Drafted tells whoever watches a unit what is being written. It does not wait
// either: of one unit the newest words go.
func (s *notices) Drafted(d Draft) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drafted[d.Unit] = d
	s.publishSoon()
}

// publishSoon sees that somebody publishes; mu is held.
func (s *notices) publishSoon() {
	if !s.publishing {
		s.publishing = true
		go s.publishPending()
	}
}

func (s *notices) publishPending() {
	for {
		s.mu.Lock()
		units := slices.Collect(maps.Keys(s.stepped))
		var drafts []string
		for _, d := range s.drafted {
			text, _ := json.Marshal(d) // texts and numbers
			drafts = append(drafts, string(text))
		}
		var watched []string
		if len(s.watched) > 0 {
			watched = []string{strings.Join(texts(s.watched), ",")}
		}
		clear(s.stepped)
		clear(s.drafted)
		s.watched = nil
		s.publishing = len(units)+len(drafts)+len(watched) > 0
		s.mu.Unlock()
		if len(units)+len(drafts)+len(watched) == 0 {
			return
		}
		ctx := context.Background()
		err := errors.Join(s.publish(ctx, NoticeSteps, texts(units)), s.publish(ctx, NoticeDraft, drafts),
			s.publish(ctx, NoticeWatch, watched))
		if err != nil {
			s.client.log.Debug("publish steps", "err", err)
		}
	}
}

// PauseChanged tells worker processes that a queue or a backend was paused or
// resumed.
func (s *notices) PauseChanged(ctx context.Context, name string) error {
	return s.publish(ctx, NoticePause, []string{name})
}

func (s *notices) publish(ctx context.Context, k Kind, messages []string) error {
	if !s.client.Up() || len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout+time.Duration(len(messages))*time.Millisecond)
	defer cancel()
	if len(messages) == 1 {
		if err := s.client.pipeline().Publish(ctx, s.channel(k), messages[0]).Err(); err != nil {
			return fmt.Errorf("publish %s: %w", messages[0], err)
		}
		return nil
	}
	pipe := s.client.redis.Pipeline()
	for _, m := range messages {
		pipe.Publish(ctx, s.channel(k), m)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("publish %s: %w", messages[0], err)
	}
	return nil
}

// Listen calls handle with every notice of the given kinds until ctx ends. It
// reconnects by itself; what was published meanwhile is lost.
func (s *notices) Listen(ctx context.Context, handle func(Notice), kinds ...Kind) {
	subscribed := make([]string, len(kinds))
	for i, k := range kinds {
		subscribed[i] = s.channel(k)
	}
	sub := s.client.redis.Subscribe(ctx, subscribed...)
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
				handle(n)
			}
		}
	}
}

func noticeOf(k Kind, payload string) (Notice, bool) {
	switch k {
	case NoticeWake:
		return Notice{Kind: NoticeWake, Queue: payload}, true
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
