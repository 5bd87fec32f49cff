// Package testkit gives tests real servers: an own database for each test, an
// own Redis, and either of them to break. Only tests import it, so it may read
// the environment: PIECEWORK_TEST_DATABASE_URL is a server to use instead of
// starting one, PG_BIN the place of PostgreSQL's programs, TMPDIR the place of
// all data.
//
//	testkit.go   Main, Patience, Eventually, Golden
//	postgres.go  DB: a database per test; OwnPostgres: a server to break
//	redis.go     Redis: a server per test; StartRedis: one to break
//	group.go     StartSentinel, StartCluster: several, of which one is to break
//	proxy.go     Proxy: a link that can go silent
//	seed.go      units that are over, many at once
//	spend.go     what a function allocates
//	race.go      whether the race detector is on
//	norace.go    and whether it is off
package testkit

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"piecework/internal/local"
)

// Patience is how long a test waits for what it cannot go on without: for ever
// on any machine that works, and short enough to tell where it stopped. Nothing
// here promises how fast anything is.
const Patience = 2 * time.Minute

const (
	dirPrefix = "pw-test-"
	staleAge  = time.Minute // younger directories may be about to be locked
)

var update = flag.Bool("update", false, "rewrite golden files")

// home is the directory of everything this test binary starts.
var home struct {
	once sync.Once
	dir  string
	lock *local.Held
	err  error
}

// Main runs the tests of a package, then does what else is to be done after
// them, and takes away what the kit started.
// Call it from TestMain; without it the servers die with the process, and the
// directory is left for the next test binary to remove.
func Main(m *testing.M, after ...func()) {
	code := m.Run()
	for _, do := range after {
		do()
	}
	stopShared()
	if home.lock != nil {
		_ = home.lock.Release()
		_ = os.RemoveAll(home.dir)
	}
	os.Exit(code)
}

// Eventually waits until cond is true and fails the test, saying what did not
// come about, when it has lost its patience.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	eventually(t, Patience, what, cond)
}

func eventually(t testing.TB, patience time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-tick.C
	}
}

// Golden compares got with the file at path, such as testdata/schema.sql, and
// rewrites that file instead when the tests run with -update.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		if err := writeGolden(path, got); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read golden file (run the test with -update to write it): %v", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs (-want +got; run the test with -update if this is meant):\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

func writeGolden(path string, got []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write golden file: %w", err)
	}
	if err := os.WriteFile(path, got, 0o644); err != nil {
		return fmt.Errorf("write golden file: %w", err)
	}
	return nil
}

// newDir makes a directory below home whose path is short enough for a socket,
// as t.TempDir's is not.
func newDir(t testing.TB, name string) string {
	t.Helper()
	parent, err := openHome()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := makeDir(parent, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func openHome() (string, error) {
	home.once.Do(func() {
		removeStale()
		if home.dir, home.err = makeDir(tempDir(), dirPrefix); home.err != nil {
			return
		}
		home.lock, home.err = local.Lock(home.dir, "tests")
	})
	return home.dir, home.err
}

// tempDir is in memory where there is room: a database is copied there in a
// twentieth of the time. Without TMPDIR, that is: it is somebody's choice.
func tempDir() string {
	const memory, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || uint64(fs.Bavail)*uint64(fs.Bsize) < room {
		return os.TempDir()
	}
	return memory
}

// makeDir makes a directory that the user of a root's Postgres can enter.
func makeDir(parent, name string) (string, error) {
	dir, err := os.MkdirTemp(parent, name)
	if err != nil {
		return "", fmt.Errorf("make test directory: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", fmt.Errorf("make test directory: %w", err)
	}
	return dir, nil
}

// removeStale removes what test binaries left that were killed: directories
// of ours that nobody has locked.
func removeStale() {
	left, _ := filepath.Glob(filepath.Join(tempDir(), dirPrefix+"*"))
	for _, dir := range left {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < staleAge {
			continue
		}
		lock, err := local.Lock(dir, "removing")
		if err != nil {
			continue
		}
		_ = os.RemoveAll(dir)
		_ = lock.Release()
	}
}
