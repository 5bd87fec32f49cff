package local

import (
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisSay sends one command, written as words, and returns the answer.
func redisSay(t *testing.T, url, command string) string {
	t.Helper()
	var words []any
	for _, word := range strings.Fields(command) {
		words = append(words, word)
	}
	answer, err := dialRedis(t, url).Do(t.Context(), words...).Text()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return answer
}

func dialRedis(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func startRedis(t *testing.T, o RedisOptions) *Redis {
	t.Helper()
	server, err := StartRedis(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	return server
}

// needServer skips a test of a real server's life where there is none.
func needServer(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed; the embedded server has tests of its own")
	}
}

func TestRedisKeepsData(t *testing.T) {
	t.Parallel()
	needServer(t)
	for name, end := range map[string]func(*testing.T, *Redis){
		"stop": func(t *testing.T, r *Redis) { stop(t, r) },
		"kill": func(_ *testing.T, r *Redis) { r.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := dataDir(t)
			first := startRedis(t, RedisOptions{Dir: dir, Binary: "redis-server"})
			t.Log(first.Description)
			redisSay(t, first.URL, "SET word kept")
			end(t, first)
			closed(t, first.child.done, "redis")
			wantText(t, first.child.ended(), "redis ended")

			second := startRedis(t, RedisOptions{Dir: dir})
			if got := redisSay(t, second.URL, "GET word"); got != "kept" {
				t.Errorf("kept %q", got)
			}
			policy := dialRedis(t, second.URL).ConfigGet(t.Context(), "maxmemory-policy").Val()
			if policy["maxmemory-policy"] != "noeviction" {
				t.Errorf("policy %v", policy)
			}
		})
	}
}

func TestRedisInDeepDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("deep ", 20))
	server := startRedis(t, RedisOptions{Dir: dir})
	redisSay(t, server.URL, "SET a b")
	if strings.Contains(server.URL, "deep") {
		t.Errorf("socket at %s", server.URL)
	}
}

func TestRedisThatCannotStart(t *testing.T) {
	t.Parallel()
	_, err := StartRedis(t.Context(), RedisOptions{Dir: dataDir(t), Binary: "/nowhere/redis-server"})
	wantText(t, err, "find redis")

	script := filepath.Join(dataDir(t), "redis-server")
	writeScript(t, script, `case $1 in --version) echo "Redis server v=1.2.3 sha=0";; *) echo "no room at the inn"; exit 3;; esac`)
	_, err = StartRedis(t.Context(), RedisOptions{Dir: dataDir(t), Binary: script})
	wantText(t, err, "no room at the inn", "exit status 3", "rebuilt from Postgres")
}

func TestStopInsists(t *testing.T) {
	t.Parallel()
	needServer(t)
	server := startRedis(t, RedisOptions{Dir: dataDir(t)})
	// A stopped process does not obey SIGTERM.
	if err := server.child.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantText(t, server.Stop(ctx), "stop redis", "had to kill it")
	closed(t, server.child.done, "redis")
	if err := server.Stop(ctx); err != nil {
		t.Errorf("stop again: %v", err)
	}
}

func TestEmbeddedRedisClock(t *testing.T) {
	t.Parallel()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = "127.77.77.77" // where no other test takes the port while nobody listens
	}
	server := startRedis(t, RedisOptions{Embedded: true, Addr: host + ":0"})
	if !server.Embedded {
		t.Error("not embedded")
	}
	t.Log(server.Description)
	client := dialRedis(t, server.URL)
	start := time.Now()
	if err := client.Set(t.Context(), "key", "value", 300*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for client.Exists(t.Context(), "key").Val() == 1 {
		select {
		case <-deadline:
			t.Fatal("the key never expired")
		case <-tick.C:
		}
	}
	if took := time.Since(start); took < 150*time.Millisecond {
		t.Errorf("the key lived for %s only", took)
	}
	stop(t, server)
	closed(t, server.done, "embedded redis")

	again := startRedis(t, RedisOptions{Embedded: true, Addr: strings.TrimSuffix(strings.TrimPrefix(server.URL, "redis://"), "/0")})
	if again.URL != server.URL {
		t.Errorf("came back at %s", again.URL)
	}
}

func TestChildGetsNoneOfOurEnvironment(t *testing.T) {
	t.Setenv("SECRET_KEY", "hush")
	out, err := account{}.run(exec.Command("/usr/bin/env")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "hush") {
		t.Errorf("child sees %s", out)
	}
}
