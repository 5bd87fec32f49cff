package local

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	_ "github.com/lib/pq" // the driver that tells whether the server is ready
)

const (
	superuser  = "piecework"
	pgDatabase = "piecework"
	pgPort     = "5432" // names the socket; nothing listens on TCP
	pgSocket   = ".s.PGSQL." + pgPort

	// A server that was killed replays its log before it answers.
	readyWait = 2 * time.Minute
)

// PostgresOptions says where and how StartPostgres runs its server.
type PostgresOptions struct {
	Dir            string // data root, locked by the caller; the cluster is Dir/pg<major>
	PGBin          string // directory of postgres and initdb; looked for when empty
	SudoUser       string // who called sudo, when we are root
	Download       bool   // fetch PostgreSQL when the machine has none
	CacheDir       string // keeps what was fetched; Dir when empty or closed to the server's user
	Fsync          bool   // survive a power cut; without it the data is to be thrown away
	MaxConnections int    // Postgres's default when 0
	Log            *slog.Logger

	// What the tests have instead.
	repository string
	places     func() []string
	oldWait    time.Duration // for the server of a process that was killed to end
}

// Postgres is a running server.
type Postgres struct {
	URL         string // of the database piecework, for lib/pq
	Description string // for people

	child        *child
	removeSocket func()
}

// StartPostgres runs a server on a unix socket and returns when it answers.
// ctx bounds the start alone; the server runs until Stop or our death.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	cluster, err := newestCluster(o.Dir)
	if err != nil {
		return nil, err
	}
	acct, err := unprivileged(clusterDir(o.Dir, cluster), o.SudoUser)
	if err != nil {
		return nil, err
	}
	if err := acct.reach(o.Dir); err != nil {
		return nil, err
	}
	found, err := o.programs(ctx, cluster, acct)
	if err != nil {
		return nil, err
	}
	data, err := o.cluster(ctx, found, acct)
	if err != nil {
		return nil, err
	}
	return o.start(ctx, found, data, acct)
}

// Stop asks the server to end, and makes it end when ctx does.
func (p *Postgres) Stop(ctx context.Context) error {
	defer p.removeSocket()
	return p.child.stop(ctx, syscall.SIGINT, syscall.SIGQUIT)
}

// Kill ends the server as a crash would: what was not committed is lost and
// the next start recovers.
func (p *Postgres) Kill() {
	defer p.removeSocket()
	p.child.kill(syscall.SIGQUIT)
}

// Done is closed when the server has ended, asked to or not.
func (p *Postgres) Done() <-chan struct{} { return p.child.done }

// Err says how the server ended; nil while it runs.
func (p *Postgres) Err() error { return p.child.ended() }

