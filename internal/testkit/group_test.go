package testkit

import (
	"testing"
	"time"
)

func TestGroupsFailOver(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *RedisGroup{"sentinel": StartSentinel, "cluster": StartCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			g := start(t)
			t.Logf("%s ready after %s", g.URL, time.Since(begin))
			begin = time.Now()
			old := g.KillMaster("key")
			g.AwaitFailover("key", old)
			t.Logf("%s replaced after %s", old, time.Since(begin))
		})
	}
}
