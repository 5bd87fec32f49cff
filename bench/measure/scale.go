package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// scaleRow looks at how a ledger with many units that are over compares with an
// empty one. It takes long and much of the disk, so it is measured by its name only.
func scaleRow(units int) row {
	return row{
		name: "scale", title: fmt.Sprintf("A ledger with %d units that are over beside an empty one; times in ms", units), most: 1, limit: time.Hour,
		subjects: []subject{
			{"empty", product, scale(0)},
			{fmt.Sprintf("%d units", units), product, scale(units)},
		},
	}
}

// The units that are run while lists are read: so many a second, for so long.
const (
	liveRate    = 500
	liveSeconds = 20
)

func scale(units int) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		// The disk has to hold the tables, not four gigabytes of log as well.
		if _, err := s.admin.Exec(ctx, "ALTER SYSTEM SET max_wal_size = '1GB'"); err != nil {
			return sample{}, err
		}
		if _, err := s.admin.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
			return sample{}, err
		}
		out := scaleFigures{stage: s, units: units, values: map[string]float64{}}
		ledger, err := store.Open(ctx, s.database, 20)
		if err != nil {
			return sample{}, err
		}
		defer func() { _ = ledger.Close() }()
		for _, part := range []func(context.Context, *store.Store) error{out.seed, out.statements, out.reads, out.finish, out.remove} {
			if err := part(ctx, ledger); err != nil {
				return sample{}, err
			}
		}
		return sample{Values: out.values}, nil
	}
}

// scaleFigures are taken one after the other from one ledger.
type scaleFigures struct {
	*stage
	units  int
	values map[string]float64
}

func (f *scaleFigures) set(name string, v float64) {
	f.values[name] = v
	fmt.Printf("%-50s %10.2f  load %s\n", name, v, loadNow())
}

// seed makes the units and counts them for the overview, as the reconciler would.
func (f *scaleFigures) seed(ctx context.Context, ledger *store.Store) error {
	if f.units > 0 {
		if err := testkit.Seed(ctx, f.database, f.units); err != nil {
			return err
		}
		var bytes int64
		if err := f.conn.QueryRow(ctx, "SELECT pg_database_size(current_database())").Scan(&bytes); err != nil {
			return err
		}
		f.set("bytes of the database per unit", float64(bytes)/float64(f.units))
	}
	began := time.Now()
	for more := true; more; {
		var err error
		if more, err = ledger.Overview.Tally(ctx, work.DefaultTenant); err != nil {
			return err
		}
	}
	f.set("tally 32 days, s", time.Since(began).Seconds())
	return nil
}

// statements are what the reconciler and the worker processes ask each second.
func (f *scaleFigures) statements(ctx context.Context, ledger *store.Store) error {
	for name, ask := range map[string]func() error{
		"pending":       func() error { _, err := ledger.Reconciler.Pending(ctx, store.CheckCursor{}); return err },
		"expire leases": func() error { _, err := ledger.Runs.ExpireLeases(ctx); return err },
		"unchecked":     func() error { _, _, err := ledger.Queues.Unchecked(ctx, store.CheckCursor{}, 500); return err },
		"due": func() error {
			_, err := ledger.Queues.Due(ctx, []string{"default"}, []string{"mock"}, nil, 50)
			return err
		},
		"changed units":   func() error { return changed(ctx, ledger) },
		"queues":          func() error { _, err := ledger.Queues.List(ctx, work.DefaultTenant); return err },
		"fold lost":       func() error { _, err := ledger.Transcripts.FoldLost(ctx, 50); return err },
		"tally, a minute": func() error { _, err := ledger.Overview.Tally(ctx, work.DefaultTenant); return err },
	} {
		times, err := timesOf(50, ask)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f.take("statement: "+name, times)
	}
	return nil
}

func changed(ctx context.Context, ledger *store.Store) error {
	now, err := ledger.Events.Now(ctx)
	if err == nil {
		_, _, err = ledger.Events.Changed(ctx, now, 100)
	}
	return err
}

func timesOf(n int, do func() error) ([]time.Duration, error) {
	times := make([]time.Duration, 0, n)
	for i := range n + 1 {
		began := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		if i > 0 { // the first fills caches
			times = append(times, time.Since(began))
		}
	}
	return times, nil
}

func (f *scaleFigures) take(name string, times []time.Duration) {
	for what, v := range quantiles(name+" ", times) {
		f.set(what, v)
	}
}

