package testkit

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"piecework/internal/local"
)

func TestMain(m *testing.M) { Main(m) }

func TestEventually(t *testing.T) {
	t.Parallel()
	calls := 0
	Eventually(t, "three calls", func() bool {
		calls++
		return calls == 3
	})
	if said := failure(func(t testing.TB) {
		eventually(t, 20*time.Millisecond, "pigs fly", func() bool { return false })
	}); said != "not within 20ms: pigs fly" {
		t.Errorf("said %q", said)
	}
}

func TestGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "testdata", "word.txt")
	if said := failure(func(t testing.TB) { Golden(t, path, []byte("one\n")) }); said == "" {
		t.Error("a missing file was taken")
	}
	*update = true
	Golden(t, path, []byte("one\n"))
	*update = false
	Golden(t, path, []byte("one\n"))
	if said := failure(func(t testing.TB) { Golden(t, path, []byte("two\n")) }); said == "" {
		t.Error("a difference was taken")
	}
}

// Directories of killed test binaries go, those in use stay.
func TestRemoveStale(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	long := time.Now().Add(-2 * staleAge)
	var dirs []string
	for range 3 {
		dir, err := makeDir(os.TempDir(), dirPrefix)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	dead, used, young := dirs[0], dirs[1], dirs[2]
	lock, err := local.Lock(used, "in use")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	for _, dir := range []string{dead, used} {
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
	}
	removeStale()
	for dir, want := range map[string]bool{dead: false, used: true, young: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// failure runs f as a test of its own and returns what that test failed with.
func failure(f func(testing.TB)) string {
	t := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(t)
	}()
	<-done
	return t.said
}
