package queue

import (
	"maps"
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	good := map[string]string{"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "aof_enabled": "1"}
	for _, test := range []struct{ name, value, finding, status string }{
		{"aof_enabled", "1", "redis persistence", work.FindingOK},
		{"aof_enabled", "0", "redis persistence", work.FindingWarn},
		{"maxmemory_policy", "allkeys-lru", "redis eviction", work.FindingFail},
		{"maxmemory_policy", "", "redis eviction", work.FindingOK},
		{"redis_version", "6.0.16", "redis version", work.FindingFail},
		{"redis_version", "unknown", "redis", work.FindingOK},
	} {
		info := maps.Clone(good)
		info[test.name] = test.value
		var found bool
		for _, f := range judge(info) {
			if found = found || f.Name == test.finding && f.Status == test.status; f.Status != work.FindingOK && f.Mend == "" {
				t.Errorf("%s is no good and nothing mends it", f.Name)
			}
		}
		if !found {
			t.Errorf("%s %s: %+v", test.name, test.value, judge(info))
		}
	}
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	server := testkit.StartRedis(t)
	if !server.Real() {
		t.Skip("no redis-server or valkey-server on PATH")
	}
	for _, f := range Diagnose(t.Context(), server.URL) {
		if f.Status != work.FindingOK {
			t.Errorf("%+v", f)
		}
	}
	server.Stop()
	for _, url := range []string{server.URL, "rubbish"} {
		if f := Diagnose(t.Context(), url); len(f) != 1 || f[0].Status != work.FindingFail || f[0].Mend == "" {
			t.Errorf("%s: %+v", url, f)
		}
	}
}
