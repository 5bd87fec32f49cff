package backend

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// CLI is what every command-line agent is configured by.
type CLI struct {
	// Path is the program, or its name on PATH; empty means its usual name.
	Path string
	// Env is what the child may have of our environment, as NAME=VALUE: API
	// key, base URL, PATH for its tools. Nothing else is passed on.
	Env []string
	// Keeper holds the agent's processes together. Without one, what an agent
	// hides well enough may outlive its run.
	Keeper process.Keeper
	// Prices is for agents that tell tokens and no cost.
	Prices *Prices

	// Limits the tests shorten; 0: the usual ones.
	grace     time.Duration
	ladder    process.Ladder
	maxOutput int64 // in bytes
}

// settings are what an operator has set: what an agent is told, and where its
// models are.
func (c CLI) settings(told ...any) string {
	var servers []string
	for _, variable := range c.Env {
		if name, address, _ := strings.Cut(variable, "="); strings.HasSuffix(name, "_BASE_URL") {
			servers = append(servers, name+"="+shownURL(address))
		}
	}
	return fmt.Sprintf("%q %#v", servers, told)
}

// program is a command-line agent's own name, its usual command, and what to
// do when it is not there.
type program struct{ name, command, mend string }

// versionLimit is how long a program may take to tell its version: some are
// large, and the machine may be busy.
const versionLimit = 20 * time.Second

