package cli

import (
	"bufio"
	"cmp"
	"context"
	"path/filepath"
	"regexp"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/roots"
)

// ResumePrompt is what a session is told that was cut off and holds the unit's prompt.
const ResumePrompt = "This session was interrupted before it was done. " +
	"Go on with the task from where it stopped and give the answer that it asks for."

// FollowUp is what a session that has the prompt is told.
func FollowUp(req backend.Request) string {
	if req.Repair != nil {
		return req.Repair.Words
	}
	return ResumePrompt
}

// finishPrompt is what a session is told that ended its turn to wait for something.
const finishPrompt = "Nobody will come back to this session, and whatever was left to run in the background " +
	"or for a later time was stopped. " +
	"Do not wait for anything. Finish the task now and give the answer that it asks for."

// Conversation is what a unit and its agent say to each other.
type Conversation struct {
	// Prompt is the whole of it; FollowUp is for a session that was interrupted
	// and has the prompt.
	Prompt, FollowUp string
	// HasPrompt tells whether the session to resume has the prompt: a client
	// may have been killed before it wrote it down.
	HasPrompt func() bool
	// Once runs one process. It attaches the unit's files to the whole prompt
	// only: the session has them then.
	Once func(req backend.Request, words string, whole bool) (backend.Result, Findings, error)
}

// Findings is what a process has told beside its result.
type Findings struct {
	SchemaMismatch bool // the answer does not fit the schema
	Unfinished     bool // the turn ended to wait for something
	SessionUnknown bool // the session to go on with is not there
	SessionTaken   bool // the session to begin is there already
}

// Converse runs a unit from the start or from where its session stopped, once
// more when its turn ended to wait for something, and once more to have an
// answer mended that does not fit the schema. A session that is not what the
// caller believed costs nothing: no model has been asked.
func (u Unit) Converse(ctx context.Context, x Conversation) (backend.Result, error) {
	req := u.Req
	if req.Repair != nil { // for a session that is not there any more
		x.Prompt += "\n\n" + req.Repair.Words
	}
	open := func() (backend.Result, Findings, error) {
		if req.Resume && x.HasPrompt() {
			return x.Once(req, x.FollowUp, false)
		}
		return x.Once(req, x.Prompt, true)
	}
	first, found, err := open()
	switch {
	case err != nil || ctx.Err() != nil:
		return first, err
	case found.SessionTaken && !req.Resume:
		u.Note("session %s was begun by an earlier run: resuming it", req.SessionID)
		req.Resume = true
		first, found, err = open()
	case found.SessionUnknown && req.Resume:
		u.Note(RestartNote)
		req.Resume, req.SessionCostUSD = false, 0
		first, found, err = open()
	}
	again := func(words string) {
		if err != nil || ctx.Err() != nil || !req.ContinueAfter(first.Metadata) {
			return
		}
		u.Note("%s; asking once more", first.Error.Message)
		var second backend.Result
		second, found, err = x.Once(req, words, false)
		second.Output = cmp.Or(second.Output, first.Output)
		second.Metadata = first.Metadata.And(second.Metadata)
		second.CostIncomplete = second.CostIncomplete || first.CostIncomplete
		first = second
	}
	if found.Unfinished {
		again(finishPrompt)
	}
	if found.SchemaMismatch {
		again(first.Error.Message + "\n\nGive the whole answer again as JSON that fits, and nothing else.")
	}
	return first, err
}

// RestartNote says that a session is gone.
const RestartNote = "the session to resume is not here: starting from the beginning"

// noSession matches what an agent says of a session that it does not have.
var noSession = regexp.MustCompile(`(?i)(session|conversation|chat|thread)\b.{0,80}\bnot found|` +
	`no (session|conversation|chat) found|no such (session|conversation|chat)`)

// SessionMissing tells whether an agent ended because it does not have the
// session that it was to go on with.
func SessionMissing(req backend.Request, end Ending) bool {
	return req.Resume && end.Stopped == nil && noSession.MatchString(end.Stderr)
}

// AnyLine tells whether a line of an agent's own record is what is sought.
func AnyLine(path string, sought func(line []byte) bool) bool {
	file, err := roots.OpenRegular(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	from := bufio.NewReaderSize(file, 64<<10)
	for {
		line, _, err := backend.ReadLine(from, MaxLine)
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
func (u Unit) sessionFile() string { return u.program.Name + "-session" }

// SaveSession keeps the id of the session for a run that comes later.
func (u Unit) SaveSession(session string) {
	_, _ = u.Home.WriteFile(u.sessionFile(), session) // without it a lost run starts anew
}

// FindSession finds the session to go on with, or has the unit start anew.
func (u *Unit) FindSession() {
	if !u.Req.Resume {
		return
	}
	id, err := backend.File{Path: filepath.Join(u.Home.Dir, u.sessionFile())}.Read()
	if u.Req.Resume = err == nil && len(id) > 0; u.Req.Resume {
		u.Req.SessionID = string(id)
		return
	}
	u.Note(RestartNote)
}

// WithSessionID sees that a request's session id is one that agents take.
func WithSessionID(req backend.Request) backend.Request {
	if uuid.Validate(req.SessionID) != nil {
		req.SessionID, req.Resume, req.SessionCostUSD = uuid.NewString(), false, 0
	}
	return req
}
