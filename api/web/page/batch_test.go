package page

import (
	"slices"
	"strings"
	"testing"

	"piecework/internal/work"
)

func TestVerbsOfEveryBatchStatus(t *testing.T) {
	t.Parallel()
	want := map[work.BatchStatus]string{
		work.BatchEnumerating: "cancel", work.BatchTesting: "cancel pause", work.BatchAwaitingApproval: "approve cancel",
		work.BatchInProgress: "cancel pause retry", work.BatchFinalizing: "cancel", work.BatchCompletedWithFailures: "retry",
		work.BatchCancelled: "retry", work.BatchExpired: "retry",
	}
	for _, status := range work.BatchStatuses {
		b := storyBatch(status)
		page := rendered(t, b)
		var got []string
		for _, verb := range []string{"approve", "cancel", "pause", "resume", "retry"} {
			if strings.Contains(page, `href="`+b.To(verb)+`" data-ask`) {
				got = append(got, verb)
			}
		}
		if verbs := strings.Join(got, " "); verbs != want[status] {
			t.Errorf("%s: %q, not %q", status, verbs, want[status])
		}
	}
	if b := storyPausedBatch(); b.CanPause() || !b.CanResume() {
		t.Error("a paused batch can be resumed and not paused")
	}
}

func TestBatchInWords(t *testing.T) {
	t.Parallel()
	b := storyBatch(work.BatchInProgress)
	if says := b.Says(); says != "2,242 of 5,000 units over: 2,204 succeeded, 34 failed or timed out, 4 cancelled, 18 running, 2,740 queued" {
		t.Error(says)
	}
	if says := (Batch{}).Says(); says != "no units" {
		t.Error(says)
	}
	sums := func(b Batch) (names []string) {
		for _, s := range b.Sums() {
			names = append(names, s.Name)
		}
		return names
	}
	if got := sums(b); !slices.Equal(got, []string{"Over", "Succeeded", "Cost", "Cost at the end", "Rate", "Time left"}) {
		t.Error(got)
	}
	b.Paused = &work.BatchPause{Since: now}
	if got := sums(b); slices.Contains(got, "Time left") {
		t.Errorf("a paused batch has a time: %q", got)
	}
	var wide float64
	for _, s := range b.Segments() {
		wide += float64(s.Count)
	}
	if int(wide) != b.Counts.Total {
		t.Errorf("%v units are in a segment of %d", wide, b.Counts.Total)
	}
}

func TestBatchPillsHoldEveryStatus(t *testing.T) {
	t.Parallel()
	counts, n := map[work.BatchStatus]int{}, 0
	for i, s := range work.BatchStatuses {
		counts[s] = i + 1
		n += i + 1
	}
	pills := Batches{Status: "failed,expired"}.Choices(counts, 10_000)
	sum := 0
	for _, p := range pills[1:] {
		sum += p.Count
		if p.Chosen != (p.Name == "Failed or expired") {
			t.Errorf("%+v", p)
		}
	}
	if sum != n || pills[0].Count != n || pills[0].Most {
		t.Errorf("%d in groups, %+v, of %d", sum, pills[0], n)
	}
	if pills := (Batches{}).Choices(counts, n); !pills[0].Most || !pills[1].Most {
		t.Errorf("%+v", pills)
	}
}

func TestBatchLineOfTheOverview(t *testing.T) {
	t.Parallel()
	for want, counts := range map[string]map[work.BatchStatus]int{
		"":                                      {work.BatchCompleted: 3},
		"1 batch in progress, 0 await approval": {work.BatchTesting: 1},
		"3 batches in progress, 1 awaits approval": {work.BatchInProgress: 2, work.BatchCancelling: 1, work.BatchAwaitingApproval: 1},
	} {
		if got := (Overview{Batches: counts}).BatchLine(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
