package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Options is what every command-line agent is configured by.
type Options struct {
	// Path is the program, or its name on PATH; empty means its usual name.
	Path string
	// Env is what the child may have of our environment, as NAME=VALUE: API
	// key, base URL, PATH for its tools. Nothing else is passed on.
	Env []string
	// Supervisor holds the agent's processes together. Without one, what an agent
	// hides well enough may outlive its run.
	Supervisor process.Supervisor
	// Prices is for agents that tell tokens and no cost.
	Prices *backend.Prices

	// Limits the tests shorten; 0: the usual ones.
	Grace      time.Duration
	StopPolicy process.StopPolicy
	MaxOutput  int64 // in bytes
}

// Describe are what an operator has set: what an agent is told, and where its
// models are.
func (c Options) Describe(told ...any) string {
	var servers []string
	for _, variable := range c.Env {
		if name, address, _ := strings.Cut(variable, "="); strings.HasSuffix(name, "_BASE_URL") {
			servers = append(servers, name+"="+backend.RedactURL(address))
		}
	}
	return fmt.Sprintf("%q %#v", servers, told)
}

// Program is a command-line agent's own name, its usual command, and what to
// do when it is not there.
type Program struct{ Name, Command, Remedy string }

// versionLimit is how long a program may take to tell its version: some are
// large, and the machine may be busy.
const versionLimit = 20 * time.Second

// ProgramVersion returns what the program's --version prints.
func (c Options) ProgramVersion(ctx context.Context, p Program) (string, error) {
	path, err := c.find(p)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	home, err := os.MkdirTemp("", "piecework-version-") // some write into it before they say a word
	if err != nil {
		return "", fmt.Errorf("make a home to ask %s for its version: %w", p.Name, err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = append(BaseEnv(home), c.Env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		shown, _ := work.Cut(strings.TrimSpace(stdout.String()+stderr.String()), 300)
		return "", fmt.Errorf("%s does not start: %s --version: %w: %s; %s", p.Name, path, err, shown, p.Remedy)
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (c Options) find(p Program) (string, error) {
	path, err := exec.LookPath(cmp.Or(c.Path, p.Command))
	if err != nil {
		return "", fmt.Errorf("%s is not here: %w; %s", p.Name, err, p.Remedy)
	}
	return filepath.Abs(path)
}

// Variable returns the value of a variable that the child will see.
func (c Options) Variable(name string) string {
	value := ""
	for _, entry := range c.Env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// Prepare finds the program and makes the unit's directories. What it made for
// the run alone is to be removed by Cleanup.
func (c Options) Prepare(p Program, req backend.Request, steps *transcript.Writer) (Unit, *work.Failure, error) {
	u := Unit{Options: c, program: p, Req: req, Steps: steps}
	var err error
	if u.Path, err = c.find(p); err != nil {
		return u, work.Fail(work.ClassInfra, err.Error()), nil
	}
	u.Home, err = newHome(p, req)
	if err == nil {
		u.noteProject()
	}
	return u, nil, err
}
