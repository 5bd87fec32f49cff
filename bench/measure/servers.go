package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"piecework/internal/local"
)

// servers are the one Postgres and the one Redis that everybody measured uses.
type servers struct {
	dir         string
	postgres    *local.Postgres
	queue       *local.Redis
	admin       *pgx.Conn // to no database that is measured
	commands    *redis.Client
	postmaster  int // process ids
	redisServer int
	counted     bool // pg_stat_statements is there
	databases   int
}

// durable are the settings of Postgres that differ from its own. Checkpoints
// come between measurements and not within them.
var durable = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "1h",
}

func startServers(ctx context.Context, dir string) (*servers, error) {
	v := &servers{dir: dir}
	if err := v.start(ctx); err != nil {
		v.stop()
		return nil, err
	}
	return v, nil
}

func (v *servers) start(ctx context.Context) (err error) {
	options := local.PostgresOptions{Dir: filepath.Join(v.dir, "pg"), PGBin: os.Getenv("PG_BIN"), Fsync: true, MaxConnections: 1500}
	if v.postgres, err = local.StartPostgres(ctx, options); err != nil {
		return err
	}
	if err = v.configure(ctx); err != nil {
		return err
	}
	_ = v.postgres.Stop(ctx)
	if v.postgres, err = local.StartPostgres(ctx, options); err != nil {
		return err
	}
	if v.admin, err = pgx.Connect(ctx, v.postgres.URL); err != nil {
		return err
	}
	if v.counted {
		if _, err = v.admin.Exec(ctx, "CREATE EXTENSION pg_stat_statements"); err != nil {
			return err
		}
	}
	files, _ := filepath.Glob(filepath.Join(v.dir, "pg", "pg*", "postmaster.pid"))
	if len(files) != 1 {
		return fmt.Errorf("the process of Postgres cannot be found in %v", files)
	}
	if v.postmaster, err = pidIn(files[0]); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	v.queue, err = local.StartRedis(ctx, local.RedisOptions{Dir: filepath.Join(v.dir, "rd"), Addr: addr, Settings: []string{"--appendonly", "no"}})
	if err != nil {
		return err
	}
	if v.queue.Embedded {
		return fmt.Errorf("there is no redis-server on PATH")
	}
	if v.redisServer, err = pidIn(filepath.Join(v.dir, "rd", "redis.pid")); err != nil {
		return err
	}
	v.commands = redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1})
	return nil
}

func (v *servers) configure(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, v.postgres.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := conn.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_available_extensions WHERE name = 'pg_stat_statements'").Scan(&v.counted); err != nil {
		return err
	}
	if v.counted {
		if _, err := conn.Exec(ctx, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'"); err != nil {
			return err
		}
	}
	for name, value := range durable {
		if _, err := conn.Exec(ctx, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value)); err != nil {
			return err
		}
	}
	return nil
}

func pidIn(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(first))
}

func (v *servers) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if v.commands != nil {
		_ = v.commands.Close()
	}
	if v.admin != nil {
		_ = v.admin.Close(ctx)
	}
	if v.queue != nil {
		v.queue.Kill()
	}
	if v.postgres != nil {
		_ = v.postgres.Stop(ctx)
	}
}

// versions are those of both servers.
func (v *servers) versions(ctx context.Context) (string, string) {
	var pg string
	_ = v.admin.QueryRow(ctx, "SHOW server_version").Scan(&pg)
	info, _ := v.commands.Info(ctx, "server").Result()
	_, rd, _ := strings.Cut(info, "redis_version:")
	rd, _, _ = strings.Cut(rd, "\r")
	return pg, rd
}

// createDatabase makes a copy of a database, an empty one without a name.
func (v *servers) createDatabase(ctx context.Context, kind, template string) (name string, err error) {
	v.databases++
	name = fmt.Sprintf("measure_%s_%d", kind, v.databases)
	if template == "" {
		template = "template0"
	}
	_, err = v.admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template)
	return name, err
}

// dropDatabase also writes a checkpoint.
func (v *servers) dropDatabase(ctx context.Context, name string) error {
	_, err := v.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

func (v *servers) url(database string) string {
	u, err := url.Parse(v.postgres.URL)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + database
	return u.String()
}

// riverTemplate is a database with River's tables, and one for results.
func (v *servers) riverTemplate(ctx context.Context) (string, error) {
	name, err := v.createDatabase(ctx, "river", "")
	if err != nil {
		return "", err
	}
	pool, err := pgxpool.New(ctx, v.url(name))
	if err != nil {
		return "", err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return "", err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return "", err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE results (job bigint PRIMARY KEY, result text NOT NULL, transcript bytea NOT NULL);
		ALTER TABLE results ALTER COLUMN transcript SET STORAGE EXTERNAL`)
	return name, err
}