// reads asks the API for lists and pages, at rest and while units are run.
func (f *scaleFigures) reads(ctx context.Context, _ *store.Store) error {
	server, err := f.startAPI()
	if err != nil {
		return err
	}
	w, err := f.startWorker(64)
	if err != nil {
		return err
	}
	// The unit in the middle: with 1,000,000 units the page after it lies 500,000 deep.
	middle := uuid.Max.String()
	if f.units > 0 {
		if err := f.conn.QueryRow(ctx, "SELECT id::text FROM work_units WHERE created_at < now() - interval '45 days' ORDER BY created_at DESC LIMIT 1").Scan(&middle); err != nil {
			return err
		}
	}
	paths := map[string]string{
		"list": "/work-units?limit=50", "list, state failed": "/work-units?status=failed", "list, backend codex": "/work-units?backend=codex",
		"list, class crash": "/work-units?class=crash", "list, label of 1 in 1,000": "/work-units?label=customer:c-17", "list, label of 1 in 20": "/work-units?label=project:project-3",
		"list, title of 1 in 10,000": "/work-units?q=zeppelin", "list, title of 1 in 8": "/work-units?q=harbour", "list, title of none": "/work-units?q=" + url.QueryEscape("no such words"),
		"/": "/", "/?q=zeppelin": "/?q=zeppelin", "/?q=harbour": "/?q=harbour", "/?backend=codex": "/?backend=codex", "/?label=project:project-3": "/?label=project:project-3",
		"/overview": "/overview", "/stats": "/stats", "/stats?window=30d": "/stats?window=30d",
	}
	if f.units > 0 {
		paths["page of a unit"] = "/units/" + middle
		paths["a unit"] = "/work-units/" + middle
		for name, path := range maps.Clone(paths) {
			if strings.HasPrefix(name, "list") {
				paths["deep "+name] = path + "&after=" + middle
			}
		}
	}
	ask := func(when string, names ...string) error {
		if len(names) == 0 {
			for name := range paths {
				names = append(names, name)
			}
		}
		for _, name := range names {
			if paths[name] == "" {
				return fmt.Errorf("there is no %q to ask for", name)
			}
			times, err := timesOf(40, func() error { return get(ctx, server.url+paths[name]) })
			if err != nil {
				return err
			}
			f.take(name+when, times)
		}
		return nil
	}
	if err := ask(""); err != nil {
		return err
	}
	p, err := f.startChild(client, "http", childSettings{URL: server.url, Units: liveRate * liveSeconds, Callers: 32, Rate: liveRate})
	if err != nil {
		return err
	}
	if err := p.tell(); err != nil {
		return err
	}
	time.Sleep(settle)
	often := []string{"list", "list, state failed", "list, backend codex", "list, title of 1 in 10,000", "/", "/overview", "/stats"}
	if f.units > 0 {
		often = append(often, "deep list", "page of a unit")
	}
	if err := ask(fmt.Sprintf(", at %d units/s", liveRate), often...); err != nil {
		return err
	}
	done, err := p.result()
	if err != nil {
		return err
	}
	f.set("units/s accepted and run meanwhile", float64(done.Units)/done.Seconds)
	f.set("accept p99 meanwhile", done.Values["answer p99"])
	if err := f.poll(ctx, 20*time.Millisecond, allFinished); err != nil {
		return err
	}
	f.drop(p)
	f.drop(w)
	f.drop(server)
	return nil
}

// finish measures how fast units are accepted, and then claimed and finished.
func (f *scaleFigures) finish(ctx context.Context, _ *store.Store) error {
	const units = 6000
	server, err := f.startAPI()
	if err != nil {
		return err
	}
	p, err := f.startChild(client, "http", childSettings{URL: server.url, Units: units, Callers: 64})
	if err != nil {
		return err
	}
	accepted, err := f.measureChild(ctx, p)
	if err != nil {
		return err
	}
	f.drop(p)
	f.drop(server)
	f.cost("accept", accepted)
	a, err := f.read(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	w, err := f.startWorker(64)
	if err != nil {
		return err
	}
	if err := f.poll(ctx, 20*time.Millisecond, allFinished); err != nil {
		return err
	}
	took := time.Since(began)
	b, err := f.read(ctx)
	if err != nil {
		return err
	}
	f.drop(w)
	f.cost("claim and finish", since(a, b, units, took.Seconds()))
	return nil
}

func (f *scaleFigures) cost(what string, s sample) {
	f.set(what+", units/s", s.perSecond())
	f.set(what+", Postgres µs per unit", s.CPU[postgres])
	f.set(what+", WAL bytes per unit", s.WAL)
}

// remove measures how fast units that are old are removed, without the rests that
// the janitor makes.
func (f *scaleFigures) remove(ctx context.Context, ledger *store.Store) error {
	if f.units == 0 {
		return nil
	}
	a, err := f.read(ctx)
	if err != nil {
		return err
	}
	began, removed := time.Now(), 0
	for time.Since(began) < 15*time.Second {
		n, err := ledger.Retention.PruneUnits(ctx, work.DefaultTenant, time.Now().Add(-45*24*time.Hour), 1000)
		if err != nil {
			return err
		}
		removed += n
	}
	b, err := f.read(ctx)
	if err != nil {
		return err
	}
	f.cost("remove", since(a, b, removed, b.at.Sub(a.at).Seconds()))
	return nil
}
