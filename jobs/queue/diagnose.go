package queue

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"piecework/internal/work"
)

// Diagnose looks whether the Redis at url is fit to be a queue, every master of a
// Cluster, and says how to mend what is not.
func Diagnose(ctx context.Context, url string) []work.Finding {
	client, err := Connect(url, slog.New(slog.DiscardHandler))
	if err != nil {
		return []work.Finding{{Name: "redis", Status: work.FindingFail, Detail: err.Error(),
			Mend: "Set REDIS_URL to redis://HOST:6379/0, unix:///path/to/socket, " +
				"redis-sentinel://HOST:26379,HOST:26379/0?master=NAME or redis-cluster://HOST:6379,HOST:6379."}}
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	servers, infoErr := client.infos(ctx)
	if len(servers) > 0 {
		if other := client.otherLayout(servers[0]["redis_mode"]); other != nil {
			return []work.Finding{*other}
		}
	}
	if err := client.Probe(ctx); err != nil {
		return []work.Finding{{Name: "redis", Status: work.FindingFail, Detail: err.Error(),
			Mend: "Start it, free its disk or memory, or point REDIS_URL at a primary; Sentinels must know the master by the name in it. " +
				"Until then units are accepted and claimed from Postgres."}}
	}
	if infoErr != nil || len(servers) == 0 {
		return []work.Finding{{Name: "redis", Status: work.FindingWarn, Detail: fmt.Sprintf("INFO is refused: %v", infoErr),
			Mend: "Let this user call INFO to have its settings checked, and to let worker processes notice at once that a replica has taken over."}}
	}
	return client.judge(servers)
}

// infos asks each master what it is.
func (c *Client) infos(ctx context.Context) ([]map[string]string, error) {
	var mu sync.Mutex
	var servers []map[string]string
	err := c.everyMaster(ctx, func(ctx context.Context, server redis.UniversalClient, _ string) error {
		text, err := server.Info(ctx).Result()
		if err != nil {
			return err
		}
		info := infoOf(text)
		info["at"] = "the master"
		if node, ok := server.(*redis.Client); ok && c.clustered() {
			info["at"] = node.Options().Addr
		}
		mu.Lock()
		defer mu.Unlock()
		servers = append(servers, info)
		return nil
	})
	slices.SortFunc(servers, func(a, b map[string]string) int { return strings.Compare(a["at"], b["at"]) })
	return servers, err
}

func (c *Client) clustered() bool {
	_, ok := c.redis.(*redis.ClusterClient)
	return ok
}

// otherLayout is the finding that the address says another layout than the
// server, nil when it does not.
func (c *Client) otherLayout(mode string) *work.Finding {
	f := work.Finding{Name: "redis", Status: work.FindingFail}
	switch {
	case mode == "sentinel":
		f.Detail, f.Mend = "what answers there is a Sentinel", "Write redis-sentinel://HOST:PORT,HOST:PORT/0?master=NAME."
	case mode == "cluster" && !c.clustered():
		f.Detail, f.Mend = "what answers there is one of a Cluster", "Write redis-cluster://HOST:PORT,HOST:PORT."
	default:
		return nil
	}
	return &f
}

// judge says of each thing what is worst about it among the masters.
func (c *Client) judge(servers []map[string]string) []work.Finding {
	var findings []work.Finding
	for _, info := range servers {
		for _, f := range judge(info) {
			if len(servers) > 1 && f.Status != work.FindingOK {
				f.Detail = info["at"] + ": " + f.Detail
			}
			i := slices.IndexFunc(findings, func(other work.Finding) bool { return other.Name == f.Name })
			switch {
			case i < 0:
				findings = append(findings, f)
			case f.Status == work.FindingFail && findings[i].Status != f.Status, findings[i].Status == work.FindingOK:
				findings[i] = f
			}
		}
		if c.layout != singleServer && info["connected_slaves"] == "0" {
			findings = append(findings, work.Finding{Name: "redis replicas", Status: work.FindingWarn,
				Detail: info["at"] + " has none: when it dies nobody takes over",
				Mend:   "Give each master a replica. Nothing is lost without; until the master is back units are claimed from Postgres."})
		}
	}
	if c.clustered() {
		findings[0].Detail += fmt.Sprintf(" (%s, %d masters)", c.layout, len(servers))
	} else {
		findings[0].Detail += " (" + c.layout + ")"
	}
	return findings
}

func infoOf(text string) map[string]string {
	info := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func judge(info map[string]string) []work.Finding {
	findings := []work.Finding{{Name: "redis", Status: work.FindingOK, Detail: "takes writes, version " + info["redis_version"]}}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		findings = append(findings, work.Finding{Name: "redis eviction", Status: work.FindingFail,
			Detail: "maxmemory-policy is " + policy + ": messages vanish silently when memory is short",
			Mend:   "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf."})
	} else {
		findings = append(findings, work.Finding{Name: "redis eviction", Status: work.FindingOK, Detail: "maxmemory-policy is noeviction"})
	}
	if info["aof_enabled"] == "0" {
		findings = append(findings, work.Finding{Name: "redis persistence", Status: work.FindingWarn,
			Detail: "appendonly is off: after a restart every queued unit is dispatched again",
			Mend:   "CONFIG SET appendonly yes, and the same in redis.conf. Nothing is lost without it; the restart is only slower."})
	} else {
		findings = append(findings, work.Finding{Name: "redis persistence", Status: work.FindingOK, Detail: "appendonly is on"})
	}
	if v := info["redis_version"]; olderThan(v, 6, 2) {
		findings = append(findings, work.Finding{Name: "redis version", Status: work.FindingFail, Detail: "version " + v + " is older than 6.2",
			Mend: "Upgrade Redis to 6.2 or later, or use Valkey."})
	}
	return findings
}

func olderThan(version string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a < major || a == major && b < minor
}
