// Package work holds the words of the house: units, runs, their states, and
// the classes of failure. Every room imports it. It does no I/O and knows
// neither Postgres nor Redis.
//
//	unit.go        Unit: one accepted piece of work
//	run.go         Run: one attempt at a unit
//	batch.go       Batch: units that were submitted together
//	call.go        Call: one request to a model API, as a unit carries it
//	state.go       the states and the moves between them
//	process.go     Process: one worker process, and the backends it offers
//	cost.go        what runs have cost, where not all of it is known, and how it is told
//	plausible.go   figures that agents and providers tell, and that cannot be true
//	capability.go  what a backend can do
//	file.go        the files that a payload names
//	cache.go       results that are taken over from earlier runs
//	failure.go     Failure classes and what follows from each
//	error.go       the few errors that cross a room's door
//	finding.go     Finding: what a look at Postgres, Redis or a backend came to
//	schedule.go    Schedule: units made again and again
//	trigger.go     Trigger: units made of what others send, and TriggerDelivery
//	webhook.go     who is told of what, and how far each message got
//	figures.go     what happened in a stretch of time, and what it has cost
//	seconds.go     lengths of time as callers write them
//	clean.go       text that Postgres can hold, that fits, that a terminal can show
package work