// version returns what the program's --version prints.
func (c CLI) version(ctx context.Context, p program) (string, error) {
	path, err := c.find(p)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	home, err := os.MkdirTemp("", "piecework-version-") // some write into it before they say a word
	if err != nil {
		return "", fmt.Errorf("make a home to ask %s for its version: %w", p.name, err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = append(baseEnv(home), c.Env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		shown, _ := work.Cut(strings.TrimSpace(stdout.String()+stderr.String()), 300)
		return "", fmt.Errorf("%s does not start: %s --version: %w: %s; %s", p.name, path, err, shown, p.mend)
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (c CLI) find(p program) (string, error) {
	path, err := exec.LookPath(cmp.Or(c.Path, p.command))
	if err != nil {
		return "", fmt.Errorf("%s is not here: %w; %s", p.name, err, p.mend)
	}
	return filepath.Abs(path)
}

// setting returns the value of a variable that the child will see.
func (c CLI) setting(name string) string {
	value := ""
	for _, entry := range c.Env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// cliUnit is one unit on its way through a command-line agent.
type cliUnit struct {
	cli     CLI
	program program
	path    string
	req     Request
	home    home
	steps   *transcript.Writer
}

// ready finds the program and makes the unit's directories. What it made for
// the run alone is to be removed by leave.
func (c CLI) ready(p program, req Request, steps *transcript.Writer) (cliUnit, *work.Failure, error) {
	u := cliUnit{cli: c, program: p, req: req, steps: steps}
	var err error
	if u.path, err = c.find(p); err != nil {
		return u, work.Fail(work.ClassInfra, err.Error()), nil
	}
	u.home, err = makeHome(p, req)
	if err == nil {
		u.noteProject()
	}
	return u, nil, err
}

func (u cliUnit) leave() { _ = os.RemoveAll(u.home.tmp) }

// refuse is the result of a unit that did not get as far as a process.
func refuse(f *work.Failure, req Request, steps *transcript.Writer) Result {
	r := Result{Error: f, Metadata: Metadata{SessionID: req.SessionID, Model: req.Model, TotalCostUSD: new(0.0)}}
	tidy(&r, steps)
	return r
}

// note puts words of ours into the transcript.
func (u cliUnit) note(format string, args ...any) {
	u.steps.Add(transcript.Step{Type: transcript.SystemText, Text: fmt.Sprintf(format, args...)})
}

// run runs the program once, with the command and the ears that a holds.
func (u cliUnit) run(ctx context.Context, a agent) (Result, error) {
	if f := argumentsFit(u.program.name, a.command.Args); f != nil {
		return refuse(f, u.req, u.steps), nil
	}
	l := limitsOf(u.req)
	l.grace = cmp.Or(u.cli.grace, l.grace)
	l.ladder = cmp.Or(u.cli.ladder, a.ladder, l.ladder)
	l.maxOutput = cmp.Or(u.cli.maxOutput, l.maxOutput)
	a.name = u.program.name
	a.command.Path, a.command.Dir, a.command.OpenedDir = u.path, u.dir(), u.req.OpenedDir
	a.command.Mark, a.command.Keeper, a.command.Lease = process.NewMark(u.req.RunID.String()), u.cli.Keeper, u.req.Lease
	result, err := run(ctx, a, l, u.steps)
	if errors.Is(err, errNotStarted) {
		return refuse(work.Fail(work.ClassInfra, err.Error()), u.req, u.steps), nil
	}
	return result, err
}

// dir is where the work happens.
func (u cliUnit) dir() string { return cmp.Or(u.req.Dir, u.home.dir) }

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

// baseEnv is what every agent gets. PATH and LANG give way to the configured
// ones.
func baseEnv(home string) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"HOME=" + home, "TERM=dumb",
	}
}

// goOn is what a session is told that was cut off and holds the unit's prompt.
const goOn = "This session was interrupted before it was done. Go on with the task from where it stopped and give the answer that it asks for."

// further is what a session that has the prompt is told.
func further(req Request) string {
	if req.Repair != nil {
		return req.Repair.Words
	}
	return goOn
}

// finishNow is what a session is told that ended its turn to wait for something.
const finishNow = "Nobody will come back to this session, and whatever was left to run in the background or for a later time was stopped. " +
	"Do not wait for anything. Finish the task now and give the answer that it asks for."

// exchange is what a unit and its agent say to each other.
type exchange struct {
	// prompt is the whole of it; after is what a session is told that was cut
	// off and has the prompt.
	prompt, after string
	// holds tells whether the session to go on with has the prompt: a client
	// may have been killed before it wrote it down.
	holds func() bool
	// once runs one process. It attaches the unit's files to the whole prompt
	// only: the session has them then.
	once func(req Request, words string, whole bool) (Result, heard, error)
}

// heard is what a process has told beside its result.
type heard struct {
	misfit  bool // the answer does not fit the schema
	open    bool // the turn ended to wait for something
	unknown bool // the session to go on with is not there
	taken   bool // the session to begin is there already
}

// converse runs a unit from the start or from where its session stopped, once
// more when its turn ended to wait for something, and once more to have an
// answer mended that does not fit the schema. A session that is not what the
// caller believed costs nothing: no model has been asked.
func (u cliUnit) converse(ctx context.Context, x exchange) (Result, error) {
	req := u.req
	if req.Repair != nil { // for a session that is not there any more
		x.prompt += "\n\n" + req.Repair.Words
	}
	open := func() (Result, heard, error) {
		if req.Resume && x.holds() {
			return x.once(req, x.after, false)
		}
		return x.once(req, x.prompt, true)
	}
	first, heard, err := open()
	switch {
	case err != nil || ctx.Err() != nil:
		return first, err
	case heard.taken && !req.Resume:
		u.note("session %s was begun by an earlier run: resuming it", req.SessionID)
		req.Resume = true
		first, heard, err = open()
	case heard.unknown && req.Resume:
		u.note(fromTheStart)
		req.Resume, req.SessionCostUSD = false, 0
		first, heard, err = open()
	}
	again := func(words string) {
		if err != nil || ctx.Err() != nil || !req.ContinueAfter(first.Metadata) {
			return
		}
		u.note("%s; asking once more", first.Error.Message)
		var second Result
		second, heard, err = x.once(req, words, false)
		second.Output = cmp.Or(second.Output, first.Output)
		second.Metadata = first.Metadata.and(second.Metadata)
		second.CostIncomplete = second.CostIncomplete || first.CostIncomplete
		first = second
	}
	if heard.open {
		again(finishNow)
	}
	if heard.misfit {
		again(first.Error.Message + "\n\nGive the whole answer again as JSON that fits, and nothing else.")
	}
	return first, err
}

const fromTheStart = "the session to resume is not here: starting from the beginning"

// noSession matches what an agent says of a session that it does not have.
var noSession = regexp.MustCompile(`(?i)(session|conversation|chat|thread)\b.{0,80}\bnot found|no (session|conversation|chat) found|no such (session|conversation|chat)`)

// lacksSession tells whether an agent ended because it does not have the
// session that it was to go on with.
func lacksSession(req Request, end ending) bool {
	return req.Resume && end.stopped == nil && noSession.MatchString(end.stderr)
}

// anyLine tells whether a line of an agent's own record is what is sought.
func anyLine(path string, sought func(line []byte) bool) bool {
	file, err := roots.OpenRegular(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	from := bufio.NewReaderSize(file, 64<<10)
	for {
		line, _, err := readLine(from, maxLine)
		if sought(line) {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// The session's id is kept in the unit's home: some clients choose it by
// themselves, and a run that was lost cannot tell it.
func (u cliUnit) sessionFile() string { return u.program.name + "-session" }

func (u cliUnit) remember(session string) {
	_, _ = u.home.put(u.sessionFile(), session) // without it a lost run starts anew
}

// findSession finds the session to go on with, or has the unit start anew.
func (u *cliUnit) findSession() {
	if !u.req.Resume {
		return
	}
	id, err := File{Path: filepath.Join(u.home.dir, u.sessionFile())}.read()
	if u.req.Resume = err == nil && len(id) > 0; u.req.Resume {
		u.req.SessionID = string(id)
		return
	}
	u.note(fromTheStart)
}

// sessionOf sees that a request's session id is one that agents take.
func sessionOf(req Request) Request {
	if uuid.Validate(req.SessionID) != nil {
		req.SessionID, req.Resume, req.SessionCostUSD = uuid.NewString(), false, 0
	}
	return req
}

// answerInFile is what to do about an agent that says too much. The same work
// would be as long again, and cost as much.
const answerInFile = "; have the agent write what is long into a file, and answer with the file's name"

// lostAnswer is the failure of a run whose answer may have been in a line that was
// too long to be taken; nil when there was none.
func lostAnswer(agent string, end ending) *work.Failure {
	if end.missed == 0 {
		return nil
	}
	return work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
		"the answer of %s is lost: a line of its output has %d bytes, and %d (%d MiB) is the most that is read%s",
		agent, end.missed, maxLine, maxLine>>20, answerInFile)+withStderr(end.stderr))
}

// died says what it means that an agent ended without its last word.
func died(agent string, end ending) *work.Failure {
	if f := lostAnswer(agent, end); f != nil {
		return f
	}
	how := "in an unknown way"
	if end.state != nil {
		how = end.state.String()
		if !end.state.Exited() {
			return work.Fail(work.ClassCrash, agent+" was ended by a signal ("+how+") before it gave a result"+withStderr(end.stderr))
		}
	}
	if !end.silent || end.state == nil || end.state.Success() {
		return work.Fail(work.ClassCrash, agent+" ended ("+how+") without a result"+withStderr(end.stderr))
	}
	class := classOfWords(end.stderr)
	if class == "" {
		class = work.ClassInfra
		if refusedToStart.MatchString(end.stderr) {
			class = work.ClassInvalidRequest
		}
	}
	return work.Fail(class, agent+" did not start ("+how+")"+withStderr(end.stderr))
}
