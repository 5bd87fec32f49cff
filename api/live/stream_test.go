package live

import "testing"

func TestQueueOfAReaderIsBounded(t *testing.T) {
	t.Parallel()
	r := newReader[int](newWake())
	for i := range maxQueue {
		if !r.push(bundle[int]{[]byte("x"), i}) {
			t.Fatalf("full after %d", i)
		}
	}
	if r.push(bundle[int]{[]byte("x"), maxQueue}) {
		t.Error("it takes more than it may")
	}
	if queue, behind, _ := r.next(); len(queue) != 0 || !behind {
		t.Errorf("%d queued, behind %t", len(queue), behind)
	}
	if !r.push(bundle[int]{make([]byte, 3*maxQueueBytes), 1}) || r.push(bundle[int]{[]byte("x"), 2}) {
		t.Error("one bundle of any size, and no more")
	}
}
