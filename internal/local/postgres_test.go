package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPostgresKeepsData(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	first := startPostgres(t, PostgresOptions{Dir: dir, Fsync: true})
	t.Log(first.Description)
	execSQL(t, first.URL, "create table t as select 'kept'::text as word")
	stop(t, first)
	closed(t, first.Done(), "postgres")

	second := startPostgres(t, PostgresOptions{Dir: dir, Fsync: true, MaxConnections: 33})
	if got := queryText(t, second.URL, "select word from t"); got != "kept" {
		t.Errorf("kept %q", got)
	}
	for setting, want := range map[string]string{
		"listen_addresses": "", "fsync": "on", "server_encoding": "UTF8", "lc_collate": "C", "max_connections": "33",
	} {
		if got := queryText(t, second.URL, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	if got := queryText(t, second.URL, "select current_database()"); got != "piecework" {
		t.Errorf("database is %q", got)
	}
}

func TestPostgresURLStandsEncoding(t *testing.T) {
	t.Parallel()
	pg := startPostgres(t, PostgresOptions{Dir: dataDir(t)})
	parsed, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := parsed.Query()
	query.Set("binary_parameters", "yes")
	parsed.RawQuery = query.Encode()
	if got := queryText(t, parsed.String(), "select current_user"); got != "piecework" {
		t.Errorf("user is %q", got)
	}
	if mode := socketDirMode(t, query.Get("host")); mode != 0o700 {
		t.Errorf("socket directory has mode %o", mode)
	}
}

func socketDirMode(t *testing.T, dir string) os.FileMode {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestPostgresInDeepDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("deep, ", 20))
	pg := startPostgres(t, PostgresOptions{Dir: dir})
	parsed, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	host := parsed.Query().Get("host")
	if strings.Contains(host, "deep") || socketDirMode(t, host) != 0o700 {
		t.Errorf("socket directory %s is not a short private one", host)
	}
	stop(t, pg)
	if _, err := os.Stat(host); !os.IsNotExist(err) {
		t.Errorf("short directory %s was left: %v", host, err)
	}
}

func TestPostgresCrashAndRestart(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg := startPostgres(t, PostgresOptions{Dir: dir})
	if err := pg.Err(); err != nil {
		t.Errorf("running server has ended: %v", err)
	}
	execSQL(t, pg.URL, "create table t as select 'kept'::text as word")
	pg.Kill()
	closed(t, pg.Done(), "postgres")
	wantText(t, pg.Err(), "postgres ended", "immediate shutdown")
	if got := queryText(t, startPostgres(t, PostgresOptions{Dir: dir}).URL, "select word from t"); got != "kept" {
		t.Errorf("kept %q", got)
	}
}

func TestPostgresTwiceInOneDir(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg := startPostgres(t, PostgresOptions{Dir: dir})
	data := onlyCluster(t, dir)
	_, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir, oldWait: poll})
	wantText(t, err, "already runs", data, fmt.Sprintf("process %d", readPid(filepath.Join(data, "postmaster.pid"))))
	if got := queryText(t, pg.URL, "select 'alive'"); got != "alive" {
		t.Error("the first server was hurt")
	}
}

// A look for programs that was cut off says nothing of what is installed.
func TestPostgresStartCutOff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("asked to stop"))
	for _, bin := range []string{"", usualPlaces()[0]} {
		_, err := StartPostgres(ctx, PostgresOptions{Dir: dataDir(t), PGBin: bin})
		wantText(t, err, "asked to stop")
		if strings.Contains(err.Error(), "no PostgreSQL") {
			t.Errorf("PG_BIN %q: %v", bin, err)
		}
	}
}

func onlyCluster(t *testing.T, dir string) string {
	t.Helper()
	major, err := newestCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	return clusterDir(dir, major)
}

// The pid of a postmaster that died with its machine may be anyone's now. That
// of one that was killed is not free until its parent has waited for it.
func TestPostgresStalePid(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]func(account) int{
		"of another process": func(account) int { return os.Getpid() },
		"not reaped":         func(acct account) int { return unreaped(t, acct) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := dataDir(t)
			pg := startPostgres(t, PostgresOptions{Dir: dir})
			data, sockets := onlyCluster(t, dir), filepath.Join(dir, "pgsocket")
			acct, err := unprivileged(data, "")
			if err != nil {
				t.Fatal(err)
			}
			stop(t, pg)
			old := pid(acct)
			for _, file := range []string{filepath.Join(data, "postmaster.pid"), filepath.Join(sockets, pgSocket+".lock")} {
				text := fmt.Sprintf("%d\n%s\n%d\n5432\n%s\n\n  1 1\n", old, data, time.Now().Unix(), sockets)
				if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), acct.own(file)); err != nil {
					t.Fatal(err)
				}
			}
			startPostgres(t, PostgresOptions{Dir: dir})
		})
	}
}

// unreaped returns the pid of a process of acct that has ended, and that
// nobody waits for until the test is over.
func unreaped(t *testing.T, acct account) int {
	t.Helper()
	cmd := acct.run(exec.Command("true"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	if _, err := io.Copy(io.Discard, out); err != nil { // until it has closed its files
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestMissingPostgres(t *testing.T) {
	t.Parallel()
	_, err := StartPostgres(t.Context(), PostgresOptions{Dir: dataDir(t), places: nowhere})
	wantText(t, err, "apt install", "brew install", "DATABASE_URL=", "PG_BIN=")
	_, err = StartPostgres(t.Context(), PostgresOptions{Dir: dataDir(t), PGBin: t.TempDir()})
	wantText(t, err, "PG_BIN", "lacks postgres or initdb")
}

func nowhere() []string { return nil }

func TestOtherMajorIsNotTouched(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	precious := filepath.Join(dir, "pg9", "PG_VERSION")
	if err := os.Mkdir(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, []byte("9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]PostgresOptions{
		"installed": {Dir: dir},
		"missing":   {Dir: dir, places: nowhere, Download: true},
	} {
		_, err := StartPostgres(t.Context(), o)
		wantText(t, err, filepath.Dir(precious), "PostgreSQL 9", "nothing was changed")
		t.Log(name, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("directory was changed: %v", entries)
	}
}

// A directory that is no cluster is in the way, and stays.
func TestForeignDirIsNotTouched(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	found, _, err := findPrograms(t.Context(), usualPlaces(), 0, account{})
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(clusterDir(dir, found.major), "thesis.txt")
	if err := os.MkdirAll(filepath.Dir(foreign), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, []byte("years of work"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = StartPostgres(t.Context(), PostgresOptions{Dir: dir})
	wantText(t, err, "in the way", filepath.Dir(foreign))
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}

func TestInterruptedInitdbIsNotACluster(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	half := filepath.Join(dir, "pg15.tmp-123")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if major, err := newestCluster(dir); major != 0 || err != nil {
		t.Errorf("half a cluster counts as %d, %v", major, err)
	}
}

func TestClosedDirIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root's server runs as another user")
	}
	closed := filepath.Join(dataDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := StartPostgres(t.Context(), PostgresOptions{Dir: filepath.Join(closed, "a", "b")})
	wantText(t, err, "cannot enter "+closed+":", "choose a data directory")
}
