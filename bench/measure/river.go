package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// riverArgs is about 1 KB.
type riverArgs struct {
	Number int             `json:"number"`
	Sent   int64           `json:"sent,omitempty"`
	Given  json.RawMessage `json:"given"`
}

func (riverArgs) Kind() string { return "unit" }

type riverClient = river.Client[pgx.Tx]

// openRiver has 50 workers that fetch every 2 ms if need be, when there is
// work: its defaults are a limit of the rate, and no measure of speed.
func openRiver(ctx context.Context, url string, conns int32, works *river.Workers) (*riverClient, *pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	options := &river.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if works != nil {
		options.Workers = works
		options.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}}
		options.FetchCooldown = 2 * time.Millisecond
	}
	c, err := river.NewClient(riverpgxv5.New(pool), options)
	return c, pool, err
}

func riverInsert(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	c, _, err := openRiver(ctx, s.Database, 20, nil)
	if err != nil {
		return childResult{}, err
	}
	all := riverUnits(s.Units)
	begin()
	took, err := parallel(len(all), s.Callers, func(i int) error {
		_, err := c.Insert(ctx, all[i], nil)
		return err
	})
	return childResult{Units: s.Units, Seconds: took.Seconds()}, err
}

func riverUnits(n int) []riverArgs {
	all := make([]riverArgs, n)
	for i := range all {
		all[i] = riverArgs{Number: i, Given: payload(i)}
	}
	return all
}

// oneCall is how many units come in one call.
const oneCall = 5000

func riverInsertMany(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	c, _, err := openRiver(ctx, s.Database, 4, nil)
	if err != nil {
		return childResult{}, err
	}
	all := make([]river.InsertManyParams, s.Units)
	for i, args := range riverUnits(s.Units) {
		all[i] = river.InsertManyParams{Args: args}
	}
	begin()
	began := time.Now()
	for piece := range slices.Chunk(all, oneCall) {
		if _, err := c.InsertManyFast(ctx, piece); err != nil {
			return childResult{}, err
		}
	}
	return childResult{Units: s.Units, Seconds: time.Since(began).Seconds()}, nil
}

// riverWorker stores a result and completes its job in one transaction.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	pool *pgxpool.Pool
	done func()
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, "INSERT INTO results (job, result, transcript) VALUES ($1, $2, $3)", job.ID, result(job.Args.Number), transcript)
	if err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	w.done()
	return nil
}

func riverDrain(ctx context.Context, s childSettings, begin, started func()) (childResult, error) {
	count := newCounter(s.Units, started)
	w := &riverWorker{done: count.add}
	works := river.NewWorkers()
	river.AddWorker(works, w)
	c, pool, err := openRiver(ctx, s.Database, 60, works)
	if err != nil {
		return childResult{}, err
	}
	w.pool = pool
	begin()
	if err := c.Start(ctx); err != nil {
		return childResult{}, err
	}
	return count.wait(), nil
}

// counter counts units that are done, and knows when the first and the last were.
type counter struct {
	units   int64
	done    atomic.Int64
	began   time.Time
	started func()
	over    chan time.Time
}

func newCounter(units int, started func()) *counter {
	return &counter{units: int64(units), started: started, over: make(chan time.Time, 1)}
}

func (c *counter) add() {
	switch c.done.Add(1) {
	case 1:
		c.began = time.Now()
		c.started()
	case c.units:
		c.over <- time.Now()
	}
}

func (c *counter) wait() childResult {
	end := <-c.over
	return childResult{Units: int(c.units) - 1, Seconds: end.Sub(c.began).Seconds()}
}

// pickupWorker tells how long a job waited.
type pickupWorker struct {
	river.WorkerDefaults[riverArgs]
	waited chan time.Duration
}

func (w *pickupWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.waited <- time.Duration(time.Now().UnixNano() - job.Args.Sent)
	return nil
}

// riverLatency inserts one job at a time. Its worker listens for notifications.
func riverLatency(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	w := &pickupWorker{waited: make(chan time.Duration)}
	works := river.NewWorkers()
	river.AddWorker(works, w)
	c, _, err := openRiver(ctx, s.Database, 20, works)
	if err != nil {
		return childResult{}, err
	}
	if err := c.Start(ctx); err != nil {
		return childResult{}, err
	}
	all := riverUnits(s.Units)
	time.Sleep(time.Second) // until it listens
	begin()
	return oneByOne(s.Units, func(i int) (time.Duration, error) {
		all[i].Sent = time.Now().UnixNano()
		if _, err := c.Insert(ctx, all[i], nil); err != nil {
			return 0, err
		}
		return <-w.waited, nil
	})
}

// oneByOne tries one unit after another, with pauses that fit no period.
func oneByOne(units int, try func(i int) (time.Duration, error)) (childResult, error) {
	times := make([]time.Duration, units)
	began := time.Now()
	for i := range times {
		time.Sleep(5*time.Millisecond + rand.N(30*time.Millisecond))
		var err error
		if times[i], err = try(i); err != nil {
			return childResult{}, err
		}
	}
	return childResult{Units: units, Seconds: time.Since(began).Seconds(), Values: quantiles("start ", times)}, nil
}
