package queue

import (
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/work"
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
		if _, err := Connect(address, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "ter2") {
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
	if o.Username != "u" || o.Password != "p/" || !slices.Equal(o.Addrs, []string{"a:1", "b:6379"}) || !o.TLSConfig.InsecureSkipVerify ||
		o.TLSConfig.ServerName != "" {
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
			for name, test := range map[string]func(*testing.T, *fixture){
				"enqueue": enqueueOnce, "many queues": enqueueToMany, "pick up": pickUp, "notices": noticesReach, "trim": archiveIsTrimmed,
			} {
				t.Run(name, func(t *testing.T) {
					f := &fixture{t: t, queue: connect(t, g.URL)}
					f.must(f.queue.Probe(t.Context()))
					f.flush()
					test(t, f)
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
