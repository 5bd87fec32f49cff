package chaos

// slip is a change of a line or two of Piecework that the load cannot meet, and
// the test of the product that must find it.
type slip struct {
	name  string
	edits []edit
	where string // the package
	test  string
}

var slips = []slip{
	{
		"a delivery makes a unit each time", []edit{{"store/accept.go",
			"FROM r WHERE trigger IS NULL OR id IN (SELECT unit_id FROM first)", "FROM r"}},
		"./store", "TestADeliveryMakesOneUnit",
	},
	{
		"no signature is asked for", []edit{{"internal/webhook/verify.go",
			"\tif which < 0 {\n\t\treturn Proof{}, errors.New(\"no signature fits\")", "\tif which < -1 {\n\t\treturn Proof{}, errors.New(\"no signature fits\")"}},
		"./api", "TestUnprovenWebhooksAreRefused",
	},
	{
		"a missing key is left blank", []edit{{"handlers/prepare.go",
			"\tif err != nil {\n\t\treturn p, work.Fail(work.ClassInvalidRequest, err.Error())\n\t}\n\tp.req.Prompt, p.req.ProjectSettings = rendered", "\tp.req.Prompt, p.req.ProjectSettings = rendered"}},
		"./handlers", "TestMissingKeyFailsBeforeTheBackendIsAsked",
	},
	{
		"a rate limit uses up a retry", []edit{{"handlers/outcome.go",
			"f.Next, f.Waits, f.Delay = work.Queued, 1, untilReset", "f.Next, f.Failures, f.Delay = work.Queued, 1, untilReset"}},
		"./handlers", "TestRateLimitWaitsAndUsesUpNoRetry",
	},
	{
		"finished runs are not kept on disk", []edit{{"handlers/upkeep/spool.go",
			"err = os.Rename(file.Name(), s.Path(f.RunID)+end)", "err = os.Remove(file.Name())"}},
		"./handlers", "TestFinishedRunIsOnDiskWhilePostgresIsAway",
	},
	{
		"a pause holds nothing", []edit{{"store/queue.go",
			"p.since IS NOT NULL\n\tAND (p.kind", "p.since IS NULL\n\tAND (p.kind"}},
		"./store", "TestPauseHoldsItsUnits",
	},
	{
		"a schedule's unit has no key", []edit{{"jobs/schedule.go",
			"IdempotencyKey: key, BodyHash", "BodyHash"}},
		"./jobs", "TestScheduledUnitsAreMadeOnce",
	},
	{
		"files of queued units are deleted", []edit{{"store/file.go",
			"u.state IN ('queued', 'running', 'waiting') LIMIT 1", "u.state IN ('running', 'waiting') LIMIT 1"}},
		"./store", "TestFileOfAUnitThatIsNotFinalStays",
	},
	{
		"bytes of uploads are not compared", []edit{{"handlers/files.go",
			"found != upload.SHA256", "found == \"\""}},
		"./handlers", "TestUploadsThatCannotBeHad",
	},
	{
		"a stop rule is never broken", []edit{{"store/budget.go",
			"return limit != nil && value > *limit", "return limit != nil && value > *limit+1"}},
		"./store", "TestBatchStopsWhenItGoesWrong",
	},
	{
		"a test lets all units go", []edit{{"store/budget.go",
			"room = min(room, b.TestFirst-b.Released)", "room = max(room, b.TestFirst-b.Released)"}},
		"./store", "TestBatchTestsFirst",
	},
	{
		"expires_at is not looked at", []edit{{"store/reconcile.go",
			"started_at IS NULL AND expires_at <= now()", "started_at IS NULL AND deadline <= now()"}},
		"./store", "TestExpiry",
	},
	{
		"a provider's batch is sent again", []edit{{"handlers/upkeep/provider_batch.go",
			"\tcase len(found) > 0:\n", "\tcase len(found) > 1000:\n"}},
		"./handlers", "TestProviderBatchFindsWhatItSent",
	},
	{
		"every address is served", []edit{{"cmd/piecework/config.go",
			"!loopback && !d.NoAuth {", "!loopback && !d.NoAuth && false {"}},
		"./cmd/piecework", "TestBadConfigurationIsRefused",
	},
	{
		"the roots have no walls", []edit{{"internal/roots/roots.go",
			"if ok && len(dir) > length {", "if len(dir) > length && (ok || !ok) {"}},
		"./internal/roots", "TestRefused",
	},
	{
		"a reader begins anew", []edit{{"api/live/routes.go",
			"at, ok := parseUnitCursor(cmp.Or(in.LastEventID, in.After, unitCursor{}.String()))", "at, ok := parseUnitCursor(cmp.Or(in.After, unitCursor{}.String()))"}},
		"./api", "TestStreamGoesOnBehindAnyEvent",
	},
	{
		"cancel not heard while draining", []edit{{"handlers/upkeep/owned.go",
			"if o.Cancel {", "if o.Cancel && !h.Runs.drain.Begun() {"}},
		"./handlers", "TestCancelIsHeardWhileDraining",
	},
	{
		"a notice cancels by itself", []edit{{"handlers/server.go",
			"\t\t\tif w.runs.OfUnit(n.Unit) {\n\t\t\t\tw.heartbeat.CheckSoon()\n\t\t\t}", "\t\t\tif w.runs.OfUnit(n.Unit) {\n\t\t\t\tw.runs.StopAll(work.ErrCancelled)\n\t\t\t}"}},
		"./handlers", "TestStaleCancelNoticeStopsNothing",
	},
	{
		"too many open files use up a retry", []edit{{"handlers/outcome.go", "\t\treturn errNoFiles\n", "\t\treturn nil\n"}},
		"./handlers", "TestTooManyFilesIsNotTheUnitsFault",
	},
	{
		"a limit of one model is the whole account's", []edit{{"handlers/upkeep/breaker.go",
			"return b.limit(model, now).shut(began, now, f, recent)", "return b.account.shut(began, now, f, recent)"}},
		"./handlers/upkeep", "TestLimitOfOneModel",
	},
	{
		"an unknown cost counts as nothing", []edit{{"store/finish.go",
			"unpriced_runs = u.unpriced_runs + e.unpriced,\n", "unpriced_runs = u.unpriced_runs,\n"}},
		"./store", "TestUnknownCostIsCounted",
	},
	{
		"a body is read on for a caller who has gone", []edit{{"internal/strictjson/schema.go",
			"v.read%1024 == 0 && v.ctx.Err() != nil", "v.read%1024 == 0 && v.ctx.Err() != nil && v.read < 0"}},
		"./api", "TestValidateStopsWithTheCaller",
	},
	{
		"all errors of a body are kept", []edit{{"internal/strictjson/schema.go", "const MaxShown = 100", "const MaxShown = 100_000"}},
		"./api", "TestManyFaultsAreCounted",
	},
	{
		"a statement waits for its answer without end", []edit{{"store/pg/connect.go",
			"\t_ = c.link.SetDeadline(by.Add(min(closeAfter, limit/2))) // a closed", "\t_ = c.link.SetDeadline(by.Add(time.Hour)) // a closed"}, {"store/pg/connect.go",
			"\tif c.number == number && c.release != nil {\n", "\tif c.number < 0 {\n"}},
		"./store", "TestHalfOpenConnections",
	},
	{
		"connections that were not heard of are used again", []edit{{"store/pg/connect.go",
			"if c.link.heard.Load() < c.link.pulse.silent.Load() {", "if c.link.heard.Load() < 0 {"}},
		"./store", "TestHalfOpenConnections",
	},
	{
		"a sign of life reads the units", []edit{{"store/process.go",
			"\t\tWHERE id = $1 AND stopped_at IS NULL`, process, lease.Seconds()", "\t\tWHERE id = $1 AND stopped_at IS NULL AND NOT EXISTS (SELECT FROM work_units WHERE id = $1)`, process, lease.Seconds()"}},
		"./store", "TestBeatBesideALock",
	},
	{
		"what was taken and not begun is not offered again", []edit{{"jobs/taken.go",
			"if now-since >= takenFor {", "if now-since >= takenFor*1000 {"}},
		"./jobs", "TestTakenAndNotBegun",
	},
	{
		"a lease ends by Postgres's clock", []edit{{"store/process.go",
			"p.stopped_at IS NULL AND p.lease_until > p.beat_at`", "p.stopped_at IS NULL AND p.lease_until > clock_timestamp()`"}},
		"./jobs", "TestClockOfPostgresIsSet",
	},
	{
		"retried units begin beside the window of their batch", []edit{{"store/move.go",
			"held = batch_id IS NOT NULL, provider_batch = NULL", "held = false, provider_batch = NULL"}},
		"./api", "TestRetriesGoThroughTheWindow",
	},
	{
		"results that were reused lower the estimate of a budget", []edit{{"store/budget.go",
			"const tellsPrice = `(cache IS DISTINCT FROM 'hit' AND ", "const tellsPrice = `("}},
		"./store", "TestEstimateOfABudget",
	},
	{
		"a cancelled batch is summed up", []edit{{"store/enumerate.go",
			"WHERE id = $1 AND filler = $2 AND status = 'finalizing' AND synthesis_unit IS NULL`", "WHERE id = $1`"}},
		"./store", "TestSynthesisOfACancelledBatch",
	},
	{
		"a late end gives nothing back of its session's cost", []edit{{"store/finish.go",
			"coalesce(e.after_usd - e.after_counted, 0)", "0"}},
		"./store", "TestSessionCostCountsOnce",
	},
	{
		"lost runs have no end", []edit{{"store/finish.go",
			"+ 1 >= $3 THEN 'failed' ELSE 'queued' END AS next", "+ 1 >= $3 + 1000 THEN 'failed' ELSE 'queued' END AS next"}},
		"./store", "TestLossesEnd",
	},
	{
		"figures of a backend are believed", []edit{{"store/finish.go",
			"\tf.TotalCostUSD = doubts.Cost(\"total_cost_usd\", f.TotalCostUSD)\n", ""}},
		"./store", "TestFinishTakesAnyFigures",
	},
	{
		"the ledger's refusal of a row is taken for an outage", []edit{{"store/pg/error.go",
			"\tcase \"22\", \"23\": // bad data, a constraint\n\t\treturn refused\n", "\tcase \"22\", \"23\": // bad data, a constraint\n\t\treturn away\n"}},
		"./store", "TestFinishBare",
	},
	{
		"an unknown error throws a result away", []edit{{"handlers/finish.go",
			"}, func(error) bool { return true })", "}, isAway)"}, {"handlers/finish.go",
			"\tif err != nil {\n\t\treturn written, verdict, err\n\t}\n\tw.spool.Recorded(", "\tif err != nil && written.Attempt < 0 {\n\t\treturn written, verdict, err\n\t}\n\tw.spool.Recorded("}},
		"./handlers", "TestNoErrorThrowsAResultAway",
	},
	{
		"a run is given up while its end is on disk", []edit{{"handlers/upkeep/owned.go",
			"left, ended := h.Spool.left(o.RunID)", "left, ended := waiting{lost: true}, false"}},
		"./handlers", "TestRunIsNotGivenUpWhileItsEndIsHere",
	},
	{
		"a refused result is tried for ever", []edit{{"handlers/upkeep/spool.go",
			"hopeless := store.Refused(err) || err != nil", "hopeless := errors.Is(err, os.ErrClosed) || err != nil"}},
		"./handlers", "TestRefusedResultIsWrittenBare",
	},
	{
		"denied calls are not listed", []edit{{"internal/transcript/denial.go",
			"if d.count++; len(d.denied) < maxTracked {", "if d.count++; len(d.denied) < 0 {"}},
		"./internal/transcript", "TestDenials",
	},
	{
		"a turn that ends to wait is a success", []edit{{"internal/backend/cli/claude/result.go",
			"case t.tasks.open() != \"\":", "case t.tasks.open() == \"never\":"}},
		"./internal/backend/cli/claude", "TestTurnThatEndsToWait",
	},
	{
		"every result is accepted", []edit{{"handlers/accept.go",
			"if err != nil || !a.ran.Success || verdict.Unmet == \"\" {", "if err != nil || !a.ran.Success || len(verdict.Unmet) >= 0 {"}},
		"./handlers", "TestAcceptance",
	},
	{
		"any Host is answered", []edit{{"api/guard.go",
			"if !a.answersTo(r.Host) {", "if !a.answersTo(r.Host) && r.Host == \"\" {"}},
		"./api", "TestServerAnswersToItsOwnNamesOnly",
	},
	{
		"a cancel that failed at a provider is forgotten", []edit{{"handlers/upkeep/provider_batch.go",
			"\tif err == nil {\n\t\treturn r.finish(ctx, nil)\n\t}\n\treturn r.unreadable(ctx, fmt.Errorf(\"cancel it,", "\tif err == nil || err != nil {\n\t\treturn r.finish(ctx, nil)\n\t}\n\treturn r.unreadable(ctx, fmt.Errorf(\"cancel it,"}},
		"./handlers", "TestProviderBatchCancelsWhatItSent",
	},
	{
		"a table that nobody cleans", []edit{{"migrations/0001_unit.sql",
			"-- +goose Up\n", "-- +goose Up\nCREATE TABLE left_overs (id bigint);\n"}},
		"./jobs", "TestEveryTableHasARemover",
	},
	{
		"a duty that fails ends the round", []edit{{"jobs/duty.go", "ctx, cancel := context.WithTimeout(parent, d.budget)", "ctx, cancel := context.WithTimeout(parent, time.Hour)"}},
		"./jobs", "TestDutiesDoNotStopEachOther",
	},
	{
		"receivers that fail take the slots of those that answer", []edit{{"handlers/upkeep/receivers.go",
			"return r.busy == 0 && q.underWay[failing] < failingSlots && !time.Now().Before(r.notBefore)", "return true"}},
		"./handlers", "TestReceiversThatHangDoNotDelayOneThatAnswers",
	},
	{
		"tokens of GitLab stay in texts", []edit{{"internal/transcript/kinds.go",
			"credential(\"GitLab\", `gl(?:pat|ptt", "credential(\"GitLab\", `GL(?:pat|ptt"}},
		"./internal/transcript", "TestRedactorKinds",
	},
}
