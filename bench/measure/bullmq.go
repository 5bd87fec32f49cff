package main

import (
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	bullmqVersion  = "6.7.0"
	ioredisVersion = "6.0.0"
)

//go:embed bullmq.js
var bullmqScript []byte

var errNoNode = errors.New("skipped: there is no node and npm, or BullMQ cannot be installed")

// installBullMQ returns a directory with BullMQ; it is fetched once.
func installBullMQ(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "piecework-measure", "bullmq-"+bullmqVersion+"-ioredis-"+ioredisVersion)
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "ioredis", "package.json")); err == nil {
		return dir, nil
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir, "bullmq@"+bullmqVersion, "ioredis@"+ioredisVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w\n%s", err, out)
	}
	return dir, nil
}

// bullmqDrain is measured like the others, from its first job.
func bullmqDrain(ctx context.Context, s *stage) (sample, error) {
	if s.node == "" {
		return sample{}, errNoNode
	}
	script := filepath.Join(s.dir, "bullmq.js")
	if err := os.WriteFile(script, bullmqScript, 0o600); err != nil {
		return sample{}, err
	}
	settings, err := json.Marshal(childSettings{Redis: s.queue.URL, Units: s.paced(10_000), Callers: 64})
	if err != nil {
		return sample{}, err
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return sample{}, err
	}
	env := append(os.Environ(), "NODE_PATH="+filepath.Join(s.node, "node_modules"), "PIECEWORK_MEASURE_SETTINGS="+string(settings))
	p, err := s.start(worker, node, []string{script}, env)
	if err != nil {
		return sample{}, err
	}
	return s.measureFromStart(ctx, p)
}
