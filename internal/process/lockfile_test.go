package process

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// A lock file tells of its maker's death, which no hand has to announce.
func TestLockFile(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there are no lock files")
	}
	if dir := os.Getenv("LOCK_FILE_DIR"); dir != "" { // the process that will be killed
		if _, err := LockFile(dir, "dead"); err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString("locked\n")
		select {}
	}
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "processes")
	unlocked := func(want ...string) {
		t.Helper()
		if names, _ := Unlocked(dir); !slices.Equal(names, want) {
			t.Errorf("dead are %v; want %v", names, want)
		}
	}
	unlocked()
	unlock, err := LockFile(dir, "alive")
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestLockFile$", "-test.timeout=10m")
	child.Env = append(os.Environ(), "LOCK_FILE_DIR="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	unlocked()
	_, _ = child.Process.Kill(), child.Wait()
	unlocked("dead")
	_, remove := Unlocked(dir)
	remove("dead")
	unlocked()
	unlock()
	unlocked()
	if left, err := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) > 0 || err != nil {
		t.Errorf("%v is left, %v", left, err)
	}
}
