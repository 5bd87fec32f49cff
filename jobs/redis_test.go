package jobs

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, layout := range map[string]string{
		"redis://u:p@h:1/2":   singleServer,
		"rediss://h":          singleServer,
		"unix:///tmp/r?db=3":  singleServer,
		"redis-cluster://a:1": "Cluster",
		"rediss-cluster://u:p@a:1,b:2/0?skip_verify=true&pool_size=3": "Cluster",
		"redis-sentinel://a:1,b:2/3?master=m":                         "Sentinel, master m",
		"rediss-sentinel://u:p@a:1?master_name=m&sentinel_password=s": "Sentinel, master m",
	} {
		b, err := Connect(address, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if b.Layout() != layout {
			t.Errorf("%s is %s", address, b.Layout())
		}
		_ = b.Close()
	}
	for address, want := range map[string]string{
		"http://nowhere":                                                "scheme",
		"redis://a:1,b:2/0":                                             "several hosts",
		"redis-sentinel://h:1/0":                                        "?master=NAME",
		"redis-sentinel:///0?master=m":                                  "no host",
		"redis-cluster://":                                              "no host",
		"redis-cluster://h:1/2":                                         "leave the number out",
		"redis-cluster://h:1?read_only=true":                            "masters alone",
		"redis-sentinel://h:1/0?master=m&replica_only=true":             "masters alone",
		"redis-sentinel://u:hunter2@h:1/0?master=m&password=hunter2":    "two accounts",
		"redis-sentinel://h:1/0?master=m&nonsense=1":                    "nonsense",
		"redis-sentinel://u:hun/ter2@h:1,g:2/0?master=m":                "%XX",
		"redis-sentinel://u:12?hunter2@h:1,g:2/0?master=m&nonsense=yes": "%XX",
		"redis-cluster://u:12/hunter2@h:1,g:2":                          "%XX",
		"redis://u:12/hunter2@h:1":                                      "%XX",
		"redis-cluster://u:hunter2@[::1]:1,[::2]:2":                     "%XX",
	} {
		if _, err := Connect(address, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "ter2") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// What an address says gets to where it belongs: the account before the @ to
// Redis, the other to the Sentinels.
func TestSentinelOptions(t *testing.T) {
	t.Parallel()
	type account struct{ user, password, sentinelUser, sentinelPassword string }
	for address, want := range map[string]account{
		"redis-sentinel://u:p@a:1,b:2,c:3/4?master=m&sentinel_username=v&sentinel_password=s": {"u", "p", "v", "s"},
		"redis-sentinel://a:1/4?addr=b:2&addr=c:3&master_name=m&username=u&password=p":        {"u", "p", "", ""},
		"rediss-sentinel://:p@a:1,b:2,c:3/4?master=m":                                         {"", "p", "", ""},
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		o, err := sentinelOptions(u)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if got := (account{o.Username, o.Password, o.SentinelUsername, o.SentinelPassword}); got != want {
			t.Errorf("%s: %+v", address, got)
		}
		if !slices.Equal(o.SentinelAddrs, []string{"a:1", "b:2", "c:3"}) || o.MasterName != "m" || o.DB != 4 || !o.ContextTimeoutEnabled {
			t.Errorf("%s: %+v", address, o)
		}
		if tls := o.TLSConfig; (tls != nil) != (u.Scheme == "rediss-sentinel") || tls != nil && tls.ServerName != "" {
			t.Errorf("%s: %+v", address, tls)
		}
	}
}

func TestClusterOptions(t *testing.T) {
	t.Parallel()
	o, err := clusterOptions(&url.URL{Scheme: "rediss-cluster", User: url.UserPassword("u", "p/"), Host: "a:1,b", RawQuery: "skip_verify=true"})
	if err != nil {
		t.Fatal(err)
	}
	if o.Username != "u" || o.Password != "p/" || !slices.Equal(o.Addrs, []string{"a:1", "b:6379"}) || !o.TLSConfig.InsecureSkipVerify || o.TLSConfig.ServerName != "" {
		t.Errorf("%+v", o)
	}
}

// What a single server can do, Sentinel and Cluster can.
func TestGroups(t *testing.T) {
	t.Parallel()
	for name, start := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			for name, test := range map[string]func(*testing.T, *house){
				"ring": ringOnce, "ring many lanes": ringManyLanes, "pick up": pickUp, "notices": notices,
				"lost memory": redisLosesItsMemory, "trim": archiveIsTrimmed,
			} {
				t.Run(name, func(t *testing.T) {
					h := newHouseAt(t, g.URL)
					h.must(h.bell.Probe(t.Context()))
					h.forget()
					test(t, h)
				})
			}
			for _, f := range Diagnose(t.Context(), g.URL) {
				if f.Status != work.FindingOK {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

var groups = map[string]func(testing.TB) *testkit.RedisGroup{"sentinel": testkit.StartSentinel, "cluster": testkit.StartCluster}

// One master of a Cluster that forgets is enough for every bell to be looked
// for, and one that refuses writes for Redis to be away.
func TestOneMasterOfACluster(t *testing.T) {
	t.Parallel()
	h := newHouseAt(t, testkit.StartCluster(t).URL)
	masters := map[string]redis.UniversalClient{} // by tag
	var mu sync.Mutex
	h.must(h.bell.everyMaster(t.Context(), func(_ context.Context, server redis.UniversalClient, tag string) error {
		mu.Lock()
		defer mu.Unlock()
		masters[tag] = server
		return nil
	}))
	if len(masters) != 3 {
		t.Fatalf("%d masters", len(masters))
	}
	h.once()
	epoch, err := h.store.Queues.Epoch(t.Context(), "")
	h.must(err)
	if lack, err := h.bell.unmarked(t.Context(), epoch); err != nil || len(lack) > 0 {
		t.Errorf("marks are missing: %v, %v", lack, err)
	}
	u := h.put()
	h.ring(u)
	for tag, server := range masters {
		h.must(h.store.Queues.Defer(t.Context(), u.ID, uuid.Nil, time.Minute))
		h.must(server.FlushAll(t.Context()).Err())
		h.once()
		if n := h.pending(u); n != 1 {
			t.Errorf("%s has forgotten: %d bells pending", tag, n)
		}
		h.must(server.ConfigSet(t.Context(), "min-replicas-to-write", "9").Err())
		if err := h.bell.Probe(t.Context()); err == nil || h.bell.Up() {
			t.Errorf("%s takes no writes: %v", tag, err)
		}
		h.must(server.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
		h.must(h.bell.Probe(t.Context()))
		h.must(server.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	}
	found := Diagnose(t.Context(), "redis-cluster://:"+testkit.GroupPassword+"@"+masters["{0}"].(*redis.Client).Options().Addr)
	if i := slices.IndexFunc(found, func(f work.Finding) bool { return f.Name == "redis eviction" && f.Status == work.FindingFail }); i < 0 {
		t.Errorf("%+v", found)
	}
}

// A replica that takes over may lack the last bells, and bears the mark all the
// same.
func TestFailoverIsNoticed(t *testing.T) {
	t.Parallel()
	for name, start := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			h := newHouseAt(t, g.URL)
			heard := make(chan Notice, 1000)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go h.bell.Listen(ctx, func(n Notice) { heard <- n }, NoticeUnit)
			h.once() // marks the masters
			u := h.put()
			key := h.bell.stateKey(store.MessageOf(u))
			h.must(h.store.Queues.Defer(t.Context(), u.ID, uuid.Nil, time.Minute)) // as if it had rung, and the bell were lost
			old := g.KillMaster(key)
			_ = h.bell.Probe(t.Context())
			g.AwaitFailover(key, old)
			testkit.Eventually(t, "writes go to the new master", func() bool { return h.bell.Probe(t.Context()) == nil })
			testkit.Eventually(t, "the bell rings", func() bool { return h.rec.Once(t.Context()) == nil && h.pending(u) == 1 })
			testkit.Eventually(t, "a listener has come back", func() bool {
				h.must(h.bell.Changed(t.Context(), u.ID))
				select {
				case n := <-heard:
					return n.Unit == u.ID
				case <-time.After(50 * time.Millisecond): // it may not listen yet
					return false
				}
			})
			alone := func(f work.Finding) bool { return f.Name == "redis replicas" && f.Status == work.FindingWarn }
			if found := Diagnose(t.Context(), g.URL); slices.ContainsFunc(found, alone) != (name == "cluster") { // there it was the last replica
				t.Errorf("%+v", found)
			}
		})
	}
}

func TestDiagnoseLayouts(t *testing.T) {
	t.Parallel()
	sentinel, cluster := testkit.StartSentinel(t), testkit.StartCluster(t)
	one := func(url, account string) string {
		_, hosts, _ := strings.Cut(url, "@")
		return "redis://" + account + hosts[:strings.IndexAny(hosts, ",/")]
	}
	for url, want := range map[string]string{
		one(sentinel.URL, ""): "redis-sentinel://", one(cluster.URL, ":"+testkit.GroupPassword+"@"): "redis-cluster://",
		strings.Replace(sentinel.URL, testkit.MasterName, "nobody", 1): "Sentinels must know",
	} {
		if f := Diagnose(t.Context(), url); len(f) != 1 || f[0].Status != work.FindingFail || !strings.Contains(f[0].Mend, want) {
			t.Errorf("%s: %+v", url, f)
		}
	}
}

// Installations that share a Redis hear nothing of each other, and neither takes the
// other's mark for a Redis that has lost its memory.
func TestInstallationsShareARedis(t *testing.T) {
	t.Parallel()
	server := testkit.StartRedis(t)
	var houses [2]*house
	var units [2]work.Unit
	for i := range houses {
		h := newHouseAt(t, server.URL)
		id, err := h.store.Queues.Epoch(t.Context(), uuid.NewString())
		h.must(err)
		h.bell.OfDatabase(id)
		h.must(h.rec.checkEpoch(t.Context()))
		units[i] = h.put()
		h.ring(units[i])
		houses[i] = h
	}
	for i, h := range houses {
		epoch, err := h.store.Queues.Epoch(t.Context(), "")
		h.must(err)
		if lack, err := h.bell.unmarked(t.Context(), epoch); err != nil || len(lack) > 0 {
			t.Errorf("installation %d takes Redis for another: %v, %v", i, lack, err)
		}
	}
	first, second := houses[0], houses[1]
	heard := make(chan struct{}, 2)
	lanes := second.bell.Lanes(map[string]int{work.DefaultQueue: 1}, []string{"mock"})
	second.serve(second.bell.ServerClient(len(lanes), open(), make(chan struct{})), lanes, func() { heard <- struct{}{}; <-t.Context().Done() })
	<-heard // of the two messages the first installation's is older
	if n := first.pending(units[0]); n != 1 {
		t.Errorf("%d messages of the first installation are left", n)
	}
	testkit.Eventually(t, "the message is taken", func() bool { return second.pending(units[1]) == 0 })
	if taken, err := first.bell.active(t.Context()); err != nil || len(taken) > 0 {
		t.Errorf("the first installation sees %v taken, error %v", taken, err)
	}
}
