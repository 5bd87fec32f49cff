package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// machine is where and when the figures were taken.
type machine struct {
	cpu, kernel, memory string
	before, after       string // load
	date                time.Time
	took                time.Duration
	piecework, against  string
	versions            []string
}

func loadNow() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

func fileValue(path, key string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func (m *measurement) look(ctx context.Context) machine {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	pg, rd := m.versions(ctx)
	all := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go"), "PostgreSQL " + pg, "Redis " + rd}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "github.com/riverqueue/river", "github.com/hibiken/asynq", "github.com/jackc/pgx/v5":
				all = append(all, strings.TrimPrefix(strings.TrimSuffix(d.Path, "/v5"), "github.com/")+" "+d.Version)
			}
		}
	}
	if m.node != "" {
		all = append(all, "BullMQ "+bullmqVersion)
	}
	out := machine{
		cpu:    fmt.Sprintf("%d × %s", runtime.NumCPU(), fileValue("/proc/cpuinfo", "model name")),
		kernel: strings.TrimSpace(string(release)), memory: fileValue("/proc/meminfo", "MemTotal"),
		before: loadNow(), date: time.Now().UTC(), piecework: version(ctx, m.binary), versions: all,
	}
	if m.against != "" {
		out.against = version(ctx, m.against)
	}
	return out
}

const preface = `# Performance

Written by ` + "`make bench`" + `. Piecework's processes and its peers do the same work on the same Postgres and the same Redis, one after the
other, in an order that changes with each repetition. A ratio is that of two subjects in the same repetition; a figure is the median of all
repetitions, with the least and the greatest. **Other machines have other figures; the ratios are what can be compared.**

- Postgres: fsync, synchronous_commit and full_page_writes on, shared_buffers 512 MB, max_wal_size 4 GB, checkpoints between measurements;
  reached by a unix socket. Redis: no persistence, reached by TCP on the loopback. What is only in Redis is not durable.
- A unit has a payload of 1 KB, a prompt that gives a title of about 200 bytes, and three labels. Piecework stores the result and the
  transcript of its mock backend; the peers a result of 200 bytes and a transcript of 4 KB.
- Processor time is user and system time from /proc, per unit, in microseconds: of the client (the caller, also that of a library), of
  the API process, of the worker processes (or the peer's workers), of Postgres with all its processes, and of Redis.
- Statements are those that Postgres counts in pg_stat_statements, BEGIN and COMMIT among them; Redis commands include those that scripts call.
`

func (m *measurement) markdown(w io.Writer, at machine) {
	fmt.Fprintf(w, "%s\n| | |\n|---|---|\n", preface)
	fmt.Fprintf(w, "| date | %s, %d repetitions, %s |\n", at.date.Format("2 January 2006 15:04 UTC"), m.repeat, at.took.Round(time.Second))
	fmt.Fprintf(w, "| machine | %s, %s, Linux %s; load %s before, %s after |\n", at.cpu, at.memory, at.kernel, at.before, at.after)
	fmt.Fprintf(w, "| Piecework | %s |\n", at.piecework)
	if at.against != "" {
		fmt.Fprintf(w, "| against | %s |\n", at.against)
	}
	fmt.Fprintf(w, "| versions | %s |\n", strings.Join(at.versions, ", "))
	for _, r := range m.rows {
		m.section(w, r)
	}
}

func (m *measurement) section(w io.Writer, r row) {
	var keys []key
	for _, s := range r.subjects {
		for _, against := range []bool{false, true} {
			if k := (key{r.name, s.name, against}); len(m.samples[k]) > 0 {
				keys = append(keys, k)
			}
		}
	}
	if len(keys) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## %s\n\n`%s`\n", r.title, r.name)
	m.throughput(w, keys)
	m.others(w, keys)
	all := m.comparisons(r)
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n| comparison | median [least..greatest] | goal | met |\n|---|---|---|---|\n")
	for _, c := range all {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", c.what, c.outcome, c.aim(), c.verdict())
	}
}

func (k key) name() string { return turn{subject{name: k.subject}, k.against}.name() }

func (m *measurement) throughput(w io.Writer, keys []key) {
	begun := false
	for _, k := range keys {
		rate := m.values(k, func(s sample) (float64, bool) { return s.figure(perSecond) })
		if rate.Count == 0 {
			continue
		}
		if !begun {
			begun = true
			fmt.Fprint(w, "\n| subject | units/s | CPU µs: client, api, worker, Postgres, Redis | WAL bytes | statements | Redis commands |\n|---|---|---|---|---|---|\n")
		}
		each := func(get func(sample) float64) string {
			v := m.values(k, func(s sample) (float64, bool) { return get(s), get(s) >= 0 })
			if v.Count == 0 {
				return "–"
			}
			return number(v.Median)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", k.name(), rate, m.costs(k), each(func(s sample) float64 { return s.WAL }),
			each(func(s sample) float64 { return s.Statements }), each(func(s sample) float64 { return s.Commands }))
	}
}

// others are figures that only some subjects have; times are in milliseconds.
func (m *measurement) others(w io.Writer, keys []key) {
	var names []string
	for _, k := range keys {
		for _, name := range m.valueNames(k) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	value := func(k key, name string) spread {
		return m.values(k, func(s sample) (float64, bool) { v, ok := s.Values[name]; return v, ok })
	}
	if len(names) > 12 { // a table that is too wide to read
		slices.Sort(names)
		fmt.Fprint(w, "\n| figure |")
		for _, k := range keys {
			fmt.Fprintf(w, " %s |", k.name())
		}
		fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(keys)))
		for _, name := range names {
			fmt.Fprintf(w, "| %s |", name)
			for _, k := range keys {
				fmt.Fprintf(w, " %s |", value(k, name))
			}
			fmt.Fprintln(w)
		}
		return
	}
	fmt.Fprintf(w, "\n| subject | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, k := range keys {
		fmt.Fprintf(w, "| %s |", k.name())
		for _, name := range names {
			fmt.Fprintf(w, " %s |", value(k, name))
		}
		fmt.Fprintln(w)
	}
}
