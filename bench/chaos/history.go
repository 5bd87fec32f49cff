package chaos

import (
	"bufio"
	"encoding/json"
	"os"
	"sync"
	"time"
)

// The kinds of events.
const (
	KindIntend  = "intend"  // a client wants this unit
	KindSubmit  = "submit"  // it asked for it, and got this answer
	KindBatch   = "batch"   // it asked for a batch, and got this answer
	KindMove    = "move"    // it asked to pause, resume or cancel a batch, and got this answer
	KindMessage = "message" // a receiver was sent this, and gave this answer
	KindMisuse  = "misuse"  // it used a key again, with another body
	KindCancel  = "cancel"  // it asked to cancel it, and got this answer
	KindDelete  = "delete"  // it asked to delete it, and got this answer
	KindSlow    = "slow"    // a request waited long for its answer
	KindSeen    = "seen"    // the API showed a unit in a final state
	KindFault   = "fault"   // something was broken
	KindProcess = "process" // a process started or ended
	KindAgent   = "agent"   // an agent began
	KindOrphan  = "orphan"  // a process that outlived all worker processes
	KindStall   = "stall"   // the whole machine stood still from then on, for so long
	KindLeak    = "leak"    // the target held what it should not
	KindCalm    = "calm"    // everything is mended
	KindDrained = "drained" // what was accepted has ended, or the time is up
	KindOpen    = "open"    // this had not ended when the time was up
)

// Event is one line of the history. Status 0 means that no answer came: what
// became of the request is unknown.
type Event struct {
	At   time.Time `json:"at"` // when it was over
	Kind string    `json:"kind"`

	Request  string  `json:"request,omitempty"` // what a client wants once, however often it asks
	Want     *Want   `json:"want,omitempty"`
	Door     string  `json:"door,omitempty"`
	Status   int     `json:"status,omitempty"`
	Unit     string  `json:"unit,omitempty"` // or the batch
	State    string  `json:"state,omitempty"`
	Finished string  `json:"finished,omitempty"`
	Replayed bool    `json:"replayed,omitempty"`
	Error    string  `json:"error,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"` // how long it took, or lasts

	Fault   string `json:"fault,omitempty"`
	Target  string `json:"target,omitempty"`
	PID     int    `json:"pid,omitempty"`
	What    string `json:"what,omitempty"` // of a process: "started", "ended", "asked"; of a message: its type
	Code    int    `json:"code,omitempty"` // its exit code; -1: by a signal
	Run     string `json:"run,omitempty"`
	Crowded bool   `json:"crowded,omitempty"` // an agent of the unit was alive, another if this is one

	Message string `json:"message,omitempty"` // its webhook-id
	Digest  string `json:"digest,omitempty"`  // of its body
	Try     int    `json:"try,omitempty"`     // how often the message has come
}

// Want is what a client may expect of a unit.
type Want struct {
	Key      string   `json:"key,omitempty"` // Idempotency-Key
	Backend  string   `json:"backend"`
	Finals   []string `json:"finals"`             // states it may end in
	Output   string   `json:"output,omitempty"`   // of its run that succeeded
	Cost     float64  `json:"cost,omitempty"`     // of each of its finished runs
	Failures int      `json:"failures,omitempty"` // most
	Steps    int      `json:"steps,omitempty"`    // least, of its run that succeeded
	Delay    float64  `json:"delay,omitempty"`    // seconds
	Callback string   `json:"callback,omitempty"` // how who is told of its end answers; empty: nobody is
	Batch    string   `json:"batch,omitempty"`    // the request of the batch that it came with
	Cached   bool     `json:"cached,omitempty"`   // an equal unit's result will do
	Again    bool     `json:"again,omitempty"`    // its batch is run again when it is over
}

// History is all events in the order of their end.
type History []Event

// book writes the history to a file as it happens.
type book struct {
	mu     sync.Mutex
	file   *os.File
	events History
}

func newBook(path string) (*book, error) {
	file, err := os.Create(path)
	return &book{file: file}, err
}

func (b *book) write(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.At.IsZero() {
		e.At = time.Now()
	}
	b.events = append(b.events, e)
	line, err := json.Marshal(e)
	if err == nil {
		_, err = b.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // a history with holes proves nothing
	}
}

func (b *book) all() History {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events
}

func (b *book) close() { _ = b.file.Close() }

// ReadHistory reads the file of an earlier run.
func ReadHistory(path string) (History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var h History
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		h = append(h, e)
	}
	return h, lines.Err()
}
