// Command piecework is the whole product in one binary: the API, worker
// processes, both with everything they need for a first look, and the client.
//
//	main.go        signals, exit codes, the command line
//	command.go     the table of commands
//	config.go      flags and variables of the servers, checked and printed
//	agents.go      those of agents and models
//	backends.go    the backends, as flags and variables configure them
//	serve.go       api, worker, migrate; the wiring of a server
//	cloud.go       the drivers of S3 and GCS
//	connlimit.go   how many connections clients may hold
//	dev.go         dev: both in one process, with their Postgres and Redis
//	doctor.go      doctor: what stands in the way, and how to mend it
//	demo.go        demo: twelve documents on a temporary server
//	demoserver.go  that server, a child process
//	submit.go      submit
//	upload.go      upload, and what submit uploads
//	unit.go        get, ls
//	bulk.go        cancel and retry, by ids or by a filter
//	batch.go       batch
//	batch_submit.go  its submit
//	batch_wait.go  its --wait
//	batch_move.go  approve, pause, resume, cancel and retry a batch
//	retention.go   prune; how long what is over is kept
//	wait.go        wait
//	watch.go       watch
//	transcript.go  transcript
//	trigger.go     trigger
//	queue.go       queue ls
//	schedule.go    schedule
//	backend.go     backend ls
//	mcp.go         mcp: serve tools to agents; those about batches
//	tools.go       the tools about units
//	webhook.go     webhook: endpoints
//	delivery.go    and deliveries
//	pause.go       pause and resume, of both
//	client.go      App and exit codes; the client that the commands above use
//	table.go       output for people and for programs
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	_ "time/tzdata" // schedules name time zones, of which a small container knows none

	"github.com/alecthomas/kong"

	"piecework/internal/process"
)

// version is set by the Makefile.
var version = "dev"

func main() {
	supervisor := process.Main(os.Args, os.Environ()) // does not return in a supervisor
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals // a second one means now
		os.Exit(exitInterrupted)
	}()
	dropEmpty(os.Environ())
	app := &App{Ctx: ctx, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Version: version,
		Supervisor: supervisor}
	os.Exit(run(app, os.Args[1:]))
}

// dropEmpty unsets our variables that are empty: a compose file or a unit file
// writes NAME= for what nobody has set.
func dropEmpty(environ []string) {
	for _, entry := range environ {
		name, ours := strings.CutSuffix(entry, "=")
		if ours && (strings.HasPrefix(name, "PIECEWORK_") || name == "DATABASE_URL" || name == "REDIS_URL") {
			_ = os.Unsetenv(name)
		}
	}
}

// run is main without the process around it; it returns the exit code.
func run(app *App, args []string) int {
	err := execute(app, args)
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(app.Stderr, "piecework:", text)
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}

// helped is panicked through kong when it has printed help or the version: its
// Exit must not return.
type helped struct{ code int }

func execute(app *App, args []string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			h, ok := p.(helped)
			if !ok {
				panic(p)
			}
			err = nil
			if h.code != 0 {
				err = &exitError{exitUsage, errors.New("see piecework --help")}
			}
		}
	}()
	parser, err := newParser(app)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return usagef("%v\nTry: piecework --help", err)
	}
	return parsed.Run(app)
}

func newParser(app *App) (*kong.Kong, error) {
	parser, err := kong.New(&cli{}, kong.Name("piecework"), kong.Description(about),
		kong.Writers(app.Stdout, app.Stderr), kong.Exit(func(code int) { panic(helped{code}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, Summary: false, WrapUpperBound: 110}),
		kong.Vars{"version": app.Version, "data": defaultData(app.Getenv), "grace": "30s"})
	if err != nil {
		return nil, fmt.Errorf("build the command line: %w", err)
	}
	return parser, nil
}
