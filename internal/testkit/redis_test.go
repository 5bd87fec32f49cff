package testkit

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"piecework/internal/local"
)

func dial(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = -1
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestRedisIsOnesOwn(t *testing.T) {
	t.Parallel()
	first, second := dial(t, Redis(t)), dial(t, Redis(t))
	if err := first.Set(t.Context(), "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n := second.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys of somebody else", n)
	}
}

func TestRedisOutage(t *testing.T) {
	t.Parallel()
	servers := map[string]*RedisServer{"found": StartRedis(t), "embedded": embedded(t)}
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			client := dial(t, server.URL)
			if err := client.Set(t.Context(), "key", "value", 0).Err(); err != nil {
				t.Fatal(err)
			}
			server.Stop()
			server.Stop()
			if err := client.Ping(t.Context()).Err(); err == nil {
				t.Error("stopped, yet it answers")
			}
			server.Start()
			server.Start()
			if kept := client.Exists(t.Context(), "key").Val() == 1; kept != server.Real() {
				t.Errorf("kept data: %t, real: %t", kept, server.Real())
			}
		})
	}
}

func embedded(t *testing.T) *RedisServer {
	t.Helper()
	r := &RedisServer{t: t, options: local.RedisOptions{Embedded: true}}
	r.Start()
	t.Cleanup(r.Stop)
	return r
}
