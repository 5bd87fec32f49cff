package chaos

// plant is a change of a line or two of Piecework, the faults that make it
// matter under the load, and the promises that are then broken.
type plant struct {
	name     string
	edits    []edit
	faults   []string
	promises []string // one of them
	stretch  float64  // of the units' times
}

// edit replaces what is there exactly once.
type edit struct{ file, was, becomes string }

// The bugs that the load and the checker must find.
var plants = []plant{
	{
		"no fence", []edit{{"store/finish.go",
			"l.state = 'running' AND l.run_count = f.attempt AND r.status = 'running' AS mine", "true AS mine"}},
		[]string{"freeze worker"}, []string{"final is final", "one result"}, 1,
	},
	{
		"no reconciler", []edit{{"cmd/piecework/serve.go",
			"(&jobs.Reconciler{Store: ledger, Queue: bell, Log: log}).Run(until)", "<-until.Done()"}},
		[]string{"kill worker", "flush redis"}, []string{"accepted ends"}, 1,
	},
	{
		"run closed before its agents are dead", []edit{
			{"internal/backend/cli/cli.go", "child.Stop(l.stop)\n\t\t\treturn cause", "return cause"},
			{"internal/backend/cli/cli.go", "state, swept := child.Close()\n\t<-out.done\n\t<-drained\n\tchild.Release()",
				"var state *process.State\n\tvar swept error\n\ttime.AfterFunc(5*time.Second, func() { child.Close(); <-out.done; <-drained; child.Release() })"},
		},
		[]string{"stop worker"}, []string{"closed means dead", "one live tree"}, 1,
	},
	{
		"cancel not heard", []edit{
			{"handlers/upkeep/owned.go", "if o.Cancel {", "if false {"},
		},
		[]string{"cut link"}, []string{"accepted ends"}, 1,
	},
	{
		"cancel forgotten when a run is lost", []edit{{"store/reconcile.go",
			"u.cancel_requested_at IS NOT NULL AS cancelled", "false AS cancelled"}},
		[]string{"kill worker"}, []string{"cancel holds", "cancel is kept", "accepted ends"}, 1,
	},
	{
		"secrets not taken out", []edit{{"handlers/handlers.go",
			"redact: transcript.Redactor(o.Secrets)", "redact: transcript.Redactor(nil)"}},
		[]string{"cut link"}, []string{"nothing leaks"}, 1,
	},
	{
		"idempotency key ignored", []edit{{"api/unit.go",
			"n.IdempotencyKey, n.BodyHash = key, hash", ""}},
		[]string{"kill api"}, []string{"one unit per key"}, 1,
	},
	{
		"lease not watched by its holder", []edit{{"handlers/upkeep/heartbeat.go",
			"silent > h.Lease-h.margin()", "silent > time.Hour"}, {"internal/process/supervisor_linux.go",
			"k.alarm == never || !k.lease.Lapsed()", "true"}},
		[]string{"cut worker off from postgres"}, []string{"one live tree"}, 5,
	},
	{
		"lease not watched by keepers", []edit{{"internal/process/supervisor_linux.go",
			"k.alarm == never || !k.lease.Lapsed()", "true"}},
		[]string{"freeze worker"}, []string{"one live tree"}, 5,
	},
	{
		"what an agent leaves behind lives on", []edit{
			{"internal/process/tree.go", "endAll(look(), end)", "endAll(nil, end)"},
			{"internal/process/supervisor.go", "len(k.kinds) == 0", "len(k.kinds) >= 0"},
		},
		[]string{"stop worker"}, []string{"no orphans", "one live tree", "closed means dead"}, 1, // another's worker process on this machine may sweep the orphans
	},
	{
		"shutdown counts as failure", []edit{{"handlers/outcome.go",
			"f.Status, f.Next, f.Losses, f.Error = work.RunReleased", "f.Status, f.Next, f.Failures, f.Error = work.RunReleased"}},
		[]string{"stop worker"}, []string{"failures are failures"}, 1,
	},
	{
		"full disk counts as failure", []edit{{"handlers/outcome.go", "\t\treturn errDiskFull\n", "\t\treturn nil\n"}},
		[]string{"fill worker disk"}, []string{"failures are failures"}, 1,
	},
	{
		"transcript cut", []edit{{"handlers/recorder.go",
			"steps := r.steps.Steps()", "steps := r.steps.Steps()[:1]"}},
		[]string{"cut link"}, []string{"transcripts are kept"}, 1,
	},
	{
		"delivery written after the end", []edit{
			{"migrations/0013_webhooks.sql", "IF NEW.callback_url IS NULL AND NOT EXISTS", "IF NEW.callback_url IS NOT NULL OR NOT EXISTS"},
			{"store/finish.go", "verdicts[run.ID] = Recorded\n", "verdicts[run.ID] = Recorded\n" + `time.AfterFunc(time.Second, func() {
				_, _ = s.db.Exec("SELECT announce(tenant, 'work_unit.' || state, jsonb_build_object('id', id), id, batch_id, callback_url) FROM work_units u " +
					"WHERE final_run = $1 AND callback_url IS NOT NULL AND NOT EXISTS (SELECT FROM webhook_deliveries WHERE unit_id = u.id)", run.ID)
			})` + "\n"},
		},
		[]string{"kill worker"}, []string{"ends are told"}, 1,
	},
	{
		"delivery noted before it is sent", []edit{{"handlers/upkeep/delivery.go",
			"answer := d.Sender.Send(", "_, _ = d.record(store.Try{ID: one.ID, Attempt: one.Attempts, Delivered: true})\nanswer := d.Sender.Send("}},
		[]string{"cut link"}, []string{"ends are told"}, 1,
	},
	{
		"another body at each try", []edit{{"handlers/upkeep/delivery.go",
			"Body: []byte(d.Redact(string(one.Body))),", `Body: fmt.Appendf(one.Body, "%*s", one.Attempts, ""),`}},
		[]string{"cut link"}, []string{"messages are true"}, 1,
	},
	{
		"signed by another secret", []edit{{"handlers/upkeep/delivery.go",
			"Secrets: one.Secrets.All()", "Secrets: []string{webhook.NewSecret()}"}},
		[]string{"cut link"}, []string{"messages are true"}, 1,
	},
	{
		"pause loses what it takes back", []edit{{"store/advance.go",
			"WHERE batch_id = $1 AND held AND state = 'queued'\n\t\t\tORDER BY", "WHERE batch_id = $1 AND held AND dispatch = 1 AND state = 'queued'\n\t\t\tORDER BY"}},
		[]string{"cut link"}, []string{"accepted ends", "batches add up"}, 1,
	},
	{
		"batch over before its units", []edit{{"store/advance.go",
			"NOT held AND state IN ('queued', 'running', 'waiting')", "NOT held AND state = 'queued'"}},
		[]string{"cut link"}, []string{"batches add up"}, 1,
	},
	{
		"idempotency key of a batch ignored", []edit{{"api/batch.go",
			"n.IdempotencyKey, n.BodyHash = key, hash", ""}},
		[]string{"kill api"}, []string{"batches are whole", "one unit per key"}, 1,
	},
	{
		"accepted before it is on disk", []edit{{"store/pg/db.go",
			"q.Set(\"binary_parameters\", \"yes\")", "q.Set(\"binary_parameters\", \"yes\")\n\tq.Set(\"synchronous_commit\", \"off\")"}},
		[]string{"crash postgres"}, []string{"accepted is kept"}, 1,
	},
	{
		"two units of one request", []edit{{"store/accept.go",
			"in = append(in, row)", "in = append(in, row)\n\t\tif n.BatchID == nil {\n\t\t\tagain := n.row()\n\t\t\tagain.ID, again.IdempotencyKey = uuid.Must(uuid.NewV7()), nil\n\t\t\tin = append(in, again)\n\t\t}"}},
		[]string{"kill api"}, []string{"one unit per request"}, 1,
	},
	{
		"run number left out after a loss", []edit{{"store/run.go",
			"run_count = u.run_count + 1,", "run_count = u.run_count + 1 + least(u.losses, 1),"}},
		[]string{"stop worker"}, []string{"runs are numbered"}, 1,
	},
	{
		"lost run not closed", []edit{
			{"migrations/0001_unit.sql", "CREATE UNIQUE INDEX worker_runs_one_live", "CREATE INDEX worker_runs_one_live"},
			{"migrations/0001_unit.sql", "CHECK ((status = 'running') = (completed_at IS NULL))", "CHECK (completed_at IS NOT NULL OR status = 'running')"},
			{"store/reconcile.go", "UPDATE worker_runs r SET status = 'lost', given_up", "UPDATE worker_runs r SET status = CASE WHEN attempt = 1 THEN 'running' ELSE 'lost' END, given_up"},
		},
		[]string{"lose worker"}, []string{"one live run", "runs are numbered"}, 1,
	},
	{
		"leases judged by a clock that is 2.8 s off", []edit{{"store/process.go",
			"p.stopped_at IS NULL AND p.lease_until > p.beat_at`", "p.stopped_at IS NULL AND p.lease_until > clock_timestamp() + interval '2.8 seconds'`"}},
		[]string{"flush redis"}, []string{"losses have a cause"}, 5,
	},
	{
		"losses not counted", []edit{{"store/finish.go",
			"losses = u.losses + e.losses, waits", "losses = u.losses, waits"}},
		[]string{"stop worker"}, []string{"counters agree"}, 1,
	},
	{
		"late cost forgotten", []edit{{"store/finish.go",
			"cost_usd = greatest(u.cost_usd + coalesce(e.usd, 0) - e.counted", "cost_usd = greatest(u.cost_usd - e.counted"}},
		[]string{"freeze worker"}, []string{"cost is counted once"}, 5,
	},
	{
		"begun before its time", []edit{
			{"store/run.go", "strpos(asked.backends, ',' || u.backend || ',') > 0 AND (u.not_before IS NULL OR u.not_before <= clock_timestamp())", "strpos(asked.backends, ',' || u.backend || ',') > 0"},
			{"store/unit.go", "CASE WHEN held THEN 'infinity' ELSE coalesce(due, clock_timestamp() + interval '2 seconds') END", "CASE WHEN held THEN 'infinity'::timestamptz ELSE clock_timestamp() END"},
		},
		[]string{"cut link"}, []string{"not before"}, 1,
	},
	{
		"shutdown told as a failure", []edit{{"handlers/handlers.go",
			"\treturn nil\n}\n\n// takeUp makes", "\treturn fmt.Errorf(\"interrupted\")\n}\n\n// takeUp makes"}},
		[]string{"stop worker"}, []string{"workers end"}, 1,
	},
	{
		"Postgres away is an internal error", []edit{{"api/problem/problem.go",
			"p := New(http.StatusServiceUnavailable, away.What", "p := New(http.StatusInternalServerError, away.What"}},
		[]string{"crash postgres"}, []string{"answers are right"}, 1,
	},
	{
		"no unit without Redis", []edit{{"api/unit.go",
			"\tn, err := a.NewUnit(ctx, body)\n", "\tif !a.Queue.Up() {\n\t\treturn work.Unit{}, false, &work.Unavailable{What: \"redis\"}\n\t}\n\tn, err := a.NewUnit(ctx, body)\n"}},
		[]string{"pause redis"}, []string{"refusals have a cause"}, 1,
	},
	{
		"refused for ever after Postgres was away", []edit{{"store/pg/group.go",
			"\twritten(o.err)\n", "\twritten(o.err)\n\tif errors.As(o.err, new(*work.Unavailable)) {\n\t\tg.flush = func(context.Context, []In) ([]Out, error) { return nil, &work.Unavailable{What: \"postgres\", Err: o.err} }\n\t}\n"}},
		[]string{"crash postgres"}, []string{"work is accepted"}, 1,
	},
	{
		"concurrency of a batch ignored", []edit{{"store/budget.go",
			"most = min(most, b.Concurrency)", "most = min(most, work.BatchWindow)"}},
		[]string{"cut link"}, []string{"batch windows hold"}, 1,
	},
	{
		"budget of a batch ignored", []edit{{"store/budget.go",
			"left := exact(*b.MaxCostUSD - spent.Cost)\n", "left := *b.MaxCostUSD - spent.Cost + 1000\n"}},
		[]string{"cut link"}, []string{"budgets hold"}, 1,
	},
	{
		"results reused for other questions", []edit{{"handlers/cache.go",
			"Model: req.Model, Prompt: req.Prompt, SystemPrompt", "Model: req.Model, SystemPrompt"}, {"handlers/cache.go",
			"what.Payload = req.Payload", "what.Payload = nil"}},
		[]string{"cut link"}, []string{"results are reused"}, 1,
	},
	{
		"results never reused", []edit{{"handlers/cache.go",
			"a.look.came, a.look.key = work.CacheHit, nil\n\treturn true", "a.look.came, a.look.from = work.CacheMiss, nil\n\treturn false"}},
		[]string{"cut link"}, []string{"results are reused"}, 1,
	},
	{
		"queues skipped by the reconciler", []edit{{"store/reconcile.go",
			"WHERE state = 'queued' AND check_at <= now() AND", "WHERE state = 'queued' AND queue = 'default' AND check_at <= now() AND"}},
		[]string{"flush redis"}, []string{"accepted ends"}, 1,
	},
	{
		"an API that asks again itself", []edit{{"api/unit.go", "\t\"errors\"\n", "\t\"errors\"\n\t\"time\"\n"}, {"api/unit.go",
			"\tunit, replayed, err := a.accept(ctx, key, &in.Body)\n", "\tunit, replayed, err := a.accept(ctx, key, &in.Body)\n\tif errors.As(err, new(*work.Unavailable)) {\n\t\ttime.Sleep(25 * time.Second)\n\t\tunit, replayed, err = a.accept(context.WithoutCancel(ctx), key, &in.Body)\n\t}\n"}},
		[]string{"crash postgres"}, []string{"answers come in time"}, 1,
	},
	{
		"delete deletes nothing", []edit{{"store/retention.go",
			"n, err := removeUnits(ctx, tx, []uuid.UUID{id})", "n, err := 1, error(nil)"}},
		[]string{"cut link"}, []string{"deleted is gone"}, 1,
	},
}
