package local

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The test binary, started again with this variable, plays a process that
// runs the servers and is killed.
const parentVar = "PIECEWORK_LOCAL_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentVar); dir != "" {
		if err := playParent(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(runIn(m))
}

// runIn runs the tests with a temporary directory of their own, which others
// can enter and which takes along what the download library leaves.
func runIn(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pw-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = os.Chmod(dir, 0o711)
	}
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

type urls struct{ Postgres, Redis string }

// playParent starts both servers, says where they are and waits for its end.
func playParent(dir string) error {
	ctx := context.Background()
	pg, err := StartPostgres(ctx, PostgresOptions{Dir: dir, Fsync: true})
	if err != nil {
		return err
	}
	redis, err := StartRedis(ctx, RedisOptions{Dir: dir})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(urls{pg.URL, redis.URL}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

type parent struct {
	urls
	cmd *exec.Cmd
}

// startParent runs playParent in a process of its own, as the account.
func startParent(t *testing.T, acct account, dir string) *parent {
	t.Helper()
	cmd := acct.run(exec.Command(copyOfTest(t)))
	cmd.Env = append(cmd.Env, parentVar+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &parent{cmd: cmd}
	t.Cleanup(p.kill)
	line, _ := bufio.NewReader(out).ReadString('\n')
	if err := json.Unmarshal([]byte(line), &p.urls); err != nil {
		t.Fatalf("parent said %q", line)
	}
	return p
}

func (p *parent) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// copyOfTest puts the test binary where another user can start it.
func copyOfTest(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	path := filepath.Join(dataDir(t), "local.test")
	writeProgram(t, path, self)
	return path
}

// writeProgram leaves the writing to another process. Were the file open in
// this one, a child that another test forks just then would have it open too,
// and a program that is open for writing cannot be started.
func writeProgram(t *testing.T, path string, code io.Reader) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `cat >"$1" && chmod 755 "$1"`, "write", path)
	cmd.Stdin = code
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("write %s: %v: %s", path, err, out)
	}
}

// dataDir is a short directory that a root's server can enter, which
// t.TempDir is not.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pw-local-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nobody is an ordinary user when we are root, else ourselves.
func nobody(t *testing.T) account {
	t.Helper()
	if os.Geteuid() != 0 {
		return account{}
	}
	acct, err := lookUp(user.Lookup("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	return acct
}

func startPostgres(t *testing.T, o PostgresOptions) *Postgres {
	t.Helper()
	pg, err := StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Kill)
	return pg
}

// patience is for what a test cannot go on without; see testkit.Patience, which
// is built on this package.
const patience = 2 * time.Minute

func stop(t *testing.T, server interface{ Stop(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func execSQL(t *testing.T, url, statement string) {
	t.Helper()
	db := open(t, url)
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func queryText(t *testing.T, url, query string) string {
	t.Helper()
	var text string
	if err := open(t, url).QueryRowContext(t.Context(), query).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// gone fails the test unless the process leaves dir soon.
func gone(t *testing.T, pid int, dir string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for exists(pid) && runsIn(pid, dir) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d in %s outlived its parent", pid, dir)
		}
	}
}

// closed fails the test unless done is closed soon.
func closed(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s did not end", what)
	}
}

func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// A killed parent takes its servers down, and the next one starts at once with
// all that was acknowledged.
func TestKilledParent(t *testing.T) {
	accounts := map[string]account{"ourselves": {}}
	if acct := nobody(t); acct.cred != nil {
		accounts["nobody"] = acct
	}
	for name, acct := range accounts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := dataDir(t)
			if err := acct.own(dir); err != nil {
				t.Fatal(err)
			}
			first := startParent(t, acct, dir)
			execSQL(t, first.Postgres, "create table t (word text)")
			execSQL(t, first.Postgres, "insert into t values ('kept')")
			redisSay(t, first.Redis, "SET word kept")
			old := readPid(filepath.Join(dir, "redis.pid"))
			first.kill()

			second := startParent(t, acct, dir)
			if got := queryText(t, second.Postgres, "select word from t"); got != "kept" {
				t.Errorf("postgres kept %q", got)
			}
			if got := redisSay(t, second.Redis, "GET word"); got != "kept" {
				t.Errorf("redis kept %q", got)
			}
			if runsIn(old, filepath.Join(dir, "redis")) {
				t.Errorf("the first redis-server %d is still there", old)
			}
		})
	}
}

func TestPostgresDiesCleanlyWithParent(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := startParent(t, account{}, dir)
	cluster, err := newestCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	data := clusterDir(dir, cluster)
	pid := readPid(filepath.Join(data, "postmaster.pid"))
	if pid == 0 || !runsIn(pid, data) {
		t.Fatalf("postmaster %d does not run in %s", pid, data)
	}
	p.kill()
	gone(t, pid, data)
	log, err := os.ReadFile(filepath.Join(dir, "postgres.log"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "database system is shut down") {
		t.Errorf("no clean shutdown in the log:\n%s", log)
	}
}
