package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// fault is one way to break things. It returns the function that mends it, nil
// when it mends itself.
type fault struct {
	name   string
	weight int
	hit    func(w *world, r *rand.Rand, e *Event) (mend func())
}

// The faults. Each draws from r the same way whatever it meets, so that a seed
// keeps its schedule.
var faults = []fault{
	{"kill worker", 4, func(w *world, r *rand.Rand, e *Event) func() {
		return w.send(pickOne(r, w.of("worker")), syscall.SIGKILL, 0, e)
	}},
	// As when its machine is gone: nobody starts it again who would see that it
	// is dead.
	{"lose worker", 2, func(w *world, r *rand.Rand, e *Event) func() {
		return w.send(pickOne(r, w.of("worker")), syscall.SIGKILL, w.plan.Lease*3/2, e)
	}},
	{"freeze worker", 4, func(w *world, r *rand.Rand, e *Event) func() {
		return w.freeze(pickOne(r, w.of("worker")), between(r, 500*time.Millisecond, 5*w.plan.Lease/2), e)
	}},
	{"stop worker", 4, func(w *world, r *rand.Rand, e *Event) func() {
		return w.send(pickOne(r, w.of("worker")), syscall.SIGTERM, 0, e)
	}},
	{"kill api", 3, func(w *world, r *rand.Rand, e *Event) func() {
		return w.send(pickOne(r, w.of("api")), syscall.SIGKILL, 0, e)
	}},
	{"stop api", 2, func(w *world, r *rand.Rand, e *Event) func() {
		return w.send(pickOne(r, w.of("api")), syscall.SIGTERM, 0, e)
	}},
	{"freeze api", 1, func(w *world, r *rand.Rand, e *Event) func() {
		return w.freeze(pickOne(r, w.of("api")), between(r, 200*time.Millisecond, 2*time.Second), e)
	}},
	{"flush redis", 3, func(w *world, _ *rand.Rand, e *Event) func() {
		return w.tellRedis(e, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
	}},
	{"kill redis, memory lost", 3, func(w *world, r *rand.Rand, e *Event) func() {
		return w.killRedis(r, e, w.forgetful)
	}},
	{"kill redis, memory kept", 1, func(w *world, r *rand.Rand, e *Event) func() {
		w.remembering()
		return w.killRedis(r, e, func() {})
	}},
	{"pause redis", 2, func(w *world, r *rand.Rand, e *Event) func() {
		d := between(r, time.Second, 4*time.Second)
		e.Seconds = d.Seconds()
		return w.tellRedis(e, func(ctx context.Context, c *redis.Client) error {
			return c.Do(ctx, "CLIENT", "PAUSE", d.Milliseconds(), "ALL").Err()
		})
	}},
	{"cut redis clients", 2, func(w *world, _ *rand.Rand, e *Event) func() {
		return w.tellRedis(e, func(ctx context.Context, c *redis.Client) error {
			return c.ClientKillByFilter(ctx, "TYPE", "normal").Err()
		})
	}},
	{"redis refuses writes", 1, func(w *world, r *rand.Rand, e *Event) func() {
		replicas := func(n string) func() {
			return w.tellRedis(e, func(ctx context.Context, c *redis.Client) error {
				return c.ConfigSet(ctx, "min-replicas-to-write", n).Err()
			})
		}
		replicas("1")
		return w.after(between(r, time.Second, 4*time.Second), e, func() { replicas("0") })
	}},
	{"end postgres sessions", 3, func(w *world, _ *rand.Rand, e *Event) func() {
		e.Error = w.askPostgres(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		return nil
	}},
	{"crash postgres", 2, func(w *world, r *rand.Rand, e *Event) func() {
		w.postgres.Kill()
		return w.after(between(r, 0, 2*time.Second), e, w.postgres.Start)
	}},
	{"cut link", 2, func(w *world, r *rand.Rand, e *Event) func() {
		w.pickLink(r, e).sever()
		return nil
	}},
	{"lose answers", 4, func(w *world, r *rand.Rand, e *Event) func() {
		l := w.pickLink(r, e)
		l.set(func(l *link) { l.deaf = true })
		return w.after(between(r, 50*time.Millisecond, time.Second), e, func() { l.set(func(l *link) { l.deaf = false }) })
	}},
	{"partition", 3, func(w *world, r *rand.Rand, e *Event) func() {
		w.pickLink(r, e)
		return w.hold(between(r, 500*time.Millisecond, 2*w.plan.Lease), e)
	}},
	{"cut worker off from postgres", 2, func(w *world, r *rand.Rand, e *Event) func() {
		e.Target = pickOne(r, w.of("worker")).name + "/postgres"
		return w.hold(between(r, w.plan.Lease/2, 3*w.plan.Lease), e)
	}},
	{"slow link", 2, func(w *world, r *rand.Rand, e *Event) func() {
		l, delay := w.pickLink(r, e), between(r, 20*time.Millisecond, 400*time.Millisecond)
		l.set(func(l *link) { l.delay = delay })
		return w.after(between(r, time.Second, 4*time.Second), e, func() { l.set(func(l *link) { l.delay = 0 }) })
	}},
}

// planned is a fault and when it strikes.
type planned struct {
	at    time.Duration
	fault fault
	seed  uint64
}

// schedule draws the faults of a plan, spread evenly with some jitter.
func schedule(plan Plan, r *rand.Rand) []planned {
	var chosen []fault
	for _, f := range faults {
		for range f.weight {
			if len(plan.Only) == 0 || slices.Contains(plan.Only, f.name) {
				chosen = append(chosen, f)
			}
		}
	}
	list := make([]planned, plan.Faults)
	for i := range list {
		at := (float64(i) + r.Float64()) / float64(plan.Faults)
		list[i] = planned{time.Duration(at * float64(plan.Duration)), pickOne(r, chosen), r.Uint64()}
	}
	return list
}

// repair is a fault that is to be mended.
type repair struct {
	at   time.Time
	mend func()
}

// play breaks things as planned and returns when the time is over and all is
// mended.
func (w *world) play(list []planned) {
	began := time.Now()
	var repairs []repair
	for len(list) > 0 || len(repairs) > 0 {
		time.Sleep(5 * time.Millisecond)
		repairs = slices.DeleteFunc(repairs, func(r repair) bool {
			due := !time.Now().Before(r.at)
			if due {
				r.mend()
			}
			return due
		})
		if len(list) == 0 || time.Since(began) < list[0].at {
			continue
		}
		next := list[0]
		list = list[1:]
		e := Event{Kind: KindFault, Fault: next.fault.name, At: time.Now()}
		mend := next.fault.hit(w, rand.New(rand.NewPCG(next.seed, 0)), &e)
		if mend != nil {
			repairs = append(repairs, repair{e.At.Add(time.Duration(e.Seconds * float64(time.Second))), mend})
		}
		w.book.write(e)
	}
	time.Sleep(w.plan.Duration - time.Since(began))
}

// after makes mend due when d has passed.
func (w *world) after(d time.Duration, e *Event, mend func()) func() {
	e.Seconds = time.Since(e.At).Seconds() + d.Seconds()
	return mend
}

func (w *world) send(p *server, s syscall.Signal, pause time.Duration, e *Event) func() {
	e.Target, e.PID, e.Seconds = p.name, p.signal(s, pause), pause.Seconds()
	return nil
}

func (w *world) freeze(p *server, d time.Duration, e *Event) func() {
	e.Target, e.PID = p.name, p.signal(syscall.SIGSTOP, 0)
	return w.after(d, e, func() { p.signal(syscall.SIGCONT, 0) })
}

// hold lets nothing through the link that e names, in either direction.
func (w *world) hold(d time.Duration, e *Event) func() {
	l := w.links[e.Target]
	l.set(func(l *link) { l.held = true })
	return w.after(d, e, func() { l.set(func(l *link) { l.held = false }) })
}

// killRedis ends the server as a crash would and starts it again later.
func (w *world) killRedis(r *rand.Rand, e *Event, then func()) func() {
	w.redis.Stop()
	return w.after(between(r, 0, 3*time.Second), e, func() {
		w.redis.Start()
		then()
	})
}

// forgetful makes Redis keep nothing: at its next start it finds an empty log.
func (w *world) forgetful() {
	w.tellRedis(&Event{}, func(ctx context.Context, c *redis.Client) error {
		if err := c.FlushAll(ctx).Err(); err != nil {
			return err
		}
		return c.ConfigSet(ctx, "appendonly", "no").Err()
	})
}

// remembering makes Redis write down what it knows.
func (w *world) remembering() {
	w.tellRedis(&Event{}, func(ctx context.Context, c *redis.Client) error {
		err := c.ConfigSet(ctx, "appendonly", "yes").Err()
		for written := false; err == nil && !written; {
			var info string
			info, err = c.Info(ctx, "persistence").Result()
			written = strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
		}
		return err
	})
}

// tellRedis says something to the server itself, past all links.
func (w *world) tellRedis(e *Event, say func(context.Context, *redis.Client) error) func() {
	o, err := redis.ParseURL(w.redis.URL)
	if err != nil {
		panic(err)
	}
	o.MaxRetries = -1
	client := redis.NewClient(o)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := say(ctx, client); err != nil {
		e.Error = err.Error() // such as: it is down just now
	}
	return nil
}

// askPostgres says something to the server itself, past all links.
func (w *world) askPostgres(statement string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.postgres.URL)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return err.Error()
	}
	return ""
}

// pickLink chooses a process and one of its two links.
func (w *world) pickLink(r *rand.Rand, e *Event) *link {
	e.Target = fmt.Sprintf("%s/%s", pickOne(r, w.crew).name, pickOne(r, []string{"redis", "postgres"}))
	return w.links[e.Target]
}

func pickOne[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Float64()*float64(most-least))
}
