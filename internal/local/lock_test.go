package local

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := Lock(dir, "starting and not yet serving anything")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.note("http://127.0.0.1:8080"); err != nil {
		t.Fatal(err)
	}

	_, err = Lock(dir, "second")
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("got %v, want a HeldError", err)
	}
	if want := fmt.Sprintf("pid %d: http://127.0.0.1:8080", os.Getpid()); held.Note != want {
		t.Errorf("note %q, want %q", held.Note, want)
	}
	wantText(t, err, dir, "http://127.0.0.1:8080")

	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	third, err := Lock(dir, "third")
	if err != nil {
		t.Fatal(err)
	}
	if err := third.Release(); err != nil {
		t.Fatal(err)
	}
}
