package ops

import (
	"strings"
	"testing"
	"time"

	"piecework/internal/work"
)

// Why a queued unit waits, for everything that worker processes can say.
func TestExplainQueued(t *testing.T) {
	t.Parallel()
	later, soon := time.Now().Add(time.Hour), time.Now().Add(time.Minute)
	paused := func(p work.Pause) work.Offer {
		return work.Offer{Name: "claude", Available: true, Paused: &p}
	}
	auth := paused(work.Pause{Class: work.ClassAuth, Message: "401", Since: time.Now()})
	full := work.Offer{Name: "claude", Available: true}
	shut := func(model string) work.Offer {
		return work.Offer{Name: "claude", Available: true, Limits: []work.ModelLimit{{Model: model, Until: &soon, Message: "429"}}}
	}
	for _, test := range []struct {
		code, words string
		processes   []work.Process
	}{
		{"no_worker_process", "start `piecework worker`", nil},
		{"no_worker_process", "is alive", []work.Process{{Queues: []string{"default"}, Backends: []work.Offer{full}}}},
		{"queue_not_served", "PIECEWORK_QUEUES", []work.Process{{Live: true, Queues: []string{"other"}, Backends: []work.Offer{full}}}},
		{"no_sign_of_life", "lost Postgres", []work.Process{{Live: true, Quiet: true, Queues: []string{"default"}, Backends: []work.Offer{full}}}},
		{"backend_unavailable", "has the backend claude", []work.Process{{Live: true, Queues: []string{"default"}}}},
		{"backend_unavailable", "not installed", []work.Process{{Live: true, Queues: []string{"default"},
			Backends: []work.Offer{{Name: "claude", Detail: "not installed"}}}}},
		{"backend_paused", "auth: 401", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{auth}}}},
		{"rate_limited", "sooner", []work.Process{
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{paused(work.Pause{Class: work.ClassRateLimit, Until: &later})}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{paused(work.Pause{Class: work.ClassRateLimit, Until: &soon,
				Message: "sooner"})}},
		}},
		{"rate_limited", "for opus was met", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{shut("opus")}}}},
		{"", "", []work.Process{{Live: true, Queues: []string{"default"}, Backends: []work.Offer{shut("haiku")}}}},
		{"", "", []work.Process{
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{shut("opus")}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{full}},
		}},
		{"", "", []work.Process{
			{Live: true, Quiet: true, Queues: []string{"default"}, Backends: []work.Offer{auth}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{auth}},
			{Live: true, Queues: []string{"default"}, Backends: []work.Offer{full}},
		}},
	} {
		got := whyNowhere(work.Unit{Spec: work.Spec{Backend: "claude", Model: "opus", Queue: "default"}}, test.processes)
		if test.code == "" {
			if len(got) != 0 {
				t.Errorf("%+v", got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != test.code || !strings.Contains(got[0].Detail, test.words) {
			t.Errorf("want %s %q, got %+v", test.code, test.words, got)
		}
	}
}
