package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Unit is one unit on its way through a command-line agent.
type Unit struct {
	Options Options
	program Program
	Path    string
	Req     backend.Request
	Home    Home
	Steps   *transcript.Writer
}

// Cleanup removes what was made for the run alone.
func (u Unit) Cleanup() { _ = os.RemoveAll(u.Home.Tmp) }

// Refused is the result of a unit that did not get as far as a process.
func Refused(f *work.Failure, req backend.Request, steps *transcript.Writer) backend.Result {
	r := backend.Result{Error: f, Metadata: backend.Metadata{SessionID: req.SessionID, Model: req.Model, TotalCostUSD: new(0.0)}}
	backend.Sanitize(&r, steps)
	return r
}

// Note puts words of ours into the transcript.
func (u Unit) Note(format string, args ...any) {
	u.Steps.Add(transcript.Step{Type: transcript.SystemText, Text: fmt.Sprintf(format, args...)})
}

// run runs the program once.
func (u Unit) run(ctx context.Context, a Invocation, h *Handler) (backend.Result, error) {
	if f := argumentsFit(u.program.Name, a.Command.Args); f != nil {
		return Refused(f, u.Req, u.Steps), nil
	}
	l := limitsOf(u.Req)
	l.grace = cmp.Or(u.Options.Grace, l.grace)
	l.stop = cmp.Or(u.Options.StopPolicy, a.StopPolicy, l.stop)
	l.maxOutput = cmp.Or(u.Options.MaxOutput, l.maxOutput)
	a.name = u.program.Name
	a.Command.Path, a.Command.Dir, a.Command.OpenedDir = u.Path, u.Dir(), u.Req.OpenedDir
	a.Command.Mark, a.Command.Supervisor, a.Command.Lease = process.NewMark(u.Req.RunID.String()), u.Options.Supervisor, u.Req.Lease
	result, err := run(ctx, a, h, l, u.Steps)
	if errors.Is(err, errNotStarted) {
		return Refused(work.Fail(work.ClassInfra, err.Error()), u.Req, u.Steps), nil
	}
	return result, err
}

// Dir is where the work happens.
func (u Unit) Dir() string { return cmp.Or(u.Req.Dir, u.Home.Dir) }

// maxArgument is Linux's limit on one argument, with its final NUL.
const maxArgument = 128 << 10

func argumentsFit(agent string, args []string) *work.Failure {
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if len(arg) >= maxArgument {
			return work.Fail(work.ClassInvalidRequest,
				fmt.Sprintf("%.100s is %d bytes long; %s takes at most %d", name, len(arg), agent, maxArgument))
		}
		if strings.ContainsRune(arg, 0) {
			return work.Fail(work.ClassInvalidRequest, name+" holds a NUL character")
		}
	}
	return nil
}

// BaseEnv is what every agent gets. PATH and LANG give way to the configured
// ones.
func BaseEnv(home string) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"HOME=" + home, "TERM=dumb",
	}
}
