package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"piecework/internal/local"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

// DevCommand is `piecework dev`.
type DevCommand struct {
	Base
	Door
	Crew       `embed:"" set:"grace=5s"`
	PGBin      string `name:"pg-bin" env:"PG_BIN" placeholder:"DIR" help:"Where postgres and initdb are, if DATABASE_URL is not set."`
	NoDownload bool   `env:"PIECEWORK_NO_DOWNLOAD" help:"Do not fetch Postgres when this machine has none."`
}

// Run brings a Postgres and a Redis if none are given, and serves everything
// in one process until the context ends.
func (c *DevCommand) Run(app *App) error {
	if c.Roots == "" {
		dir, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("find the current directory: %w", err)
		}
		c.Roots = "cwd=" + dir
	}
	c.AcceptCommands = true // whoever reaches it can run agents that run commands
	loopback := make([]string, 0, 2)
	for _, block := range webhook.Loopback() {
		loopback = append(loopback, block.String())
	}
	c.WebhookAllow = strings.Join(append(loopback, c.WebhookAllow), ",")
	// Before servers are started, only to be stopped again.
	if _, err := c.Crew.check(); err != nil {
		return err
	}
	if err := c.Door.check(); err != nil {
		return err
	}
	if _, err := c.prepare(); err != nil {
		return err
	}
	held, err := local.Lock(c.Data, fmt.Sprintf("piecework dev, started %s", time.Now().Format(time.DateTime)))
	var other *local.HeldError
	if errors.As(err, &other) {
		return usagef("another piecework dev uses %s (%s)\nTry: stop it, or give this one its own --data", other.Dir, other.Note)
	}
	if err != nil {
		return err
	}
	defer func() { _ = held.Release() }() // the kernel does it too when we end

	ctx, fail := context.WithCancelCause(app.Ctx)
	defer fail(nil)
	stopPostgres, err := c.postgres(ctx, app, fail)
	if err != nil {
		return err
	}
	defer stopPostgres()
	stopRedis, err := c.redis(ctx, app)
	if err != nil {
		return err
	}
	defer stopRedis()

	if c.Known, err = c.prices(); err != nil {
		return err
	}
	inner := *app
	inner.Ctx = ctx
	if err := runHouse(&inner, &c.Base, &c.Door, &c.Crew, ""); err != nil {
		return err
	}
	if cause := context.Cause(ctx); app.Ctx.Err() == nil && cause != nil {
		return cause
	}
	return nil
}

// postgres sets DatabaseURL, starting a server of our own if it is empty.
func (c *DevCommand) postgres(ctx context.Context, app *App, fail context.CancelCauseFunc) (func(), error) {
	if c.DatabaseURL != "" {
		fmt.Fprintln(app.Stderr, "postgres:", hidden(c.DatabaseURL), "(from DATABASE_URL)")
		return func() {}, nil
	}
	cache := filepath.Join(c.Data, "cache")
	pg, err := local.StartPostgres(ctx, local.PostgresOptions{
		Dir: c.Data, PGBin: c.PGBin, SudoUser: app.Getenv("SUDO_USER"), Download: !c.NoDownload, CacheDir: cache,
		Fsync: true, Log: c.logger(app),
	})
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(app.Stderr, "postgres:", pg.Description)
	c.DatabaseURL = pg.URL
	go func() {
		select {
		case <-pg.Done():
			fail(fmt.Errorf("%w: %w", work.ErrLedgerGone, pg.Err()))
		case <-ctx.Done():
		}
	}()
	return func() { stopChild(app, "postgres", pg.Stop) }, nil
}

// redis sets RedisURL, starting a server of our own if it is empty. When that
// one dies, work goes on without it.
func (c *DevCommand) redis(ctx context.Context, app *App) (func(), error) {
	if c.RedisURL != "" {
		fmt.Fprintln(app.Stderr, "redis:", hidden(c.RedisURL), "(from REDIS_URL)")
		return func() {}, nil
	}
	redis, err := local.StartRedis(ctx, local.RedisOptions{Dir: c.Data, Log: c.logger(app)})
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(app.Stderr, "redis:", redis.Description)
	c.RedisURL = redis.URL
	return func() { stopChild(app, "redis", redis.Stop) }, nil
}

func stopChild(app *App, name string, stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(app.Ctx), 10*time.Second)
	defer cancel()
	if err := stop(ctx); err != nil {
		fmt.Fprintln(app.Stderr, name+":", err)
	}
}
