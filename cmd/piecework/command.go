package main

import (
	"fmt"

	"github.com/alecthomas/kong"
)

const about = `Gets large amounts of LLM and agent work done: takes work units, runs each on an agent or a model with timeouts,
retries and budgets, and keeps results and transcripts.

` + exitCodeHelp

// cli is the table of commands; help is made from it.
type cli struct {
	Dev     DevCommand     `cmd:"" help:"Run everything here: API, worker process, Postgres and Redis."`
	API     APICommand     `cmd:"" name:"api" help:"Run the API."`
	Worker  WorkerCommand  `cmd:"" help:"Run a worker process."`
	Migrate MigrateCommand `cmd:"" help:"Bring the database to this version's schema."`

	Submit     SubmitCommand     `cmd:"" help:"Submit a unit." group:"Client commands"`
	Upload     UploadCommand     `cmd:"" help:"Upload files for units." group:"Client commands"`
	Get        GetCommand        `cmd:"" help:"Show a unit with its runs." group:"Client commands"`
	Ls         LsCommand         `cmd:"" help:"List units, newest first." group:"Client commands"`
	Wait       WaitCommand       `cmd:"" help:"Wait until units are final." group:"Client commands"`
	Watch      WatchCommand      `cmd:"" help:"Follow a unit while it runs." group:"Client commands"`
	Cancel     CancelCommand     `cmd:"" help:"Cancel units." group:"Client commands"`
	Retry      RetryCommand      `cmd:"" help:"Run final units again." group:"Client commands"`
	Prune      PruneCommand      `cmd:"" help:"Remove units and batches that ended long ago." group:"Client commands"`
	Batch      BatchCommand      `cmd:"" help:"Submit many units together, approve, pause, cancel and read them." group:"Client commands"`
	Schedule   ScheduleCommand   `cmd:"" help:"Have units made again and again." group:"Client commands"`
	Trigger    TriggerCommand    `cmd:"" help:"Have units made of what others send." group:"Client commands"`
	Webhook    WebhookCommand    `cmd:"" help:"Be told by signed messages what becomes of units." group:"Client commands"`
	Transcript TranscriptCommand `cmd:"" help:"Show what an agent did." group:"Client commands"`
	Queue      QueueCommand      `cmd:"" help:"List, pause and resume queues." group:"Client commands"`
	Backend    BackendCommand    `cmd:"" help:"List, pause and resume backends." group:"Client commands"`

	MCP    MCPCommand    `cmd:"" name:"mcp" help:"Serve the Model Context Protocol, so that an agent can hand in work."`
	Doctor DoctorCommand `cmd:"" help:"Check Redis, Postgres and backends, and say how to mend them."`
	Demo   DemoCommand   `cmd:"" help:"Have twelve documents summarised on a temporary server."`

	Version versionFlag `help:"Print the version and exit."`
}

type versionFlag bool

// BeforeReset prints the version before anything else is looked at.
func (versionFlag) BeforeReset(k *kong.Kong, vars kong.Vars) error { //nolint:unparam // kong calls it so
	fmt.Fprintln(k.Stdout, vars["version"])
	k.Exit(0)
	return nil
}
