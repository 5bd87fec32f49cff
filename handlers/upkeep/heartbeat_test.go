package upkeep

import (
	"piecework/internal/process"
	"testing"
	"time"
)

// Every confirmed heartbeat renews the lease, and nothing else does. What
// was claimed under one that has run out stays without, whatever comes.
func TestLeaseFollowsTheHeartbeats(t *testing.T) {
	t.Parallel()
	h := &Heartbeat{Lease: time.Second, Every: 200 * time.Millisecond}
	if err := h.confirm(process.Uptime()); err != nil {
		t.Fatal(err)
	}
	first := h.Current()
	renewed := func() bool { return h.confirm(process.Uptime()) == nil && h.Current() == first }
	if !renewed() || first.Lapsed() {
		t.Error("a confirmed heartbeat did not renew the lease")
	}
	if h.confirm(process.Uptime()-time.Hour) != nil || first.Lapsed() {
		t.Error("an answer that came late has taken time away")
	}
	deadline := time.Now().Add(30 * time.Second)
	for !first.Lapsed() {
		if time.Now().After(deadline) {
			t.Fatal("the lease does not end")
		}
	}
	if silent := process.Uptime() - h.confirmed(); silent < h.Lease-h.margin() || silent > h.Lease {
		t.Errorf("it ended after %v of %v", silent, h.Lease)
	}
	if renewed() || !first.Lapsed() || h.Current().Lapsed() {
		t.Error("the next heartbeat must begin another lease")
	}
}
