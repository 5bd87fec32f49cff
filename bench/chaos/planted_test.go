package chaos

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The planted bugs: a checker, or a test, that is always content proves nothing.
//
//	planted_test.go   they are planted and must be found
//	plants_test.go    those that the load and the checker find
//	slips_test.go     those that a test of the product finds
var planted = flag.Bool("planted", false, "run Piecework with each planted bug, and find it")

// enough is how many there are at least.
const enough = 40

// A planted bug must be one still.
func TestPlantedBugsApply(t *testing.T) {
	look := func(name string, edits []edit) {
		if len(edits) == 0 {
			t.Errorf("%s changes nothing", name)
		}
		for _, e := range edits {
			source, err := os.ReadFile(filepath.Join("../..", e.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), e.was); n != 1 {
				t.Errorf("%s: %s has %q %d times, not once: plant it elsewhere", name, e.file, e.was, n)
			}
		}
	}
	names := map[string]bool{}
	for _, b := range plants {
		look(b.name, b.edits)
		names[b.name] = true
		for _, name := range b.promises {
			if !slices.ContainsFunc(Promises, func(p Promise) bool { return p.Name == name }) {
				t.Errorf("%s: there is no promise %q", b.name, name)
			}
		}
		for _, name := range b.faults {
			if !slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }) {
				t.Errorf("%s: there is no fault %q", b.name, name)
			}
		}
	}
	for _, b := range slips {
		look(b.name, b.edits)
		names[b.name] = true
		if !declared(t, b.where, b.test) {
			t.Errorf("%s: there is no %s in %s", b.name, b.test, b.where)
		}
	}
	if n := len(plants) + len(slips); len(names) != n || n < enough {
		t.Errorf("there are %d planted bugs with %d names, and should be %d", n, len(names), enough)
	}
}

// declared tells whether a package has a test: go test is content with none.
func declared(t *testing.T, where, test string) bool {
	files, err := filepath.Glob(filepath.Join("../..", where, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(source), "\nfunc "+test+"(t *testing.T)")
	})
}

// TestPlantedBugs runs Piecework with each bug and wants it found, beside a run
// with the same faults, or of the same tests, of the tree as it is.
func TestPlantedBugs(t *testing.T) {
	if !*planted {
		t.Skip("takes most of an hour; run it with make chaos-planted")
	}
	sound := map[string]bool{} // what has been seen to be content with the tree as it is
	content := func(t *testing.T, what string, look func(t *testing.T)) {
		if !sound[what] {
			look(t)
			sound[what] = true
		}
	}
	for _, b := range plants {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			content(t, fmt.Sprint("the load at ", b.stretch), func(t *testing.T) {
				if found := b.run(t, build(t), faultsOf(b.stretch), *drain); len(found) > 0 {
					t.Fatalf("without a bug: %v", found)
				}
			})
			found := b.run(t, buildWith(t, b.edits), b.faults, drainOfPlanted)
			i := slices.IndexFunc(found, func(v Violation) bool { return slices.Contains(b.promises, v.Promise) })
			if i < 0 {
				t.Fatalf("not found; what was found: %v", found)
			}
			t.Logf("found: %s (%d violations in all)", found[i], len(found))
		})
	}
	for _, b := range slips {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			content(t, b.where, func(t *testing.T) {
				if out, err := goTest(b.where, testsIn(b.where), ""); err != nil {
					t.Fatalf("without a bug: %v\n%s", err, out)
				}
			})
			out, err := goTest(b.where, b.test, overlay(t, b.edits))
			// A test that had no server has found nothing.
			if err == nil || !strings.Contains(out, "--- FAIL: "+b.test) || strings.Contains(out, "PIECEWORK_TEST_DATABASE_URL") {
				t.Fatalf("not found by %s: %v\n%s", b.test, err, out)
			}
			_, first, _ := strings.Cut(out, "--- FAIL: ")
			t.Logf("found by %s", first[:min(len(first), 300)])
		})
	}
}

// run lets Piecework work under the bug's faults for a short while and returns
// what the checker finds.
func (b plant) run(t *testing.T, binary string, faults []string, drain time.Duration) []Violation {
	plan := planOf()
	seed, _, _ := strings.Cut(*seeds, " ")
	var err error
	if plan.Seed, err = strconv.ParseUint(seed, 10, 64); err != nil {
		t.Fatal(err)
	}
	plan.Binary, plan.Out = binary, t.TempDir()
	plan.Only, plan.Drain, plan.Agents, plan.Stretch = faults, drain, 0.6, b.stretch
	return Check(Execute(t, plan))
}

// drainOfPlanted is shorter than without a bug: many leave something undone.
const drainOfPlanted = 45 * time.Second

// faultsOf are all faults that bugs are given at a stretch.
func faultsOf(stretch float64) (all []string) {
	for _, b := range plants {
		if b.stretch == stretch {
			all = append(all, b.faults...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// testsIn are the tests of a package that find a bug.
func testsIn(where string) string {
	var names []string
	for _, b := range slips {
		if b.where == where {
			names = append(names, b.test)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "|")
}

// goTest runs tests of the product, in a package of it.
func goTest(where, tests, overlay string) (string, error) {
	args := []string{"test", "-vet=off", "-ldflags=-s -w", "-count=1", "-timeout=10m", "-run=^(" + tests + ")$"}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	cmd := exec.Command("go", append(args, where)...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// buildWith makes the program with some changes to its source.
func buildWith(t *testing.T, edits []edit) string {
	t.Helper()
	return build(t, "-overlay", overlay(t, edits))
}

// overlay writes some changes to the source where the go command finds them
// instead of the files that they are of.
func overlay(t *testing.T, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for i, e := range edits {
		path, err := filepath.Abs(filepath.Join("../..", e.file))
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(cmp.Or(replace[path], path)) // it may have been edited already
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), e.was); n != 1 {
			t.Fatalf("%s has %q %d times, not once: plant it elsewhere", e.file, e.was, n)
		}
		replace[path] = filepath.Join(dir, fmt.Sprint("changed", i, filepath.Ext(path)))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(source), e.was, e.becomes, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
