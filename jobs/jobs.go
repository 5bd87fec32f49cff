// Package jobs accepts work and keeps it moving. What callers ask for becomes units,
// batches, triggers and schedules here, or is refused; after the commit a message goes
// to Redis (jobs/queue). A reconciler sends again what was lost, and gives back what
// dead worker processes had.
//
//	submit.go          Rules: what an operator lets callers ask for; Submitter: commit it
//	control.go         Control: cancel and retry units, move batches
//	unit.go            what a unit must be
//	times.go           its times and durations
//	files.go           its files and directories
//	batch.go           what a batch must be; submit one; its results as lines
//	inspect.go         a look at the items of a batch before it is accepted
//	synthesis.go       the unit that sums a batch up
//	enumerate.go       Enumerator: the units of batches, made in the background
//	chunk.go           some of them on their way into Postgres
//	item.go            the units of their items
//	source.go          where the items of a batch come from
//	start_order.go     the order in which they begin
//	lines.go           the lines of batches of OpenAI's and Anthropic's APIs
//	trigger.go         what a trigger must be
//	trigger_batch.go   the batches that webhooks make
//	schedule.go        what a schedule must be; make its units
//	reconcile.go       repeat lost messages, free dead leases: once a second
//	duty.go            what the reconciler does, and how often
//	janitor.go         what is old is removed
//	lease.go           which worker processes send no heartbeat
//	taken.go           messages that were taken and whose units do not begin
//	advance.go         let the units of batches begin
//	delivery.go        messages for what is to be delivered to receivers of webhooks
package jobs
