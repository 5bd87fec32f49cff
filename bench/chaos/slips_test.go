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
		"a delivery makes a unit each time", []edit{{"store/unit.go",
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
			"\tif err != nil {\n\t\treturn p, work.Fail(work.ClassInvalidRequest, err.Error())\n\t}\n\tp.req.Prompt = rendered", "\tp.req.Prompt = rendered"}},
		"./handlers", "TestMissingKeyFailsBeforeTheBackendIsAsked",
	},
	{
		"a rate limit uses up a retry", []edit{{"handlers/outcome.go",
			"f.Next, f.Waits, f.Delay = work.Queued, 1, untilReset", "f.Next, f.Failures, f.Delay = work.Queued, 1, untilReset"}},
		"./handlers", "TestRateLimitWaitsAndUsesUpNoRetry",
	},
	{
		"finished runs are not kept on disk", []edit{{"handlers/spool.go",
			"err = os.Rename(file.Name(), w.spoolPath(f.RunID))", "err = os.Remove(file.Name())"}},
		"./handlers", "TestFinishedRunIsOnDiskWhilePostgresIsAway",
	},
	{
		"a pause holds nothing", []edit{{"store/pause.go",
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
		"bytes of uploads are not compared", []edit{{"handlers/file.go",
			"found != f.SHA256", "found == \"\""}},
		"./handlers", "TestUploadsThatCannotBeHad",
	},
	{
		"a stop rule is never broken", []edit{{"store/batch_move.go",
			"return limit != nil && value > *limit", "return limit != nil && value > *limit+1"}},
		"./store", "TestBatchStopsWhenItGoesWrong",
	},
	{
		"a test lets all units go", []edit{{"store/batch_move.go",
			"room = min(room, b.TestFirst-b.Released)", "room = max(room, b.TestFirst-b.Released)"}},
		"./store", "TestBatchTestsFirst",
	},
	{
		"expires_at is not looked at", []edit{{"store/reconcile.go",
			"started_at IS NULL AND expires_at <= now()", "started_at IS NULL AND deadline <= now()"}},
		"./store", "TestExpiry",
	},
	{
		"a provider's batch is sent again", []edit{{"handlers/batch_lane.go",
			"\tcase len(found) > 0:\n", "\tcase len(found) > 1000:\n"}},
		"./handlers", "TestBatchLaneFindsWhatItSent",
	},
	{
		"every address is served", []edit{{"cmd/piecework/config.go",
			"if !loopback && !d.NoAuth {", "if !loopback && !d.NoAuth && false {"}},
		"./cmd/piecework", "TestBadConfigurationIsRefused",
	},
	{
		"the roots have no walls", []edit{{"internal/roots/roots.go",
			"if ok && len(dir) > length {", "if len(dir) > length && (ok || !ok) {"}},
		"./internal/roots", "TestRefused",
	},
	{
		"a reader begins anew", []edit{{"api/event.go",
			"at, ok := parseUnitCursor(cmp.Or(in.LastEventID, in.After, unitCursor{}.String()))", "at, ok := parseUnitCursor(cmp.Or(in.After, unitCursor{}.String()))"}},
		"./api", "TestStreamGoesOnBehindAnyEvent",
	},
	{
		"cancel not heard while draining", []edit{{"handlers/beat.go",
			"if o.Cancel {", "if o.Cancel && w.draining.Err() == nil {"}},
		"./handlers", "TestCancelIsHeardWhileDraining",
	},
	{
		"a notice cancels by itself", []edit{{"handlers/handlers.go",
			"\t\t\tif w.runsUnit(n.Unit) {\n\t\t\t\tw.askForNews()\n\t\t\t}", "\t\t\tif w.runsUnit(n.Unit) {\n\t\t\t\tw.stopAll(work.ErrCancelled)\n\t\t\t}"}},
		"./handlers", "TestStaleCancelNoticeStopsNothing",
	},
	{
		"too many open files use up a retry", []edit{{"handlers/disk.go", "\t\treturn errNoFiles\n", "\t\treturn nil\n"}},
		"./handlers", "TestTooManyFilesIsNotTheUnitsFault",
	},
	{
		"a limit of one model is the whole account's", []edit{{"handlers/lane.go",
			"return l.limit(model, now).shut(began, now, f, recent)", "return l.account.shut(began, now, f, recent)"}},
		"./handlers", "TestLimitOfOneModel",
	},
	{
		"an unknown cost counts as nothing", []edit{{"store/finish.go",
			"unpriced_runs = u.unpriced_runs + ` + unpriced(\"f\") + `::int\n    FROM f JOIN was", "unpriced_runs = u.unpriced_runs\n    FROM f JOIN was"}},
		"./store", "TestUnknownCostIsCounted",
	},
	{
		"a body is read on for a caller who has gone", []edit{{"api/validate.go",
			"v.read%1024 == 0 && v.ctx.Err() != nil", "v.read%1024 == 0 && v.ctx.Err() != nil && v.read < 0"}},
		"./api", "TestValidateStopsWithTheCaller",
	},
	{
		"all errors of a body are kept", []edit{{"api/validate.go", "const maxShown = 100", "const maxShown = 100_000"}},
		"./api", "TestManyFaultsAreCounted",
	},
}
