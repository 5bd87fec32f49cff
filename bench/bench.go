// Package bench measures the same work on Piecework and on its peers, side by
// side on one machine and in one run: only the ratios mean anything. It is a
// module of its own, so that the peers never become dependencies.
//
//	measure            a program that measures processes beside the peers: make bench
//	ratios.json        what its short run compares with
//	agent_test.go      what Piecework adds to the time of a command-line agent
//	inflight_test.go   memory of 5,000 units in flight in one worker process
//	readers_test.go    memory and delay of 1,000 readers of events; -readers for more
//	transcripts_test.go  time and memory of pages and transcripts of long runs
//	triggers_test.go   2,000 signed webhooks a second for one API process
//	unproven_test.go   memory while 100 bodies of 25 MiB come with a wrong signature
//	slowmodel_test.go  the model that they wait for
//	main_test.go       parts of a benchmark in processes of their own
//	chaos              what breaks things instead of measuring them
//
// A unit in flight takes 57 KB of resident memory above the idle worker process
// with openai, 28 of them heap and 27 stacks; Asynq alone, with a handler that
// reads the same kind of stream, takes 44 to 59.
//
// A reader of a unit's events takes 37 to 39 KB of an API process with 1,000 of them,
// 42 with 10,000, stacks and the garbage collector's room included; 2 frozen ones harm nobody.
package bench
