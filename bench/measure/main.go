// Command measure measures Piecework's processes beside its peers, or two
// binaries of Piecework beside one another, and writes tables. Only ratios
// within one run mean anything.
//
//	go run ./measure                                      everything, five times
//	go run ./measure -rows accept,drain -repeat 3         some rows
//	go run ./measure -rows drain -only '^Piecework$' -piecework after -against before
//	go run ./measure -short ratios.json                   a minute or two: has anything become much slower?
//	go run ./measure -record ratios.json                  the same, kept for later
//
//	main.go      flags
//	run.go       repetitions, in an order that changes
//	servers.go   the one Postgres and the one Redis
//	meter.go     what one run has for itself, and what it takes
//	process.go   processes and their processor time
//	child.go     parts of a measurement in processes of their own
//	product.go   Piecework's processes
//	load.go      units
//	http.go      callers of the API
//	store.go     callers of the package store
//	river.go, asynq.go, bullmq.go   the peers
//	limits.go    what the servers can do
//	row.go       what is measured: accept.go, drain.go, latency.go, batch.go, overview.go, idle.go
//	scale.go, crew.go, lines.go   very many units, worker processes and lines, when they are asked for
//	figures.go   medians and ratios
//	report.go    tables
//	short.go     the comparison with ratios of before
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"piecework/internal/testkit"
)

func init() {
	// A process that is started here is killed when the thread that started it
	// ends, and the main thread does not.
	runtime.LockOSThread()
}

func main() {
	if name := os.Getenv(childVariable); name != "" {
		runtime.UnlockOSThread()
		if err := beChild(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("measure", flag.ExitOnError)
	names := flags.String("rows", "", "rows to measure, with commas; all when left out, - lists them")
	only := flags.String("only", "", "regular expression that subjects match")
	repeat := flags.Int("repeat", 5, "repetitions")
	scale := flags.Float64("scale", 1, "so many times the units")
	binary := flags.String("piecework", "", "binary of the product; built from the source when left out")
	against := flags.String("against", "", "another binary of the product to compare it with, or a directory with its source")
	budget := flags.Duration("budget", 0, "begin no repetition that would probably end later than this")
	short := flags.String("short", "", "file with ratios: measure these alone, briefly, and fail when one has dropped by more than a third")
	record := flags.String("record", "", "file for the ratios that -short compares with")
	units := flags.Int("units", 1_000_000, "units that have ended, for -seed and for the row scale")
	into := flags.String("seed", "", "only make -units units in the migrated, empty database at this URL")
	out := flags.String("o", "", "file for the tables; stdout when left out")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *into != "" {
		return testkit.Seed(ctx, *into, *units)
	}
	m := &measurement{repeat: *repeat, scale: *scale, budget: *budget}
	if m.rows, err = chooseRows(*names, *units); err != nil || m.rows == nil {
		return err
	}
	if *short != "" || *record != "" {
		m.rows, m.repeat, m.scale = shortRows(), 3, shortScale
	}
	if *only != "" {
		if m.only, err = regexp.Compile(*only); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "piecework-measure-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o711); err != nil { // for Postgres, which does not run as root
		return err
	}
	if m.binary, err = productBinary(ctx, *binary, "..", filepath.Join(dir, "piecework")); err != nil {
		return err
	}
	if m.self, err = os.Executable(); err != nil {
		return err
	}
	if *against != "" {
		if m.against, err = productBinary(ctx, *against, "", filepath.Join(dir, "piecework-against")); err != nil {
			return err
		}
		if m.selfAgainst, err = programOf(ctx, *against, filepath.Join(dir, "measure-against")); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(m.rows, func(r row) bool {
		return slices.ContainsFunc(r.subjects, func(s subject) bool { return s.name == bullmqEmpty })
	}) {
		if m.node, err = installBullMQ(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "BullMQ is left out:", err)
		}
	}
	if m.servers, err = startServers(ctx, dir); err != nil {
		return err
	}
	defer m.stop()
	at := m.look(ctx)
	failed := m.all(ctx)
	at.took, at.after = time.Since(at.date), loadNow()
	w := os.Stdout
	if *out != "" {
		if w, err = os.Create(*out); err != nil {
			return errors.Join(failed, err)
		}
	}
	m.markdown(w, at)
	switch failed = errors.Join(failed, w.Close()); {
	case failed != nil:
		return failed
	case *record != "":
		return m.record(*record)
	case *short != "":
		return m.compare(*short)
	}
	return nil
}

// productBinary is the path of a binary: the given one, or one that is built from the
// source in a directory.
func productBinary(ctx context.Context, given, source, built string) (string, error) {
	if given != "" {
		info, err := os.Stat(given)
		if err != nil {
			return "", err
		}
		if !info.IsDir() {
			return filepath.Abs(given)
		}
		source = given
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+revision(ctx, source), "-o", built, "./cmd/piecework")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build Piecework from %s: %w\n%s", source, err, text)
	}
	return built, nil
}

// programOf builds this program of another source directory, whose package store
// it then calls. Nothing is built of a binary, or where there is no such program.
func programOf(ctx context.Context, source, built string) (string, error) {
	dir := filepath.Join(source, "bench")
	if _, err := os.Stat(filepath.Join(dir, "measure")); err != nil {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", built, "./measure")
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ./measure in %s: %w\n%s", dir, err, text)
	}
	return built, nil
}

func revision(ctx context.Context, dir string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", dir, "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return "dev"
	}
	return strings.TrimSpace(string(out))
}

func chooseRows(names string, units int) ([]row, error) {
	all := allRows()
	named := append(slices.Clone(all), scaleRow(units), crewRow(), linesRow(units))
	if names == "-" {
		for _, r := range named {
			fmt.Printf("%-11s %s\n", r.name, r.title)
		}
		return nil, nil
	}
	if names == "" {
		return all, nil
	}
	var chosen []row
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(named, func(r row) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no row %q; -rows - lists them", name)
		}
		chosen = append(chosen, named[i])
	}
	return chosen, nil
}
