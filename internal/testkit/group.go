package testkit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"piecework/internal/local"
)

const (
	// MasterName is what the Sentinels of StartSentinel call their master.
	MasterName = "bell"
	// GroupPassword is that of the servers of a group, Sentinels apart.
	GroupPassword = "hunter2-hunter2"

	silence    = "1000" // milliseconds after which a server is taken for dead
	masters    = 3
	slots      = 1 << 14
	online     = "online"
	oneCommand = 2 * time.Second
)

// RedisGroup is several servers of the test's own that stand in for one
// another: a master with replicas and the Sentinels that watch over them, or a
// Cluster.
type RedisGroup struct {
	URL string

	t       testing.TB
	servers map[string]*local.Redis // those that live, by host and port
	// master is the server that has a key, or an error while nobody is sure.
	master func(ctx context.Context, key string) (string, error)
}

// StartSentinel starts a master, two replicas and three Sentinels. A master
// that is killed is replaced in two to four seconds.
func StartSentinel(t testing.TB) *RedisGroup {
	t.Helper()
	g := newGroup(t)
	master := g.start(local.RedisOptions{Settings: prompt})
	host, port, _ := net.SplitHostPort(master)
	var replicas []string
	for range 2 {
		replicas = append(replicas, g.start(local.RedisOptions{Settings: append([]string{"--replicaof", host + " " + port}, prompt...)}))
	}
	g.linked(replicas)
	var addresses []string
	var sentinels []*redis.SentinelClient
	for range 3 {
		addr := g.start(local.RedisOptions{Sentinel: true})
		s := redis.NewSentinelClient(&redis.Options{Addr: addr, DialTimeout: oneCommand, ReadTimeout: oneCommand})
		t.Cleanup(func() { _ = s.Close() })
		g.must(s.Monitor(t.Context(), MasterName, host, port, "2").Err())
		for option, value := range map[string]string{"failover-timeout": "5000", "auth-pass": GroupPassword} {
			g.must(s.Set(t.Context(), MasterName, option, value).Err())
		}
		addresses, sentinels = append(addresses, addr), append(sentinels, s)
	}
	for _, s := range sentinels {
		Eventually(t, "a Sentinel knows the others and the replicas", func() bool {
			known, err := s.Master(t.Context(), MasterName).Result()
			return err == nil && known["num-other-sentinels"] == "2" && known["num-slaves"] == "2"
		})
	}
	for _, s := range sentinels { // on a busy machine they would have taken somebody for dead before
		g.must(s.Set(t.Context(), MasterName, "down-after-milliseconds", silence).Err())
	}
	g.lock(append(replicas, master))
	g.URL = "redis-sentinel://:" + GroupPassword + "@" + strings.Join(addresses, ",") + "/0?master=" + MasterName
	g.master = func(ctx context.Context, _ string) (string, error) {
		var last string
		for _, s := range sentinels {
			place, err := s.GetMasterAddrByName(ctx, MasterName).Result()
			if err != nil {
				return "", err
			}
			now := net.JoinHostPort(place[0], place[1])
			if last != "" && last != now {
				return "", errors.New("the Sentinels differ")
			}
			last = now
		}
		return last, nil
	}
	return g
}

