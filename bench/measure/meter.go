package main

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// stage is what one run of one subject has for itself: a database, an empty
// Redis, a directory, and processes that end with it.
type stage struct {
	*servers
	binary    string // of the product
	self      string // this program, for children
	scale     float64
	pace      float64 // units a second of a repetition before; 0: none
	dir       string
	name      string // of the database
	database  string // its URL
	conn      *pgx.Conn
	mu        sync.Mutex // interrupt comes at any time
	processes []*process
	node      string // directory with Node's packages
}

// newStage makes one with a copy of the template.
func (m *measurement) newStage(ctx context.Context, dir, template string) (*stage, error) {
	s := &stage{servers: m.servers, scale: m.scale, dir: dir, node: m.node}
	var err error
	if m.admin.IsClosed() { // a run before was interrupted
		if m.admin, err = pgx.Connect(ctx, m.postgres.URL); err != nil {
			return nil, err
		}
	}
	if s.name, err = m.createDatabase(ctx, "run", template); err != nil {
		return nil, err
	}
	s.database = m.url(s.name)
	if s.conn, err = pgx.Connect(ctx, s.database); err != nil {
		return nil, err
	}
	return s, m.commands.FlushAll(ctx).Err()
}

// interrupt kills all processes: whoever waits for one then hears of its end.
func (s *stage) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
	}
}

// close also forgets what a run that failed left behind.
func (s *stage) close() error {
	for _, p := range s.processes {
		p.kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.conn != nil {
		_ = s.conn.Close(ctx)
	}
	return s.dropDatabase(ctx, s.name)
}

// units is a number of units made smaller or larger by the scale.
func (s *stage) units(n int) int { return max(20, int(float64(n)*s.scale)) }

// Work that is as long as one likes takes about so long: with more units the
// whole takes too much time, with fewer the start counts too much.
const (
	aboutSeconds = 3
	fewest, most = 1000, 30_000
)

// paced is a number of units for work that is as long as one likes; n is a guess
// for the first time.
func (s *stage) paced(n int) int {
	if s.pace > 0 {
		n = min(max(int(s.pace*aboutSeconds), fewest), most)
	}
	return s.units(n)
}

// sample is what one run of one subject came to. Cost is per unit.
type sample struct {
	Units      int                `json:"units"`
	Seconds    float64            `json:"seconds"`
	CPU        map[string]float64 `json:"cpu_us"` // by role
	WAL        float64            `json:"wal_bytes"`
	Statements float64            `json:"statements"` // negative: not counted
	Commands   float64            `json:"commands"`
	Values     map[string]float64 `json:"values,omitempty"`
}

func (s sample) perSecond() float64 { return float64(s.Units) / s.Seconds }

// figure is a value by its name: one of Values, or one that every sample has.
func (s sample) figure(name string) (float64, bool) {
	switch name {
	case perSecond:
		return s.perSecond(), s.Units > 0 && s.Seconds > 0
	case perCPU:
		all, ok := s.figure(cpuAll)
		return 1e6 / all, ok
	case cpuAll, cpuServers:
		var sum float64
		for role, us := range s.CPU {
			if name == cpuAll || role != client {
				sum += us
			}
		}
		return sum, sum > 0
	}
	v, ok := s.Values[name]
	return v, ok
}

// Figures that every sample has.
const (
	perSecond  = "units/s"
	perCPU     = "units per CPU second"
	cpuAll     = "CPU of all"
	cpuServers = "CPU without the client"
)

// reading is a look at all counters.
type reading struct {
	at                   time.Time
	cpu                  map[string]time.Duration
	wal                  int64
	statements, commands int64
}

// read looks at the counters. What is asked of Postgres here has a comment, by
// which it is left out.
func (s *stage) read(ctx context.Context) (r reading, err error) {
	r.statements = -1
	if s.counted {
		if err = s.admin.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid
			WHERE datname = $1 AND query NOT LIKE '%/* measure */%'`, s.name).Scan(&r.statements); err != nil {
			return r, err
		}
	}
	if err = s.admin.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&r.wal); err != nil {
		return r, err
	}
	info, err := s.commands.Info(ctx, "commandstats").Result()
	if err != nil {
		return r, err
	}
	r.commands = commandsIn(info)
	r.cpu = map[string]time.Duration{}
	for _, p := range s.processes {
		used, err := cpuOf(p.cmd.Process.Pid)
		if err != nil {
			return r, err
		}
		r.cpu[p.role] += used
	}
	if r.cpu[postgres], err = cpuOfFamily(s.postmaster); err != nil {
		return r, err
	}
	r.cpu[redisRole], err = cpuOf(s.redisServer)
	r.at = time.Now()
	return r, err
}

// commandsIn is the sum of all calls, those from scripts too, but INFO's own.
func commandsIn(info string) (sum int64) {
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(line, ":calls=")
		if !ok || name == "cmdstat_info" {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		n, _ := strconv.ParseInt(calls, 10, 64)
		sum += n
	}
	return sum
}

// since is what units have taken between two readings.
func since(a, b reading, units int, seconds float64) sample {
	n := float64(max(1, units))
	out := sample{Units: units, Seconds: seconds, CPU: map[string]float64{}, WAL: float64(b.wal-a.wal) / n,
		Statements: float64(b.statements-a.statements) / n, Commands: float64(b.commands-a.commands) / n}
	if a.statements < 0 {
		out.Statements = -1
	}
	for role, used := range b.cpu {
		out.CPU[role] = float64((used - a.cpu[role]).Microseconds()) / n
	}
	return out
}

// measureChild lets a child begin, and measures until it answers.
func (s *stage) measureChild(ctx context.Context, p *process) (sample, error) {
	a, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	if err := p.tell(); err != nil {
		return sample{}, err
	}
	return s.finish(ctx, a, p)
}

// measureFromStart does the same from the moment at which the child has done
// its first unit: what it takes to start is left out.
func (s *stage) measureFromStart(ctx context.Context, p *process) (sample, error) {
	if err := p.tell(); err != nil {
		return sample{}, err
	}
	if err := p.awaitStart(); err != nil {
		return sample{}, err
	}
	a, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	return s.finish(ctx, a, p)
}

func (s *stage) finish(ctx context.Context, a reading, p *process) (sample, error) {
	done, err := p.result()
	if err != nil {
		return sample{}, err
	}
	b, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	out := since(a, b, done.Units, done.Seconds)
	out.Values = done.Values
	return out, nil
}
