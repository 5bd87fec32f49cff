package jobs

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"piecework/internal/work"
)

// Diagnose looks whether the Redis at url is fit to be a bell, and says how to
// mend what is not.
func Diagnose(ctx context.Context, url string) []work.Finding {
	bell, err := Connect(url, slog.New(slog.DiscardHandler))
	if err != nil {
		return []work.Finding{{Name: "redis", Status: work.FindingFail, Detail: err.Error(), Mend: "Set REDIS_URL to redis://HOST:6379/0 or unix:///path/to/socket."}}
	}
	defer func() { _ = bell.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := bell.Probe(ctx); err != nil {
		return []work.Finding{{Name: "redis", Status: work.FindingFail, Detail: err.Error(),
			Mend: "Start it, free its disk or memory, or point REDIS_URL at a primary. Until then units are accepted and claimed from Postgres."}}
	}
	text, err := bell.redis.Info(ctx).Result()
	if err != nil {
		return []work.Finding{{Name: "redis", Status: work.FindingWarn, Detail: "INFO is refused: " + err.Error(), Mend: "Let this user call INFO to have its settings checked."}}
	}
	return judge(infoOf(text))
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
		findings = append(findings, work.Finding{Name: "redis eviction", Status: work.FindingFail, Detail: "maxmemory-policy is " + policy + ": bells vanish silently when memory is short",
			Mend: "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf."})
	} else {
		findings = append(findings, work.Finding{Name: "redis eviction", Status: work.FindingOK, Detail: "maxmemory-policy is noeviction"})
	}
	if info["aof_enabled"] == "0" {
		findings = append(findings, work.Finding{Name: "redis persistence", Status: work.FindingWarn, Detail: "appendonly is off: after a restart every queued unit is dispatched again",
			Mend: "CONFIG SET appendonly yes, and the same in redis.conf. Nothing is lost without it; the restart is only slower."})
	} else {
		findings = append(findings, work.Finding{Name: "redis persistence", Status: work.FindingOK, Detail: "appendonly is on"})
	}
	if v := info["redis_version"]; olderThan(v, 6, 2) {
		findings = append(findings, work.Finding{Name: "redis version", Status: work.FindingFail, Detail: "version " + v + " is older than 6.2", Mend: "Upgrade Redis to 6.2 or later, or use Valkey."})
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
