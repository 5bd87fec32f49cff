package fakecli

import (
	"cmp"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// realTests is how the names of the tests begin that `make test-agents` runs
// and `make test` does not.
const realTests = "TestReal"

// Real is the program that the agent stands in for: the one that
// PIECEWORK_TEST_CLAUDE and its like name, else the one on PATH. Without any the
// test is skipped.
func Real(t testing.TB, name string) string {
	t.Helper()
	if !strings.HasPrefix(t.Name(), realTests) {
		t.Fatalf("a test of a real agent is called %s…, or `make test` runs it", realTests)
	}
	variable := "PIECEWORK_TEST_" + strings.ToUpper(name)
	path, err := exec.LookPath(cmp.Or(os.Getenv(variable), name))
	if err != nil {
		t.Skipf("SKIPPED: no real %s: %v (put it on PATH or set %s)", name, err, variable)
	}
	return path
}
