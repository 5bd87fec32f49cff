package api

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/web/page"
)

func TestBatchesAreKeptForASecond(t *testing.T) {
	t.Parallel()
	var k keptBatches
	id, made := uuid.New(), 0
	get := func() page.Batch {
		t.Helper()
		page, err := k.of(id, func() (page.Batch, error) { made++; return page.Batch{FailedOf: made}, nil })
		if err != nil {
			t.Error(err)
		}
		return page
	}
	if _, err := k.of(id, func() (page.Batch, error) { return page.Batch{}, errors.New("no") }); err == nil {
		t.Error("the error is lost")
	}
	if page := get(); page.FailedOf != 1 || page.Age != 0 {
		t.Errorf("%+v", page)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if page := get(); page.FailedOf != 1 || page.Age <= 0 || page.Age > batchKept {
				t.Errorf("%d of age %s", page.FailedOf, page.Age)
			}
		})
	}
	all.Wait()
	k.batches[id].begun = time.Now().Add(-2 * batchKept)
	if page := get(); page.FailedOf != 2 || page.Age != 0 {
		t.Errorf("%+v", page)
	}
	k.drop(id)
	if page := get(); page.FailedOf != 3 {
		t.Errorf("%+v", page)
	}
	k.batches[id].begun = time.Now().Add(-2 * batchKept)
	id = uuid.New()
	if get(); len(k.batches) != 1 {
		t.Errorf("%d are kept", len(k.batches))
	}
}
