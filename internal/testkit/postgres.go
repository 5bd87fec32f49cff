package testkit

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	_ "github.com/lib/pq" // the driver that makes and drops databases

	"piecework/internal/local"
)

const connections = 300 // for all parallel tests of a binary

// Migrate prepares the empty database at url.
type Migrate = func(ctx context.Context, url string) error

// shared is the server of all tests of this binary.
var shared struct {
	once   sync.Once
	server *local.Postgres // nil when the server is given by the environment
	admin  *sql.DB
	url    string
	err    error

	prepare  sync.Once
	template string
	failed   error // why there is no template
}

// DB returns the URL of a database of the test's own, dropped when the test
// ends. The first caller's migrate prepares the template that all of the
// binary's databases are copied from; with a nil migrate the database is empty.
func DB(t testing.TB, migrate Migrate) string {
	t.Helper()
	ctx := t.Context()
	shared.once.Do(func() { shared.err = startShared(ctx) })
	if shared.err != nil {
		t.Fatalf("%v\n\nor give the tests a server: PIECEWORK_TEST_DATABASE_URL", shared.err)
	}
	template := "template1"
	if migrate != nil {
		shared.prepare.Do(func() { shared.template, shared.failed = makeTemplate(ctx, migrate) })
		if shared.failed != nil {
			t.Fatal(shared.failed)
		}
		template = shared.template
	}
	name := uniqueName("test")
	if err := createDB(ctx, shared.admin, name, template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dropDB(shared.admin, name); err != nil {
			t.Error(err)
		}
	})
	return withDatabase(shared.url, name)
}

// Exec runs one statement on the database at url.
func Exec(t testing.TB, url, statement string) {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// PostgresServer is a server of the test's own, to be broken.
type PostgresServer struct {
	URL string // the same after every Start

	t       testing.TB
	options local.PostgresOptions
	server  *local.Postgres // nil while it is down
}

// OwnPostgres starts a server for this test alone and prepares its database
// with migrate, unless that is nil.
func OwnPostgres(t testing.TB, migrate Migrate) *PostgresServer {
	t.Helper()
	return OwnPostgresIn(t, newDir(t, "pg-"), migrate)
}

// OwnPostgresIn does the same with its data in dir.
func OwnPostgresIn(t testing.TB, dir string, migrate Migrate) *PostgresServer {
	t.Helper()
	p := &PostgresServer{t: t, options: postgresOptions(dir)}
	p.Start()
	t.Cleanup(p.Kill)
	if migrate == nil {
		return p
	}
	if err := migrate(t.Context(), p.URL); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	return p
}

// Kill ends the server at once, as a crash would. What it acknowledged is
// there after the next Start.
func (p *PostgresServer) Kill() {
	if p.server == nil {
		return
	}
	p.server.Kill()
	p.server = nil
}

// Start starts the server again, also when it ended by itself, and returns when
// it answers.
func (p *PostgresServer) Start() {
	p.t.Helper()
	if p.server != nil && p.server.Err() == nil {
		return
	}
	p.Kill()
	ctx, cancel := context.WithTimeout(p.t.Context(), Patience)
	defer cancel()
	server, err := local.StartPostgres(ctx, p.options)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.URL != "" && p.URL != server.URL {
		p.t.Errorf("postgres came back at %s, was at %s", server.URL, p.URL)
	}
	p.server, p.URL = server, server.URL
}

func postgresOptions(dir string) local.PostgresOptions {
	return local.PostgresOptions{Dir: dir, PGBin: os.Getenv("PG_BIN"), MaxConnections: connections}
}

func startShared(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	shared.url = os.Getenv("PIECEWORK_TEST_DATABASE_URL")
	if shared.url == "" {
		parent, err := openHome()
		if err != nil {
			return err
		}
		dir, err := makeDir(parent, "pg-")
		if err != nil {
			return err
		}
		if shared.server, err = local.StartPostgres(ctx, postgresOptions(dir)); err != nil {
			return err
		}
		shared.url = shared.server.URL
	}
	var err error
	if shared.admin, err = sql.Open("postgres", shared.url); err != nil {
		return fmt.Errorf("open test server: %w", err)
	}
	if err := shared.admin.PingContext(ctx); err != nil {
		return fmt.Errorf("reach test server: %w", err)
	}
	return nil
}

// stopShared takes away what DB made.
func stopShared() {
	if shared.server != nil {
		_ = shared.admin.Close()
		shared.server.Kill()
		return
	}
	if shared.template != "" {
		_ = dropDB(shared.admin, shared.template)
	}
}

func makeTemplate(ctx context.Context, migrate Migrate) (string, error) {
	name := uniqueName("template")
	if err := createDB(ctx, shared.admin, name, "template1"); err != nil {
		return "", err
	}
	if err := migrate(ctx, withDatabase(shared.url, name)); err != nil {
		_ = dropDB(shared.admin, name)
		return "", fmt.Errorf("migrate the template database: %w", err)
	}
	return name, nil
}

// uniqueName is unlike any other test binary's on the same server.
func uniqueName(kind string) string {
	return "piecework_" + kind + "_" + strings.ToLower(rand.Text())
}

func createDB(ctx context.Context, admin *sql.DB, name, template string) error {
	if _, err := admin.ExecContext(ctx, "create database "+name+" template "+template); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func dropDB(admin *sql.DB, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if _, err := admin.ExecContext(ctx, "drop database "+name+" with (force)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// withDatabase is the server's URL, or its keywords, with another database.
func withDatabase(server, name string) string {
	parsed, err := url.Parse(server)
	if err != nil || parsed.Scheme == "" {
		return server + " dbname=" + name
	}
	parsed.Path = "/" + name
	return parsed.String()
}
