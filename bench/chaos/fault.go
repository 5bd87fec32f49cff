package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	{"stop and kill worker", 1, func(w *world, r *rand.Rand, e *Event) func() {
		p := pickOne(r, w.of("worker"))
		w.send(p, syscall.SIGTERM, 0, e)
		return w.after(between(r, 0, 2*time.Second), e, func() {
			if p.pid() == e.PID {
				p.signal(syscall.SIGKILL, 0)
			}
		})
	}},
	{"freeze agent", 2, func(w *world, r *rand.Rand, e *Event) func() {
		p := pickOne(r, w.of("worker"))
		e.Target, e.PID = p.name, p.pid()
		d, which := between(r, 500*time.Millisecond, 4*time.Second), r.Int()
		frozen := 0
		if all := agentsOf(map[int]bool{e.PID: true}); len(all) > 0 {
			frozen = all[which%len(all)]
			_ = syscall.Kill(frozen, syscall.SIGSTOP) // it may have ended just now
		}
		return w.after(d, e, func() {
			if frozen != 0 && slices.Contains(agentsOf(map[int]bool{e.PID: true}), frozen) {
				_ = syscall.Kill(frozen, syscall.SIGCONT)
			}
		})
	}},
	{"fill worker disk", 2, func(w *world, r *rand.Rand, e *Event) func() {
		e.Target = w.busyFrom(r.IntN(workers)).name
		return w.fill(between(r, 500*time.Millisecond, 5*time.Second), e, func() {})
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
	{"kill redis and its memory", 3, func(w *world, r *rand.Rand, e *Event) func() {
		return w.killRedis(r, e, w.forgetful)
	}},
	{"kill redis alone", 1, func(w *world, r *rand.Rand, e *Event) func() {
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
		return w.configureRedis(r, e, "min-replicas-to-write", "1", "0")
	}},
	{"redis is out of memory", 1, func(w *world, r *rand.Rand, e *Event) func() {
		return w.configureRedis(r, e, "maxmemory", "1", "0")
	}},
	{"evict from redis", 1, func(w *world, _ *rand.Rand, e *Event) func() {
		return w.tellRedis(e, func(ctx context.Context, c *redis.Client) error {
			for range 10 {
				key, err := c.RandomKey(ctx).Result()
				if err == nil {
					err = c.Del(ctx, key).Err()
				}
				if errors.Is(err, redis.Nil) {
					return nil // nothing is left
				} else if err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{"end postgres sessions", 3, func(w *world, _ *rand.Rand, e *Event) func() {
		e.Error = w.askPostgres(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`, 0)
		return nil
	}},
	{"crash postgres", 2, func(w *world, r *rand.Rand, e *Event) func() {
		w.killPostgres()
		return w.after(between(r, 0, 2*time.Second), e, w.startPostgres)
	}},
	{"keep postgres down", 1, func(w *world, r *rand.Rand, e *Event) func() {
		w.killPostgres()
		return w.after(between(r, w.plan.Lease, 2*w.plan.Lease), e, w.startPostgres)
	}},
	{"fill postgres disk", 2, func(w *world, r *rand.Rand, e *Event) func() {
		e.Target = "postgres"
		return w.fill(between(r, 500*time.Millisecond, 4*time.Second), e, w.startPostgres)
	}},
	{"lock tables", 1, func(w *world, r *rand.Rand, e *Event) func() {
		d := between(r, time.Second, 2*w.plan.Lease)
		held := make(chan struct{})
		go func() {
			defer close(held)
			w.askPostgres(fmt.Sprintf("BEGIN; LOCK TABLE work_units, worker_runs; SELECT pg_sleep(%g); COMMIT", d.Seconds()), d)
		}()
		return w.after(d, e, func() { <-held })
	}},
	{"cut link", 2, func(w *world, r *rand.Rand, e *Event) func() {
		w.pickLink(r, e).sever()
		return nil
	}},
	{"lose answers", 4, func(w *world, r *rand.Rand, e *Event) func() {
		l := w.pickLink(r, e)
		l.set(func(l *link) { l.deaf = true })
		d := between(r, 50*time.Millisecond, time.Second)
		if r.IntN(5) == 0 {
			d += 2 * w.plan.Lease
		}
		return w.after(d, e, func() { l.set(func(l *link) { l.deaf = false }) })
	}},
	{"partition", 3, func(w *world, r *rand.Rand, e *Event) func() {
		w.pickLink(r, e)
		return w.hold(between(r, 500*time.Millisecond, 2*w.plan.Lease), e)
	}},
	{"cut worker off from postgres", 2, func(w *world, r *rand.Rand, e *Event) func() {
		e.Target = pickOne(r, w.of("worker")).name + "/postgres"
		return w.hold(between(r, w.plan.Lease/2, 3*w.plan.Lease), e)
	}},
	// As when a firewall forgets: nobody is told that the connections are gone,
	// and they never work again.
	{"half-open connections", 3, func(w *world, r *rand.Rand, e *Event) func() {
		l := w.pickLink(r, e)
		l.swallow(true)
		return w.after(between(r, 200*time.Millisecond, 2*w.plan.Lease), e, func() { l.swallow(false) })
	}},
	{"freeze postgres", 2, func(w *world, r *rand.Rand, e *Event) func() {
		w.freezePostgres()
		return w.after(between(r, 500*time.Millisecond, 2*w.plan.Lease), e, w.thawPostgres)
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

// schedule draws the faults of a plan, spread evenly with some jitter: each kind
// once, in any order, and then by weight.
func schedule(plan Plan, r *rand.Rand) []planned {
	var each, weighted []fault
	for _, f := range faults {
		if len(plan.Only) == 0 || slices.Contains(plan.Only, f.name) {
			each = append(each, f)
			weighted = append(weighted, slices.Repeat([]fault{f}, f.weight)...)
		}
	}
	r.Shuffle(len(each), func(i, j int) { each[i], each[j] = each[j], each[i] })
	list := make([]planned, plan.Faults)
	for i := range list {
		at := (float64(i) + r.Float64()) / float64(plan.Faults)
		list[i] = planned{time.Duration(at * float64(plan.Duration)), pickOne(r, weighted), r.Uint64()}
		if i < len(each) {
			list[i].fault = each[i]
		}
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

// fill leaves a disk no room, and mends what came of it when it has room again.
func (w *world) fill(d time.Duration, e *Event, mend func()) func() {
	disk := w.disks[e.Target]
	if disk == nil {
		e.Error = "skipped: it has no disk of its own"
		return nil
	}
	if err := disk.fill(); err != nil {
		e.Error = err.Error()
	}
	return w.after(d, e, func() {
		disk.free()
		mend()
	})
}

// busyFrom is the first worker process from the nth on that runs an agent, the nth
// when none does.
func (w *world) busyFrom(n int) *server {
	crew := w.of("worker")
	for i := range crew {
		if p := crew[(n+i)%len(crew)]; len(agentsOf(map[int]bool{p.pid(): true})) > 0 {
			return p
		}
	}
	return crew[n%len(crew)]
}

// startPostgres starts the server, which may have ended by itself, on a disk
// with room.
func (w *world) startPostgres() {
	if d := w.disks["postgres"]; d != nil {
		d.free()
	}
	w.thawPostgres()
	w.postgres.Start()
}

// configureRedis changes a setting for a while. A server that was started anew
// has forgotten it.
func (w *world) configureRedis(r *rand.Rand, e *Event, name, broken, mended string) func() {
	set := func(value string) {
		w.tellRedis(e, func(ctx context.Context, c *redis.Client) error { return c.ConfigSet(ctx, name, value).Err() })
	}
	set(broken)
	return w.after(between(r, time.Second, 4*time.Second), e, func() { set(mended) })
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

// tellLimit is long, so that what is to be mended is, also when Redis is paused.
const tellLimit = time.Minute

// tellRedis says something to the server itself, past all links.
func (w *world) tellRedis(e *Event, say func(context.Context, *redis.Client) error) func() {
	o, err := redis.ParseURL(w.redis.URL)
	if err != nil {
		panic(err)
	}
	o.MaxRetries = -1
	client := redis.NewClient(o)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), tellLimit)
	defer cancel()
	if err := say(ctx, client); err != nil {
		e.Error = err.Error() // such as: it is down just now
	}
	return nil
}

// askPostgres says something to the server itself, past all links.
func (w *world) askPostgres(statement string, takes time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), takes+2*time.Second)
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

// freezePostgres stops the server with all its processes: its connections stay
// open, and new ones are taken by the kernel. A server that is down is left so.
func (w *world) freezePostgres() {
	text, err := os.ReadFile(filepath.Join(w.data, "postmaster.pid"))
	line, _, _ := strings.Cut(string(text), "\n")
	server, wrong := strconv.Atoi(line)
	if err != nil || wrong != nil || syscall.Kill(server, syscall.SIGSTOP) != nil {
		return
	}
	w.frozen = append(w.frozen, server)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", server, server))
	for _, child := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil && syscall.Kill(pid, syscall.SIGSTOP) == nil {
			w.frozen = append(w.frozen, pid)
		}
	}
}

func (w *world) thawPostgres() {
	for _, pid := range w.frozen {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	w.frozen = nil
}

// killPostgres ends the server as a crash would, also one that is frozen.
func (w *world) killPostgres() {
	w.thawPostgres()
	w.postgres.Kill()
}
