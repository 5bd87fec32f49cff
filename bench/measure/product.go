package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// productTemplate is a database with the schema of the binary.
func (v *servers) productTemplate(ctx context.Context, binary string) (string, error) {
	name, err := v.createDatabase(ctx, "product", "")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, binary, "migrate")
	cmd.Env = productEnv(v.dir, v.url(name), v.queue.URL, 8)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s migrate: %w\n%s", binary, err, out)
	}
	return name, nil
}

// productEnv has an empty PATH: a worker process then looks for no agents.
func productEnv(dir, database, redis string, concurrency int) []string {
	return []string{
		"PATH=", "HOME=" + dir, "TMPDIR=" + dir, "DATABASE_URL=" + database, "REDIS_URL=" + redis,
		"PIECEWORK_DATA=" + filepath.Join(dir, "data"), "PIECEWORK_LISTEN=127.0.0.1:0", "PIECEWORK_LOG_LEVEL=warn",
		"PIECEWORK_CONCURRENCY=" + strconv.Itoa(concurrency),
	}
}

func (s *stage) startAPI() (*process, error) { return s.startProduct(api, 0) }

func (s *stage) startWorker(concurrency int) (*process, error) {
	return s.startProduct(worker, concurrency)
}

// startEnumerator starts a worker process that makes the units of batches and runs
// none of them.
func (s *stage) startEnumerator() (*process, error) {
	return s.start(worker, s.binary, []string{worker, "--queues", "nobody=1"}, productEnv(s.dir, s.database, s.queue.URL, 1))
}

func (s *stage) startProduct(role string, concurrency int) (*process, error) {
	return s.start(role, s.binary, []string{role}, productEnv(s.dir, s.database, s.queue.URL, max(1, concurrency)))
}

// enqueue has the API accept so many units, and ends the API: nothing runs then.
func (s *stage) enqueue(units int) error {
	server, err := s.startAPI()
	if err != nil {
		return err
	}
	p, err := s.startChild(client, "http", childSettings{URL: server.url, Units: units, Callers: 64})
	if err != nil {
		return err
	}
	if err := p.tell(); err != nil {
		return err
	}
	if _, err := p.result(); err != nil {
		return err
	}
	s.drop(p)
	s.drop(server)
	return nil
}

// drop ends a process, whose time counts no more.
func (s *stage) drop(p *process) {
	p.kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.processes {
		if s.processes[i] == p {
			s.processes = append(s.processes[:i], s.processes[i+1:]...)
			return
		}
	}
}

var errSlow = errors.New("took longer than five minutes")

// poll asks Postgres again and again until a condition holds.
func (s *stage) poll(ctx context.Context, every time.Duration, query string) error {
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(every) {
		var holds bool
		if err := s.conn.QueryRow(ctx, query).Scan(&holds); err != nil {
			return err
		}
		if holds {
			return nil
		}
	}
	return errSlow
}

const (
	someFinished = "SELECT /* measure */ EXISTS (SELECT FROM work_units WHERE tenant = 'default' AND state = 'succeeded')"
	allFinished  = "SELECT /* measure */ NOT EXISTS (SELECT FROM work_units WHERE tenant = 'default' AND state IN ('queued', 'running'))"
)

// drain measures from the first unit that is finished to the last. Workers run
// already, or are being started.
func (s *stage) drain(ctx context.Context) (sample, error) {
	if err := s.poll(ctx, 5*time.Millisecond, someFinished); err != nil {
		return sample{}, err
	}
	a, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	var before int
	if err := s.conn.QueryRow(ctx, "SELECT /* measure */ count(*) FROM work_units WHERE finished_at IS NOT NULL").Scan(&before); err != nil {
		return sample{}, err
	}
	if err := s.poll(ctx, 50*time.Millisecond, allFinished); err != nil {
		return sample{}, err
	}
	b, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	var units, failed int
	var seconds float64
	if err := s.conn.QueryRow(ctx, `SELECT /* measure */ count(*), count(*) FILTER (WHERE state <> 'succeeded'),
		extract(epoch FROM max(finished_at) - min(finished_at))::float8 FROM work_units`).Scan(&units, &failed, &seconds); err != nil {
		return sample{}, err
	}
	if failed > 0 {
		return sample{}, fmt.Errorf("%d of %d units have not succeeded", failed, units)
	}
	out := since(a, b, units-before, 1)
	out.Units, out.Seconds = units-1, seconds
	out.Values = s.waits(ctx)
	return out, nil
}

// waits are quantiles in milliseconds of how long units waited to be started.
func (s *stage) waits(ctx context.Context) map[string]float64 {
	var p50, p99 float64
	err := s.conn.QueryRow(ctx, `SELECT /* measure */ coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY w), 0), coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY w), 0)
		FROM (SELECT extract(epoch FROM started_at - created_at)::float8 * 1000 AS w FROM work_units) AS waits`).Scan(&p50, &p99)
	if err != nil {
		return nil
	}
	return map[string]float64{"start p50": p50, "start p99": p99}
}

// version is what the binary calls itself.
func version(ctx context.Context, binary string) string {
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