// StartCluster starts three masters with a replica each. A master that is
// killed is replaced in two to four seconds; meanwhile the Cluster answers
// nothing.
func StartCluster(t testing.TB) *RedisGroup {
	t.Helper()
	g := newGroup(t)
	var nodes []*redis.Client
	var addresses, buses []string
	for range 2 * masters {
		bus := freePort(t)
		addr := g.start(local.RedisOptions{Settings: append([]string{
			"--cluster-enabled", "yes", "--cluster-port", bus,
			"--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
		}, prompt...)})
		nodes, addresses, buses = append(nodes, g.dial(addr)), append(addresses, addr), append(buses, bus)
	}
	ctx := t.Context()
	for i, node := range nodes {
		g.must(node.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		if i < masters {
			g.must(node.ClusterAddSlotsRange(ctx, slots*i/masters, slots*(i+1)/masters-1).Err())
		}
	}
	for i, node := range nodes {
		for j, addr := range addresses { // rumour would take seconds
			if i == j {
				continue // what it hears of itself, late, would make a replica a master again
			}
			host, port, _ := net.SplitHostPort(addr)
			g.must(node.Do(ctx, "cluster", "meet", host, port, buses[j]).Err())
		}
	}
	for i, node := range nodes[masters:] {
		id, err := nodes[i].ClusterMyID(ctx).Result()
		g.must(err)
		Eventually(t, "a replica knows its master", func() bool { return node.ClusterReplicate(ctx, id).Err() == nil })
	}
	g.linked(addresses[masters:])
	for _, node := range nodes {
		Eventually(t, "a node knows the Cluster", func() bool {
			shards, err := node.ClusterShards(ctx).Result()
			for _, shard := range shards {
				if len(shard.Nodes) != 2 || shard.Nodes[0].Health != online || shard.Nodes[1].Health != online {
					return false
				}
			}
			return err == nil && len(shards) == masters && strings.Contains(node.ClusterInfo(ctx).Val(), "cluster_state:ok")
		})
	}
	for _, node := range nodes { // on a busy machine they would have taken each other for dead
		g.must(node.ConfigSet(ctx, "cluster-node-timeout", silence).Err())
	}
	g.lock(addresses)
	g.URL = "redis-cluster://:" + GroupPassword + "@" + strings.Join(addresses, ",")
	g.master = func(ctx context.Context, key string) (string, error) { return g.owner(ctx, nodes, key) }
	return g
}

// owner is the server that all nodes which live take for the master of a key.
func (g *RedisGroup) owner(ctx context.Context, nodes []*redis.Client, key string) (last string, err error) {
	for _, node := range nodes {
		if g.servers[node.Options().Addr] == nil {
			continue
		}
		slot, err := node.ClusterKeySlot(ctx, key).Result()
		if err != nil {
			return "", err
		}
		shards, err := node.ClusterShards(ctx).Result()
		if err != nil {
			return "", err
		}
		now := masterOf(shards, slot)
		if last != "" && last != now {
			return "", errors.New("the nodes differ")
		}
		last = now
		if info := node.ClusterInfo(ctx).Val(); !strings.Contains(info, "cluster_state:ok") {
			return "", errors.New("the Cluster is down")
		}
	}
	return last, nil
}

func masterOf(shards []redis.ClusterShard, slot int64) string {
	for _, shard := range shards {
		if !slices.ContainsFunc(shard.Slots, func(r redis.SlotRange) bool { return r.Start <= slot && slot <= r.End }) {
			continue
		}
		for _, node := range shard.Nodes {
			if node.Role == "master" && node.Health == online {
				return net.JoinHostPort(node.IP, strconv.FormatInt(node.Port, 10))
			}
		}
	}
	return ""
}

// KillMaster kills the master that has a key, as a crash would, and returns
// where it was. It stays dead.
func (g *RedisGroup) KillMaster(key string) string {
	g.t.Helper()
	addr, err := g.master(g.t.Context(), key)
	g.must(err)
	g.servers[addr].Kill()
	delete(g.servers, addr)
	return addr
}

// AwaitFailover waits until another server than old is the master that has a
// key, and everybody says so.
func (g *RedisGroup) AwaitFailover(key, old string) {
	g.t.Helper()
	Eventually(g.t, "a replica takes over", func() bool {
		now, err := g.master(g.t.Context(), key)
		return err == nil && now != "" && now != old
	})
}

func newGroup(t testing.TB) *RedisGroup {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("no redis-server on PATH")
	}
	return &RedisGroup{t: t, servers: map[string]*local.Redis{}}
}

// prompt are settings of servers that replicate without taking their time.
var prompt = []string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}

// start starts one server and returns its host and port.
func (g *RedisGroup) start(o local.RedisOptions) string {
	g.t.Helper()
	o.Dir, o.Addr = newDir(g.t, "redis-"), "127.0.0.1:"+freePort(g.t)
	ctx, cancel := context.WithTimeout(g.t.Context(), Patience)
	defer cancel()
	server, err := local.StartRedis(ctx, o)
	g.must(err)
	g.t.Cleanup(server.Kill)
	g.servers[o.Addr] = server
	return o.Addr
}

// dial makes a client for one server that gives up at once.
func (g *RedisGroup) dial(addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, Password: GroupPassword, MaxRetries: -1, DialerRetries: 1, DialTimeout: oneCommand,
		ReadTimeout: oneCommand})
	g.t.Cleanup(func() { _ = c.Close() })
	return c
}

// linked waits until replicas have their master's data.
func (g *RedisGroup) linked(replicas []string) {
	g.t.Helper()
	for _, addr := range replicas {
		client := g.dial(addr)
		Eventually(g.t, "a replica has its master's data", func() bool {
			return strings.Contains(client.Info(g.t.Context(), "replication").Val(), "master_link_status:up")
		})
	}
}

// lock asks for the password from now on; it would be in the way of the start.
func (g *RedisGroup) lock(addresses []string) {
	g.t.Helper()
	for _, addr := range addresses {
		for _, setting := range []string{"masterauth", "requirepass"} {
			g.must(g.dial(addr).ConfigSet(g.t.Context(), setting, GroupPassword).Err())
		}
	}
}

func (g *RedisGroup) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// freePort returns a port below those that the kernel gives to outgoing
// connections, so that nobody takes it before the server does.
func freePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(10000 + rand.IntN(22000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(fmt.Errorf("free a port: %w", err))
		}
		return port
	}
	t.Fatal("no free port")
	return ""
}
