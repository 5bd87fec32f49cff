package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// crewRow counts what many worker processes ask, when nothing happens and per unit.
// It is measured by its name only: a hundred take some gigabytes of memory.
func crewRow() row {
	r := row{name: "crew", title: "Many worker processes: at rest for 20 s, then 3,000 units with 64 slots in all, or one in each process", most: 1}
	for _, n := range []int{1, 2, 10, 100} {
		r.subjects = append(r.subjects, subject{fmt.Sprintf("worker processes: %d", n), product, crew(n)})
	}
	return r
}

func crew(processes int) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		server, err := s.startAPI()
		if err != nil {
			return sample{}, err
		}
		var memory float64
		for range processes {
			w, err := s.startWorker(max(1, 64/processes))
			if err != nil {
				return sample{}, err
			}
			defer s.drop(w)
		}
		pause(ctx, 10*time.Second)
		a, err := s.read(ctx)
		if err != nil {
			return sample{}, err
		}
		pause(ctx, 20*time.Second)
		b, err := s.read(ctx)
		if err != nil {
			return sample{}, err
		}
		for _, p := range s.processes {
			if p.role == worker {
				memory += residentMB(p.cmd.Process.Pid) / float64(processes)
			}
		}
		var connections int
		if err := s.conn.QueryRow(ctx, "SELECT /* measure */ count(*) FROM pg_stat_activity WHERE datname = current_database()").Scan(&connections); err != nil {
			return sample{}, err
		}
		seconds := b.at.Sub(a.at).Seconds()
		values := map[string]float64{
			"rest: statements/s": float64(b.statements-a.statements) / seconds, "rest: Redis commands/s": float64(b.commands-a.commands) / seconds,
			"rest: WAL bytes/s": float64(b.wal-a.wal) / seconds, "MB of a worker process": memory, "connections to Postgres": float64(connections),
		}
		for _, role := range []string{worker, postgres, redisRole} {
			values["rest: CPU ms/s "+role] = (b.cpu[role] - a.cpu[role]).Seconds() * 1000 / seconds
		}
		const units = 3000
		p, err := s.startChild(client, "http", childSettings{URL: server.url, Units: units, Callers: 32})
		if err != nil {
			return sample{}, err
		}
		if a, err = s.read(ctx); err != nil {
			return sample{}, err
		}
		if err := p.tell(); err != nil {
			return sample{}, err
		}
		if _, err := p.result(); err != nil {
			return sample{}, err
		}
		if err := s.poll(ctx, 20*time.Millisecond, allFinished); err != nil {
			return sample{}, err
		}
		if b, err = s.read(ctx); err != nil {
			return sample{}, err
		}
		out := since(a, b, units, b.at.Sub(a.at).Seconds())
		out.Values = values
		fmt.Println("load", loadNow())
		return out, nil
	}
}

// residentMB is the memory of a process without what it has mapped of its binary.
func residentMB(pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return math.NaN()
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kb / 1024
}
