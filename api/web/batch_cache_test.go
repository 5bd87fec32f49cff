package web

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/web/page"
)

func TestPagesOfBatchesAreKeptForASecond(t *testing.T) {
	t.Parallel()
	var k batchCache
	id, made := uuid.New(), 0
	get := func() page.Batch {
		t.Helper()
		shown, err := k.of(id, func() (page.Batch, error) { made++; return page.Batch{FailedOf: made}, nil })
		if err != nil {
			t.Error(err)
		}
		return shown
	}
	if _, err := k.of(id, func() (page.Batch, error) { return page.Batch{}, errors.New("no") }); err == nil {
		t.Error("the error is lost")
	}
	if shown := get(); shown.FailedOf != 1 || shown.Age != 0 {
		t.Errorf("%+v", shown)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if shown := get(); shown.FailedOf != 1 || shown.Age <= 0 || shown.Age > batchFresh {
				t.Errorf("%d of age %s", shown.FailedOf, shown.Age)
			}
		})
	}
	all.Wait()
	k.batches[id].begun = time.Now().Add(-2 * batchFresh)
	if shown := get(); shown.FailedOf != 2 || shown.Age != 0 {
		t.Errorf("%+v", shown)
	}
	k.drop(id)
	if shown := get(); shown.FailedOf != 3 {
		t.Errorf("%+v", shown)
	}
	k.batches[id].begun = time.Now().Add(-2 * batchFresh)
	id = uuid.New()
	if get(); len(k.batches) != 1 {
		t.Errorf("%d are kept", len(k.batches))
	}
}