func (o PostgresOptions) withDefaults() (PostgresOptions, error) {
	dir, err := absDir(o.Dir)
	if err != nil {
		return o, err
	}
	o.Dir = dir
	if o.PGBin != "" {
		if o.PGBin, err = filepath.Abs(o.PGBin); err != nil {
			return o, fmt.Errorf("find PG_BIN: %w", err)
		}
	}
	if o.CacheDir == "" {
		o.CacheDir = dir
	}
	if o.repository == "" {
		o.repository = mavenCentral
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.places == nil {
		o.places = usualPlaces
	}
	if o.oldWait == 0 {
		o.oldWait = oldChildWait
	}
	return o, nil
}

// programs finds or fetches PostgreSQL's programs: of the major version
// cluster, if there is one.
func (o PostgresOptions) programs(ctx context.Context, cluster int, acct account) (programs, error) {
	dirs := []string{o.PGBin}
	if o.PGBin == "" {
		dirs = o.places()
	}
	found, others, failed := findPrograms(ctx, dirs, cluster, acct)
	if found.dir != "" {
		return found, nil
	}
	if ctx.Err() != nil { // what was cut off says nothing of what is installed
		return programs{}, fmt.Errorf("look for PostgreSQL's programs: %w", context.Cause(ctx))
	}
	if o.PGBin != "" && failed != nil {
		return programs{}, fmt.Errorf("use PG_BIN: %w", failed)
	}
	if o.PGBin == "" && o.Download && (cluster == 0 || cluster == downloadMajor) {
		fetched, err := o.fetch(ctx, acct)
		if err == nil {
			return fetched, nil
		}
		failed = errors.Join(failed, err)
	}
	if cluster != 0 {
		return programs{}, clusterError(o.Dir, cluster, others, failed)
	}
	return programs{}, missingError(failed)
}

func (o PostgresOptions) fetch(ctx context.Context, acct account) (programs, error) {
	cache := o.CacheDir
	if _, err := absDir(cache); err != nil || acct.enter(cache) != nil {
		cache = o.Dir
	}
	o.Log.Info("no PostgreSQL on this machine: using a downloaded one",
		"version", string(downloadVersion), "from", o.repository, "to", cache)
	bin, err := download(ctx, cache, o.repository)
	if err != nil {
		return programs{}, err
	}
	return readPrograms(ctx, bin, acct)
}

const waysOut = `
  install PostgreSQL:         apt install postgresql   or   brew install postgresql
  use a server that runs:     DATABASE_URL=postgres://user:password@host:5432/database
  say where its programs are: PG_BIN=/directory/of/postgres/and/initdb`

func missingError(cause error) error {
	text := "no PostgreSQL to start; one of these helps:" + waysOut
	if cause == nil {
		return errors.New(text)
	}
	return fmt.Errorf("%s\n%w", text, cause)
}

func clusterError(dir string, major int, others []int, cause error) error {
	have := "no PostgreSQL is installed"
	if len(others) > 0 {
		have = fmt.Sprintf("only other versions are installed (%v)", others)
	}
	err := fmt.Errorf("%s holds data of PostgreSQL %d, but %s; nothing was changed; install PostgreSQL %d or set PG_BIN to its programs, or dump and restore the data into a newer version, or use another data directory",
		clusterDir(dir, major), major, have, major)
	return errors.Join(err, cause)
}

// cluster returns the data directory for p, made if need be, with nobody else
// at work in it.
func (o PostgresOptions) cluster(ctx context.Context, p programs, acct account) (string, error) {
	data := clusterDir(o.Dir, p.major)
	if !isCluster(data) {
		dropHalfMade(o.Dir)
		o.Log.Info("making a PostgreSQL cluster", "dir", data)
		if err := makeCluster(ctx, p, data, acct, o.Fsync); err != nil {
			return "", err
		}
	}
	if acct.cred != nil {
		if _, ok := ownerOf(data); !ok {
			if err := acct.ownAll(data); err != nil {
				return "", fmt.Errorf("give %s to user %s: %w", data, acct.name, err)
			}
		}
	}
	if err := awaitOld(ctx, o.oldWait, "postgres", filepath.Join(data, "postmaster.pid"), data); err != nil {
		return "", err
	}
	return data, nil
}

func (o PostgresOptions) start(ctx context.Context, p programs, data string, acct account) (*Postgres, error) {
	sockets, remove, err := socketDir(filepath.Join(o.Dir, "pgsocket"), pgSocket, acct)
	if err != nil {
		return nil, err
	}
	// Nobody works in data any more. A server that was killed leaves this file,
	// and its process id counts as taken until its parent has waited for it.
	if err := awaitOld(ctx, o.oldWait, "postgres", filepath.Join(sockets, pgSocket+".lock"), data); err != nil {
		remove()
		return nil, err
	}
	cmd := acct.run(exec.Command(filepath.Join(p.dir, "postgres"), o.args(data, sockets)...))
	// SIGINT is Postgres's fast shutdown: SIGTERM would wait for clients.
	child, err := startChild("postgres", cmd, filepath.Join(o.Dir, "postgres.log"), syscall.SIGINT)
	if err != nil {
		remove()
		return nil, err
	}
	server := &Postgres{
		URL:          postgresURL(sockets, pgDatabase),
		Description:  fmt.Sprintf("PostgreSQL %s from %s, data in %s%s", p.version, p.dir, data, acct.as()),
		child:        child,
		removeSocket: remove,
	}
	if err := server.ready(ctx, sockets); err != nil {
		server.Kill()
		return nil, err
	}
	return server, nil
}

func (o PostgresOptions) args(data, sockets string) []string {
	args := []string{
		"-D", data, "-k", sockets, "-p", pgPort,
		"-c", "listen_addresses=",
		"-c", "unix_socket_permissions=0700",
		"-c", "logging_collector=off",
	}
	if !o.Fsync {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_wal_size=256MB")
	}
	if o.MaxConnections > 0 {
		args = append(args, "-c", "max_connections="+strconv.Itoa(o.MaxConnections))
	}
	return args
}

// ready waits until the server answers and has our database.
func (p *Postgres) ready(ctx context.Context, sockets string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	db, err := sql.Open("postgres", postgresURL(sockets, "postgres"))
	if err != nil {
		return fmt.Errorf("open postgres: %w", err)
	}
	defer func() { _ = db.Close() }()
	if err := p.child.await(ctx, db.PingContext); err != nil {
		return err
	}
	var there bool
	if err := db.QueryRowContext(ctx, "select exists (select from pg_database where datname = $1)", pgDatabase).Scan(&there); err != nil {
		return fmt.Errorf("look for database: %w", err)
	}
	if there {
		return nil
	}
	if _, err := db.ExecContext(ctx, "create database "+pgDatabase); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}

// postgresURL says everything that a PG… variable could change otherwise.
func postgresURL(sockets, database string) string {
	query := url.Values{"host": {sockets}, "port": {pgPort}, "user": {superuser}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: query.Encode()}).String()
}
