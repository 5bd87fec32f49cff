package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// programs is a directory with PostgreSQL's postgres and initdb.
type programs struct {
	dir     string
	version string
	major   int
}

var (
	versionWords = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[^\s]*)`)
	number       = regexp.MustCompile(`\d+(\.\d+)?`)
)

// findPrograms returns the first programs among dirs that acct can run, of the
// major version wanted unless that is 0. Others tells the majors passed over.
func findPrograms(ctx context.Context, dirs []string, wanted int, acct account) (found programs, others []int, err error) {
	var failed error
	for _, dir := range dirs {
		p, err := readPrograms(ctx, dir, acct)
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
		case wanted != 0 && p.major != wanted:
			others = append(others, p.major)
		default:
			return p, others, nil
		}
	}
	return programs{}, others, failed
}

func readPrograms(ctx context.Context, dir string, acct account) (programs, error) {
	if !hasPrograms(dir) {
		return programs{}, fmt.Errorf("%s lacks postgres or initdb", dir)
	}
	cmd := acct.run(exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version"))
	out, err := cmd.Output()
	if err != nil {
		return programs{}, fmt.Errorf("run %s%s: %w", cmd.Path, acct.as(), err)
	}
	words := versionWords.FindSubmatch(out)
	if words == nil {
		return programs{}, fmt.Errorf("run %s: unknown version %q", cmd.Path, out)
	}
	major, err := strconv.Atoi(string(words[2]))
	if err != nil {
		return programs{}, fmt.Errorf("run %s: read version: %w", cmd.Path, err)
	}
	return programs{dir: dir, version: string(words[1]), major: major}, nil
}

func hasPrograms(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// usualPlaces lists the directories with PostgreSQL's programs on this
// machine: what PATH says, then where packages put them, newest first.
func usualPlaces() []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// Debian's /usr/bin holds wrappers; a link there leads to the rest.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern) // fails only on a bad pattern
		slices.SortStableFunc(found, newestFirst)
		dirs = append(dirs, found...)
	}
	var usable []string
	for _, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil && hasPrograms(real) && !slices.Contains(usable, real) {
			usable = append(usable, real)
		}
	}
	return usable
}

// newestFirst compares two paths by the last number in each.
func newestFirst(a, b string) int { return cmp.Compare(lastNumber(b), lastNumber(a)) }

func lastNumber(path string) float64 {
	all := number.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, err := strconv.ParseFloat(all[len(all)-1], 64)
	if err != nil {
		return 0
	}
	return n
}
