package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"piecework/examples"
	"piecework/internal/work"
)

// DemoCommand is `piecework demo`.
type DemoCommand struct {
	Backend string `help:"Backend that reads the documents. A real one costs money." env:"DEMO_BACKEND" placeholder:"NAME"`
	Model   string `help:"Model, as the backend calls it." env:"DEMO_MODEL"`
	Exit    bool   `help:"Leave when the results are there, instead of staying up." env:"DEMO_EXIT"`
	Verbose bool   `help:"Show the server's log." short:"v"`

	// program is what to start, with its first arguments: this program, unless
	// a test says otherwise.
	program []string
}

// Run starts everything on a temporary directory, has twelve documents
// summarised and shows what came of it. Nothing of it is left at the end.
func (c *DemoCommand) Run(app *App) (err error) {
	dir, err := c.directory()
	if err != nil {
		return fmt.Errorf("prepare the demo: %w", err)
	}
	defer func() {
		if removed := os.RemoveAll(dir); removed != nil {
			err = errors.Join(err, fmt.Errorf("remove the demo's directory: %w", removed))
		}
	}()
	c.say(app, "starting Piecework in %s\n", dir)
	server, err := c.start(app, dir)
	if err != nil {
		return fmt.Errorf("start the demo: %w", err)
	}
	defer func() {
		if stopped := server.stop(); stopped != nil {
			err = errors.Join(err, fmt.Errorf("stop the server: %w", stopped))
		}
	}()
	address, err := server.address(app.Ctx)
	if err != nil {
		return server.explain(err)
	}
	c.say(app, "ready at %s\n", address)
	client, err := newClient(app, Remote{Server: address})
	if err != nil {
		return err
	}
	outcome := c.perform(app, client)
	if outcome != nil && !isUnsuccessful(outcome) {
		return server.explain(outcome)
	}
	if !c.Exit {
		c.say(app, "\nThe pages stay up at %s until you press Ctrl-C.\n", address)
		if err := server.stay(app.Ctx); err != nil {
			return server.explain(err)
		}
	}
	return outcome
}

func (c *DemoCommand) say(app *App, format string, args ...any) {
	_, _ = fmt.Fprintf(app.Stdout, format, args...)
}

func isUnsuccessful(err error) bool {
	var exit *exitError
	return errors.As(err, &exit) && exit.code == exitUnsuccessful
}

// directory makes the place for the server's data, with the documents in it.
// Others may pass through it, because as root the server runs Postgres under
// an account without rights.
func (c *DemoCommand) directory() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "piecework-demo-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // as on macOS, where /tmp is one
		return "", err
	}
	documents := filepath.Join(dir, "documents")
	if err := os.Mkdir(documents, 0o755); err != nil {
		return "", err
	}
	for _, name := range examples.Names() {
		data, err := fs.ReadFile(examples.Documents(), name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(documents, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// backend is the one to use, and why.
func (c *DemoCommand) backend() (name, reason string) {
	if c.Backend == "" {
		return "mock", "it is free and no model; choose another with --backend or DEMO_BACKEND"
	}
	return c.Backend, "as --backend or DEMO_BACKEND says"
}

// perform submits the documents, waits for them and prints the results.
func (c *DemoCommand) perform(app *App, client *client) error {
	names := examples.Names()
	name, reason := c.backend()
	c.say(app, "%d documents for the backend %s (%s)\n", len(names), name, reason)
	began := time.Now()
	ids := make([]string, len(names))
	for i, document := range names {
		accepted, err := client.submit(app.Ctx, c.order(name, document), uuid.NewString())
		if err != nil {
			return fmt.Errorf("submit %s: %w", document, err)
		}
		ids[i] = accepted.ID.String()
	}
	bar := newProgress(app.Stderr, len(ids)).orLines(app.Stdout, len(ids))
	units, err := waitFor(app.Ctx, client, ids, bar)
	if err != nil {
		return fmt.Errorf("wait for the documents: %w", err)
	}
	return c.results(app, client, names, units, time.Since(began))
}

func (c *DemoCommand) order(backend, document string) *submission {
	return &submission{
		Backend: backend,
		Model:   c.Model,
		Prompt: "Summarise {name} in at most five sentences: what it is, who is involved, what was agreed or asked for, " +
			"and what somebody should do next.",
		Payload: map[string]any{"name": document, "file_path": "docs:" + document},
		Labels:  map[string]string{"demo": "documents"},
	}
}

func (c *DemoCommand) results(app *App, client *client, names []string, units []*unit, elapsed time.Duration) error {
	t := newTable(app.Stdout, "DOCUMENT", "STATUS", "TIME", "COST", "RESULT", "PAGE")
	cost, good := work.Cost{}, 0
	for i, u := range units {
		cost = cost.Plus(u.Cost)
		if u.State == work.Succeeded {
			good++
		}
		t.row(names[i], string(u.State), took(u.StartedAt, u.FinishedAt), u.CostText(), gist(u),
			client.page("/units/"+u.ID.String()))
	}
	c.say(app, "\n")
	if err := t.flush(); err != nil {
		return err
	}
	c.say(app, "\n%d of %d succeeded in %s, cost %s\n", good, len(units), duration(elapsed), cost.CostText())
	return succeeded(units)
}

// gist is the first line of what a unit came to.
func gist(u *unit) string {
	switch {
	case u.Error != nil:
		return excerpt(u.Error.Error(), 76)
	case u.Output != nil:
		return excerpt(firstLine(*u.Output), 76)
	}
	return ""
}
