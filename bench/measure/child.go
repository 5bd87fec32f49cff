package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
)

// job is what a child process does. It prepares itself, calls begin, which
// returns when the measurement begins, and works. A job that cannot tell
// when its work begins calls started at the first unit that is done.
type job func(ctx context.Context, s childSettings, begin, started func()) (childResult, error)

// jobTable has all jobs, by name.
var jobTable = map[string]job{
	"http":          httpJob,
	"batch":         batchJob,
	"store":         storeJob,
	"river-insert":  riverInsert,
	"river-many":    riverInsertMany,
	"river-drain":   riverDrain,
	"river-latency": riverLatency,
	"asynq-enqueue": asynqEnqueue,
	"asynq-drain":   asynqDrain,
	"asynq-latency": asynqLatency,
	"three-drain":   threeDrain,
	"plain-insert":  plainInsert,
	"copy":          copyRows,
	"redis-ping":    redisPing,
	"redis-evalsha": redisEvalsha,
}

// beChild does one job and answers on stdout. It stays until stdin ends, so that
// its processor time can be read.
func beChild(name string) error {
	var s childSettings
	if err := json.Unmarshal([]byte(os.Getenv("PIECEWORK_MEASURE_SETTINGS")), &s); err != nil {
		return err
	}
	do, ok := jobTable[name]
	if !ok {
		return fmt.Errorf("there is no job %q", name)
	}
	begin := func() {
		fmt.Println("ready")
		_, _ = fmt.Scanln()
	}
	started := func() { fmt.Println("started") }
	result, err := do(context.Background(), s, begin, started)
	if err != nil {
		return err
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// tell lets a child begin.
func (p *process) tell() error {
	_, err := fmt.Fprintln(p.in, "go")
	return err
}

// result waits for the child's answer.
func (p *process) result() (r childResult, err error) {
	text, err := p.line(5 * time.Minute)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("%s answers %q: %w", p.role, text, err)
	}
	return r, nil
}

// awaitStart waits until the child says that it has begun.
func (p *process) awaitStart() error {
	text, err := p.line(time.Minute)
	if err == nil && text != "started" {
		err = fmt.Errorf("%s answers %q", p.role, text)
	}
	return err
}

// quantiles are p50 and p99 in milliseconds, under names that begin with prefix.
func quantiles(prefix string, times []time.Duration) map[string]float64 {
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	at := func(q float64) float64 {
		return times[int(math.Round(q*float64(len(times)-1)))].Seconds() * 1000
	}
	return map[string]float64{prefix + "p50": at(0.5), prefix + "p99": at(0.99)}
}
