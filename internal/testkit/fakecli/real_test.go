package fakecli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// named is a test with that name; it remembers what it said when it stopped.
type named struct {
	testing.TB
	name, said string
}

func (n *named) Helper() {}

func (n *named) Name() string { return n.name }

func (n *named) Skipf(format string, args ...any) { n.Fatalf("skipped: "+format, args...) }

func (n *named) Fatalf(format string, args ...any) {
	n.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestProgramStoodInFor(t *testing.T) {
	agent := func(test string) (path, said string) {
		n := &named{name: test}
		done := make(chan struct{})
		go func() {
			defer close(done)
			path = Real(n, "stranger")
		}()
		<-done
		return path, n.said
	}
	dir := t.TempDir()
	found, given := filepath.Join(dir, "stranger"), filepath.Join(dir, "other")
	for _, path := range []string{found, given} {
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, said := agent("TestRealStranger"); !strings.Contains(said, "skipped: ") || !strings.Contains(said, "PIECEWORK_TEST_STRANGER") {
		t.Errorf("there is none: %q", said)
	}
	t.Setenv("PATH", dir)
	if path, said := agent("TestRealStranger/a case"); path != found {
		t.Errorf("on PATH: %q, %q", path, said)
	}
	t.Setenv("PIECEWORK_TEST_STRANGER", given)
	if path, said := agent("TestRealStranger"); path != given {
		t.Errorf("by the variable: %q, %q", path, said)
	}
	if _, said := agent("TestStranger"); !strings.Contains(said, "is called TestReal…") {
		t.Errorf("a test that `make test` would run: %q", said)
	}
}

// The Makefile leaves these tests out of all targets but one.
func TestMakeLeavesAgentsOut(t *testing.T) {
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "\nAGENT_TESTS := ^"+realTests+"\n") {
		t.Errorf("the Makefile's AGENT_TESTS is not ^%s", realTests)
	}
	agents := 0
	for line := range strings.Lines(string(makefile)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "go test ") && !strings.HasPrefix(line, "$(TEST) ") {
			continue
		}
		switch {
		case strings.Contains(line, "-run '$(AGENT_TESTS)'"):
			agents++
		case !strings.Contains(line, "-run ") && !strings.Contains(line, "-skip '$(AGENT_TESTS)'") && !strings.Contains(line, "-update"):
			t.Errorf("it runs real agents: %s", line)
		}
	}
	if agents != 1 {
		t.Errorf("%d targets run real agents", agents)
	}
}
