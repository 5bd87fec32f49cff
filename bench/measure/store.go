package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// parallel calls do for every number below units, from so many goroutines.
func parallel(units, callers int, do func(i int) error) (time.Duration, error) {
	var next atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, callers)
	began := time.Now()
	for range callers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < units; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	select {
	case err := <-failed:
		return took, err
	default:
		return took, nil
	}
}

// storeJob has units accepted by the package store, and announced in Redis, as
// the API does it, without HTTP and without its checks.
func storeJob(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	ledger, err := store.Open(ctx, s.Database, 20)
	if err != nil {
		return childResult{}, err
	}
	defer func() { _ = ledger.Close() }()
	client, err := queue.Connect(s.Redis, slog.New(slog.DiscardHandler))
	if err != nil {
		return childResult{}, err
	}
	defer func() { _ = client.Close() }()
	units := make([]store.NewUnit, s.Units)
	for i := range units {
		units[i] = newUnit(i)
	}
	begin()
	took, err := parallel(len(units), s.Callers, func(i int) error {
		unit, _, err := ledger.Units.Accept(ctx, units[i])
		if err != nil {
			return err
		}
		return client.Enqueue(ctx, store.MessageOf(unit))
	})
	return childResult{Units: s.Units, Seconds: took.Seconds()}, err
}

func newUnit(i int) store.NewUnit {
	given := payload(i)
	var values map[string]string
	if err := json.Unmarshal(given, &values); err != nil {
		panic(err)
	}
	title := unitPrompt
	for key, value := range values {
		title = strings.ReplaceAll(title, "{"+key+"}", value)
	}
	return store.NewUnit{Unit: work.Unit{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: strings.ReplaceAll(title, "\n", " ")[:200],
		Spec: work.Spec{Backend: "mock", Prompt: unitPrompt, Payload: given, Labels: json.RawMessage(labels(i)),
			Timeout: 3600, IdleTimeout: 600, MissingKey: "fail", SessionPolicy: work.Resume, OnDenied: work.OnDeniedFail,
			Queue: work.DefaultQueue, Priority: work.DefaultPriority},
	}}
}

// packagesTemplate is a database with the schema of the packages in this program.
func (v *servers) packagesTemplate(ctx context.Context) (string, error) {
	name, err := v.createDatabase(ctx, "packages", "")
	if err != nil {
		return "", err
	}
	_, err = store.Migrate(ctx, v.url(name))
	return name, err
}
