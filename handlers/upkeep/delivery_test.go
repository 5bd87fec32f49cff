package upkeep

import (
	"context"
	"io"
	"piecework/internal/webhook"
	"piecework/store"
	"testing"
	"time"
)

// The last try of the schedule is the end.
func TestScheduleOfTries(t *testing.T) {
	t.Parallel()
	d := &store.ClaimedDelivery{}
	for _, test := range []struct {
		failed int
		answer webhook.Answer
		wait   time.Duration
		dead   bool
	}{
		{0, webhook.Answer{Err: context.DeadlineExceeded}, 5 * time.Second, false},
		{1, webhook.Answer{Err: context.DeadlineExceeded}, 5 * time.Minute, false},
		{8, webhook.Answer{Err: context.DeadlineExceeded}, 24 * time.Hour, false},
		{9, webhook.Answer{Err: context.DeadlineExceeded}, 0, true},
		{0, webhook.Answer{Err: context.DeadlineExceeded, RetryAfter: time.Hour}, time.Hour, false},
		{3, webhook.Answer{Err: context.DeadlineExceeded, RetryAfter: time.Second}, 2 * time.Hour, false},
		{0, webhook.Answer{Err: context.DeadlineExceeded, Status: 410}, 0, true},
	} {
		d.Failed = test.failed
		if got := tryOf(d, test.answer, 0.5); got.Wait != test.wait || got.Dead != test.dead || got.Delivered {
			t.Errorf("after %d failures and %+v: %+v", test.failed, test.answer, got)
		}
	}
	d.Failed = 1
	if low, high := tryOf(d, webhook.Answer{Err: io.EOF}, 0).Wait,
		tryOf(d, webhook.Answer{Err: io.EOF}, 1).Wait; low != 270*time.Second || high != 330*time.Second {
		t.Errorf("from %s to %s", low, high)
	}
}
