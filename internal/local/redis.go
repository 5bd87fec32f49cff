package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

const (
	redisSocket = "redis.sock"
	clockTick   = 100 * time.Millisecond
)

var redisVersion = regexp.MustCompile(`\bv=(\S+)`)

// RedisOptions says where and how StartRedis runs its server.
type RedisOptions struct {
	Dir      string   // data root, locked by the caller; the data is in Dir/redis
	Binary   string   // redis-server or valkey-server; looked for on PATH when empty
	Embedded bool     // do not look for one
	Addr     string   // host and port to serve; when empty a socket, a free port of the loopback if embedded
	Settings []string // more of redis-server's, as its command line has them
	Sentinel bool     // not a Redis, but one that watches over some
	Log      *slog.Logger
}

// Redis is a running server.
type Redis struct {
	URL         string // for go-redis
	Description string // for people
	Embedded    bool   // forgets everything when it stops

	child *child
	tidy  func() // what is left to remove when the child has ended

	mini *miniredis.Miniredis
	pump context.CancelFunc
	once sync.Once
	done chan struct{}
}

// StartRedis runs redis-server or valkey-server, or a server inside this
// process when there is none, and returns when it answers. ctx bounds the start
// alone.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Embedded {
		return startEmbedded(o.Addr)
	}
	binary, err := o.binary()
	if err != nil {
		return nil, err
	}
	if binary != "" {
		return o.start(ctx, binary)
	}
	o.Log.Info("no redis-server or valkey-server on PATH: using the embedded one")
	return startEmbedded(o.Addr)
}

// Stop ends the server; a child that does not obey until ctx ends is killed.
func (r *Redis) Stop(ctx context.Context) error {
	if r.mini != nil {
		r.stopEmbedded()
		return nil
	}
	defer r.tidy()
	return r.child.stop(ctx, syscall.SIGTERM, syscall.SIGKILL)
}

// Kill ends the server as a crash would.
func (r *Redis) Kill() {
	if r.mini != nil {
		r.stopEmbedded()
		return
	}
	defer r.tidy()
	r.child.kill(syscall.SIGKILL)
}

// binary returns the full path of the server's program, or nothing when the
// machine has none.
func (o RedisOptions) binary() (string, error) {
	if o.Binary != "" {
		path, err := exec.LookPath(o.Binary)
		if err != nil {
			return "", fmt.Errorf("find redis: %w", err)
		}
		return filepath.Abs(path)
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", nil
}

func (o RedisOptions) start(ctx context.Context, binary string) (*Redis, error) {
	dir, err := absDir(o.Dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "redis")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("make redis directory: %w", err)
	}
	version, err := readRedisVersion(ctx, binary)
	if err != nil {
		return nil, err
	}
	// Two servers would write one log, and the old one would remove the new
	// one's socket. The pid file is ours, for Redis removes its own before
	// that socket.
	pidFile := filepath.Join(dir, "redis.pid")
	if err := awaitOld(ctx, oldChildWait, "redis", pidFile, data); err != nil {
		return nil, err
	}
	place, remove, err := o.place(data)
	if err != nil {
		return nil, err
	}
	command, err := o.command(binary, data, place)
	if err != nil {
		remove()
		return nil, err
	}
	child, err := startChild("redis", command, filepath.Join(dir, "redis.log"), syscall.SIGTERM)
	if err != nil {
		remove()
		return nil, err
	}
	server := &Redis{
		URL:         place.url(),
		Description: fmt.Sprintf("%s %s from %s, data in %s", filepath.Base(binary), version, binary, data),
		child:       child,
		tidy: func() {
			_ = os.Remove(pidFile)
			remove()
		},
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(child.cmd.Process.Pid)), 0o600); err != nil {
		server.Kill()
		return nil, fmt.Errorf("write pid file: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	if err := child.await(ctx, func(ctx context.Context) error { return pingRedis(ctx, place) }); err != nil {
		server.Kill()
		return nil, fmt.Errorf("%w; if its data is damaged or from a newer version, move %s away: the queue is rebuilt from Postgres", err, data)
	}
	return server, nil
}

// redisPlace is where a server is reached: at a socket or by TCP.
type redisPlace struct{ network, address string }

func (o RedisOptions) place(data string) (redisPlace, func(), error) {
	if o.Addr != "" {
		return redisPlace{"tcp", o.Addr}, func() {}, nil
	}
	sockets, remove, err := socketDir(data, redisSocket, account{})
	return redisPlace{"unix", filepath.Join(sockets, redisSocket)}, remove, err
}

func (p redisPlace) url() string {
	if p.network == "unix" {
		return (&url.URL{Scheme: "unix", Path: p.address, RawQuery: "db=0"}).String()
	}
	return "redis://" + p.address + "/0"
}

func (o RedisOptions) command(binary, data string, place redisPlace) (*exec.Cmd, error) {
	args := []string{"--port", "0", "--unixsocket", place.address, "--unixsocketperm", "700"}
	if place.network == "tcp" {
		host, port, err := net.SplitHostPort(place.address)
		if err != nil {
			return nil, fmt.Errorf("read redis address: %w", err)
		}
		args = []string{"--port", port, "--bind", host}
	}
	args = append(args, "--dir", data)
	if o.Sentinel {
		// What it comes to know it writes into its configuration.
		config := filepath.Join(data, "sentinel.conf")
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			return nil, fmt.Errorf("write configuration: %w", err)
		}
		args = append([]string{config, "--sentinel"}, args...)
	} else {
		args = append(args, "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction")
	}
	return account{}.run(exec.Command(binary, append(args, o.Settings...)...)), nil
}

func readRedisVersion(ctx context.Context, binary string) (string, error) {
	out, err := account{}.run(exec.CommandContext(ctx, binary, "--version")).Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", binary, err)
	}
	words := redisVersion.FindSubmatch(out)
	if words == nil {
		return "", fmt.Errorf("run %s: unknown version %q", binary, out)
	}
	return string(words[1]), nil
}

// pingRedis fails while the server still loads its data.
func pingRedis(ctx context.Context, place redisPlace) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, place.network, place.address)
	if err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	if answer != "+PONG\r\n" {
		return errors.New("ping redis: " + strings.TrimSpace(answer))
	}
	return nil
}

func startEmbedded(addr string) (*Redis, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	mini := miniredis.NewMiniRedis()
	if err := mini.StartAddr(addr); err != nil {
		return nil, fmt.Errorf("start embedded redis: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Redis{
		URL:         "redis://" + mini.Addr() + "/0",
		Description: "embedded miniredis at " + mini.Addr() + " (queue is rebuilt from Postgres after a restart)",
		Embedded:    true,
		mini:        mini,
		pump:        cancel,
		done:        make(chan struct{}),
	}
	go r.runClock(ctx)
	return r, nil
}

// runClock lets time pass: keys of miniredis do not expire by themselves.
func (r *Redis) runClock(ctx context.Context) {
	defer close(r.done)
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			r.mini.FastForward(now.Sub(last))
			last = now
		}
	}
}

func (r *Redis) stopEmbedded() {
	r.once.Do(func() {
		r.pump()
		<-r.done
		r.mini.Close()
	})
}
