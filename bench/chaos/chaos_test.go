package chaos

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"piecework/internal/testkit"
)

var (
	seed     = flag.Uint64("seed", 1, "what breaks, and when")
	duration = flag.Duration("duration", 20*time.Second, "of load and faults")
	units    = flag.Int("units", 120, "to be submitted")
	breaks   = flag.Int("faults", 20, "to be made")
	only     = flag.String("only", "", "names of faults, separated by commas; all when empty")
	drain    = flag.Duration("drain", 2*time.Minute, "for accepted units to end after the last fault")
	stretch  = flag.Float64("stretch", 1, "makes units longer")
	lease    = flag.Duration("lease", 3*time.Second, "of worker processes")
	slots    = flag.Int("slots", 4, "of each worker process")
	out      = flag.String("out", "", "directory for the history and the logs; kept")
)

func TestMain(m *testing.M) {
	AgentMain()
	logging.Disable() // go-redis would report that Redis is down
	testkit.Main(m)
}

// TestChaos keeps every promise while things break; `make chaos` gives it other
// seeds and more time.
func TestChaos(t *testing.T) {
	plan := planOf()
	plan.Binary, plan.Out = build(t), outDir(t)
	if *only != "" {
		plan.Only = strings.Split(*only, ",")
	}
	history, ledger := Execute(t, plan)
	t.Log(Measure(history, ledger))
	for _, v := range Check(history, ledger) {
		t.Error(v)
	}
	if t.Failed() {
		keep(t, plan.Out)
	}
}

// planOf is what the flags ask for.
func planOf() Plan {
	return Plan{
		Seed: *seed, Duration: *duration, Units: *units, Faults: *breaks, Agents: 0.2,
		Stretch: *stretch, Lease: *lease, Slots: *slots, Drain: *drain,
	}
}

func outDir(t *testing.T) string {
	if *out == "" {
		return t.TempDir()
	}
	dir, err := filepath.Abs(*out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// keep saves a temporary directory of a run that failed.
func keep(t *testing.T, dir string) {
	if *out != "" {
		t.Log("history and logs are in", dir)
		return
	}
	kept, err := os.MkdirTemp("", "piecework-chaos-")
	if err == nil {
		err = exec.Command("cp", "-r", dir+"/.", kept).Run()
	}
	t.Log("history and logs are in", kept, err)
}

// build makes the program of this checkout.
func build(t *testing.T, with ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "piecework")
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", binary}, with, []string{"./cmd/piecework"})...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build piecework: %v\n%s", err, out)
	}
	return binary
}
