package gemini

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/roots"
	"piecework/internal/work"
)

// record is the client's own record of a session, which it writes while
// it works. It has what the events lack: thoughts, tokens before the end, and
// the answers without the pieces of those that were cut off.
type record struct {
	home, session string

	read   int64           // bytes that have been taken
	former map[string]bool // messages of earlier runs
	turns  []string        // messages of this run's model, in order
	last   string          // the text of the newest
	uses   map[string]backend.Use
}

type tokens struct {
	Input    int64 `json:"input"`
	Output   int64 `json:"output"`
	Cached   int64 `json:"cached"`
	Thoughts int64 `json:"thoughts"`
}

type message struct {
	ID       string          `json:"id"`
	Type     string          `json:"type"`
	Content  json.RawMessage `json:"content"`
	Thoughts []struct {
		Subject     string `json:"subject"`
		Description string `json:"description"`
	} `json:"thoughts"`
	Model  string `json:"model"`
	Tokens tokens `json:"tokens"`
}

func (t tokens) usage() work.Usage {
	return work.Usage{
		InputTokens: max(0, t.Input-t.Cached), OutputTokens: t.Output + t.Thoughts, CacheReadTokens: t.Cached,
	}
}

// recordPath finds the record of a session, "" when there is none.
func recordPath(home, session string) string {
	if len(session) < 8 {
		return ""
	}
	paths, _ := filepath.Glob(filepath.Join(home, ".gemini", "tmp", "*", "chats", "session-*-"+session[:8]+".jsonl"))
	for _, path := range slices.Backward(paths) { // named by their time
		file, err := roots.OpenRegular(path)
		if err != nil {
			continue
		}
		var first struct {
			SessionID string `json:"sessionId"`
		}
		line, _ := bufio.NewReader(file).ReadBytes('\n')
		_ = file.Close()
		if backend.Decode(line, &first) == nil && first.SessionID == session {
			return path
		}
	}
	return ""
}

// hasPrompt tells whether a session's record has the unit's prompt. What looks
// like a command the client leaves out when it resumes.
func hasPrompt(path, prompt string) bool {
	return cli.AnyLine(path, func(line []byte) bool {
		var m message
		if backend.Decode(line, &m) != nil || m.Type != "user" {
			return false
		}
		text := textOf(m.Content)
		first := strings.TrimSpace(text)
		return strings.Contains(text, prompt) && !strings.HasPrefix(first, "/") && !strings.HasPrefix(first, "?")
	})
}

// openRecord makes ready to read what a run adds to a session's record.
func openRecord(home, session string) *record {
	r := &record{home: home, session: session, former: map[string]bool{}, uses: map[string]backend.Use{}}
	r.update()
	for _, id := range r.turns {
		r.former[id] = true
	}
	r.turns, r.last, r.uses = nil, "", map[string]backend.Use{}
	return r
}

// update reads what is new and returns the thoughts in it.
func (r *record) update() (thoughts []string) {
	path := recordPath(r.home, r.session)
	if path == "" {
		return nil
	}
	file, err := roots.OpenRegular(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(r.read, io.SeekStart); err != nil {
		return nil
	}
	from := bufio.NewReader(file)
	for {
		line, size, err := backend.ReadLine(from, cli.MaxLine)
		if errors.Is(err, io.EOF) { // the last line may be half written
			return thoughts
		}
		if err != nil {
			return thoughts
		}
		r.read += size
		thoughts = append(thoughts, r.take(bytes.TrimSpace(line))...)
	}
}

func (r *record) take(line []byte) (thoughts []string) {
	var m message
	if backend.Decode(line, &m) != nil || m.Type != "gemini" || r.former[m.ID] {
		return nil
	}
	if !slices.Contains(r.turns, m.ID) { // it is written again when its tools have answered
		r.turns = append(r.turns, m.ID)
		for _, t := range m.Thoughts {
			thoughts = append(thoughts, strings.TrimSpace(t.Subject+"\n"+t.Description))
		}
	}
	if m.Tokens != (tokens{}) {
		r.uses[m.ID] = backend.Use{Model: m.Model, Usage: m.Tokens.usage()}
	}
	if id := r.turns[len(r.turns)-1]; id == m.ID {
		r.last = textOf(m.Content)
	}
	return thoughts
}

// textOf is a message's content, which is a text or parts.
func textOf(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = backend.Decode(content, &parts)
	for _, p := range parts {
		text += p.Text
	}
	return text
}
