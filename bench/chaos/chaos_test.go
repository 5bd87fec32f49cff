package chaos

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"piecework/internal/testkit"
)

var (
	seeds    = flag.String("seed", "1", "what breaks, and when; of several, separated by spaces, each is a run")
	duration = flag.Duration("duration", 30*time.Second, "of load and faults")
	units    = flag.Int("units", 150, "to be submitted")
	breaks   = flag.Int("faults", 30, "to be made")
	only     = flag.String("only", "", "names of faults, separated by commas; all when empty")
	drain    = flag.Duration("drain", 10*time.Minute, "for accepted units to end after the last fault")
	stretch  = flag.Float64("stretch", 1, "makes units longer")
	lease    = flag.Duration("lease", 3*time.Second, "of worker processes")
	slots    = flag.Int("slots", 4, "of each worker process")
	cancels  = flag.Bool("cancels", false, "measure how soon a cancel is heard")
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
	binary, tree := build(t), commit()
	var all Figures
	var rows strings.Builder
	broken, list := 0, strings.Fields(*seeds)
	for _, seed := range list {
		t.Run("seed "+seed, func(t *testing.T) {
			plan := planOf()
			n, err := strconv.ParseUint(seed, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			plan.Seed, plan.Binary, plan.Out, plan.Only = n, binary, outDir(t, seed), chosen(t)
			figures, found := look(t, plan)
			all, broken = all.and(figures), broken+len(found)
			rows.WriteString(figures.Row(seed, len(found)))
		})
	}
	if len(list) > 1 {
		t.Logf("all seeds on %s:\n\n%s%s%s%v", tree, Columns, rows.String(), all.Row("all", broken), all)
	}
}

// look executes a plan, reports what it came to, and keeps what it left when a
// promise was broken.
func look(t *testing.T, plan Plan) (Figures, []Violation) {
	history, ledger := Execute(t, plan)
	figures, found := Measure(history, ledger), Check(history, ledger)
	t.Log(figures)
	for _, v := range found {
		t.Error(v)
	}
	if t.Failed() {
		keep(t, plan.Out)
	}
	return figures, found
}

// TestCancel measures how soon a run ends after its cancel was accepted, when
// nothing else is broken; `make chaos-cancel` does it at the default lease.
func TestCancel(t *testing.T) {
	if !*cancels {
		t.Skip("a measurement; run it with make chaos-cancel")
	}
	binary := build(t)
	for what, without := range map[string]bool{"with Redis": false, "without Redis": true} {
		t.Run(what, func(t *testing.T) {
			plan := planOf()
			plan.Seed, plan.Binary, plan.Out, plan.Faults, plan.Cancels, plan.NoRedis = 1, binary, outDir(t, what), 0, true, without
			look(t, plan)
		})
	}
}

// commit names the tree that is tested.
func commit() string {
	name, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "an unknown commit"
	}
	return strings.TrimSpace(string(name))
}

// planOf is what the flags ask for.
func planOf() Plan {
	return Plan{
		Duration: *duration, Units: *units, Faults: *breaks, Agents: 0.2,
		Stretch: *stretch, Lease: *lease, Slots: *slots, Drain: *drain,
	}
}

// chosen are the faults that -only names.
func chosen(t *testing.T) (names []string) {
	if *only != "" {
		names = strings.Split(*only, ",")
	}
	for _, name := range names {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }) {
			t.Fatalf("there is no fault %q", name)
		}
	}
	return names
}

func outDir(t *testing.T, name string) string {
	if *out == "" {
		return t.TempDir()
	}
	dir, err := filepath.Abs(filepath.Join(*out, name))
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
	cmd := exec.Command("go", slices.Concat([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", binary}, with, []string{"./cmd/piecework"})...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build piecework: %v\n%s", err, out)
	}
	return binary
}
