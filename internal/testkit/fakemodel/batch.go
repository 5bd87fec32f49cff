package fakemodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// BatchPlan is what becomes of batches. A batch goes by the plan that holds
// when something happens to it.
type BatchPlan struct {
	// Hold: batches end by EndBatches only; else at once.
	Hold bool
	// Missing: there is no batch API; all of it is 404.
	Missing bool
	// Fail: an attempt to make a batch is answered so and comes to nothing; only
	// its Status, error and headers count.
	Fail Turn
	// DropReply: a batch is made, and the connection breaks before anyone is told.
	DropReply bool
	// Refuse: OpenAI takes the batch and ends it as failed, with this code, such
	// as token_limit_exceeded. RefuseLines are numbers, from 1, that it names.
	Refuse      string
	RefuseLines []int

	// Of the lines of a batch that ends: Expire were not asked, and with one of
	// them the batch is expired; TimeOut ran out of OpenAI's time; Lose are asked
	// and in no file of results; Repeat are in it twice.
	Expire, TimeOut, Lose, Repeat Pick
}

// Pick chooses lines of a batch by their place, from 0, and their id. Nil
// chooses none.
type Pick func(n int, id string) bool

// Nth chooses lines by their places, from 0.
func Nth(places ...int) Pick {
	return func(n int, _ string) bool { return slices.Contains(places, n) }
}

// Every chooses all lines.
func Every(int, string) bool { return true }

func (p Pick) takes(n int, id string) bool { return p != nil && p(n, id) }

// Batch is a batch as the provider has it.
type Batch struct {
	ID       string
	Endpoint string            // of its lines; Anthropic has one only
	Metadata map[string]string // at OpenAI
	Lines    []string          // their ids, in the order they came in
	State    string            // one of the Batch… states
}

// The states of a batch, the same for both providers.
const (
	BatchRunning   = "running"
	BatchEnded     = "ended"
	BatchExpired   = "expired"
	BatchCancelled = "cancelled"
	BatchRefused   = "refused"
)

// batches are all of a provider's batches. Its lock is taken before the
// server's own.
type batches struct {
	mu       sync.Mutex
	plan     BatchPlan
	all      []*batch // in the order they were made
	files    map[string][]byte
	executed map[string]int
}

type batch struct {
	Batch
	made, ended time.Time
	lines       []batchLine
	file        string // OpenAI's, of the lines
	refused     string // the code of a refusal
	badLines    []int  // that it names
	results     []batchResult
}

func (b *batch) atOpenAI() bool { return b.Endpoint != "/v1/messages" }

type batchLine struct {
	ID   string
	Body json.RawMessage
}

// batchResult is what became of a line: an answer as over HTTP, or an error
// of the batch, such as expired, without one.
type batchResult struct {
	id        string
	status    int
	requestID string
	body      json.RawMessage
	fate      string
}

func (r batchResult) well() bool { return r.status == http.StatusOK }

// Batches sets what becomes of batches from now on.
func (s *Server) Batches(plan BatchPlan) {
	s.batches.mu.Lock()
	defer s.batches.mu.Unlock()
	s.batches.plan = plan
}

// EndBatches ends the batches of these ids that still run; all without ids.
func (s *Server) EndBatches(ids ...string) {
	s.batches.mu.Lock()
	defer s.batches.mu.Unlock()
	for _, b := range s.batches.all {
		if b.State == BatchRunning && (len(ids) == 0 || slices.Contains(ids, b.ID)) {
			s.endBatch(b)
		}
	}
}

// MadeBatches returns every batch, in the order they were made.
func (s *Server) MadeBatches() []Batch {
	s.batches.mu.Lock()
	defer s.batches.mu.Unlock()
	var all []Batch
	for _, b := range s.batches.all {
		all = append(all, b.Batch)
	}
	return all
}

// Executed tells how often each line was asked of the model, by its id.
func (s *Server) Executed() map[string]int {
	s.batches.mu.Lock()
	defer s.batches.mu.Unlock()
	return maps.Clone(s.batches.executed)
}

var lineID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkLines says what is wrong with lines; number 0: with none of them.
func checkLines(lines []batchLine) (number int, err error) {
	seen := map[string]bool{}
	var model string
	for n, line := range lines {
		var body struct {
			Model  string `json:"model"`
			Stream bool   `json:"stream"`
		}
		_ = json.Unmarshal(line.Body, &body)
		switch {
		case !lineID.MatchString(line.ID):
			return n + 1, fmt.Errorf("custom_id %q does not match %s", line.ID, lineID)
		case seen[line.ID]:
			return n + 1, fmt.Errorf("duplicate custom_id %q", line.ID)
		case body.Stream:
			return n + 1, fmt.Errorf("stream is not supported in batches")
		case n > 0 && body.Model != model:
			return n + 1, fmt.Errorf("mismatched model %q", body.Model)
		}
		seen[line.ID], model = true, body.Model
	}
	if len(lines) == 0 {
		return 0, fmt.Errorf("no lines")
	}
	return 0, nil
}

// makeBatch adds a batch; it ends at once when it is not held.
func (s *Server) makeBatch(b *batch) {
	b.made, b.State = time.Now(), BatchRunning
	for _, line := range b.lines {
		b.Lines = append(b.Lines, line.ID)
	}
	s.batches.all = append(s.batches.all, b)
	if !s.batches.plan.Hold || b.refused != "" {
		s.endBatch(b)
	}
}

func (s *Server) endBatch(b *batch) {
	plan := s.batches.plan
	b.ended, b.State = time.Now(), BatchEnded
	if b.atOpenAI() && b.refused == "" {
		b.refused, b.badLines = plan.Refuse, plan.RefuseLines
	}
	if b.refused != "" {
		b.State = BatchRefused
		return
	}
	for n, line := range b.lines {
		result := batchResult{id: line.ID}
		switch {
		case plan.Expire.takes(n, line.ID):
			result.fate, b.State = BatchExpired, BatchExpired
		case plan.TimeOut.takes(n, line.ID):
			result.fate = "timeout"
		default:
			result = s.runLine(b, line)
		}
		if plan.Lose.takes(n, line.ID) {
			continue
		}
		b.results = append(b.results, result)
		if plan.Repeat.takes(n, line.ID) {
			b.results = append(b.results, result)
		}
	}
}

// runLine answers a line as a request of its own. A turn that breaks off has
// no connection to break here: it is a 500.
func (s *Server) runLine(b *batch, line batchLine) batchResult {
	if s.batches.executed == nil {
		s.batches.executed = map[string]int{}
	}
	s.batches.executed[line.ID]++
	parse, fail := parseRequest, writeError
	switch b.Endpoint {
	case "/v1/chat/completions":
		parse, fail = parseChat, writeOpenAIError
	case "/v1/responses":
		parse, fail = parseResponses, writeOpenAIError
	case "/v1/embeddings":
		parse, fail = parseEmbeddings, writeOpenAIError
	}
	into := httptest.NewRecorder()
	request, err := parse(line.Body, http.Header{})
	if err != nil {
		fail(into, Turn{Status: http.StatusBadRequest, ErrorMessage: err.Error()}, s.id("req"))
	} else {
		turn := s.take(request)
		turn.Silence = 0 // all wait for this
		if turn.Cut || turn.Broken || turn.Raw != "" || turn.ErrorType != "" && turn.Status == 0 {
			turn.Status = http.StatusInternalServerError
		}
		s.answer(into, httptest.NewRequest(http.MethodPost, "/", http.NoBody), request, turn, fail)
	}
	header := into.Header()
	return batchResult{
		id: line.ID, status: into.Code, requestID: header.Get("x-request-id") + header.Get("request-id"), body: into.Body.Bytes(),
	}
}

// cancel ends a batch that runs; nothing of it is asked any more.
func (b *batch) cancel() {
	if b.State != BatchRunning {
		return
	}
	b.State, b.ended = BatchCancelled, time.Now()
	for _, line := range b.lines {
		b.results = append(b.results, batchResult{id: line.ID, fate: BatchCancelled})
	}
}

// fates counts the lines that have an answer, and what the others came to.
func (b *batch) fates() map[string]int {
	results := map[string]batchResult{}
	for _, r := range b.results {
		results[r.id] = r
	}
	count := map[string]int{}
	for _, id := range b.Lines {
		r, found := results[id]
		switch {
		case b.State == BatchRunning:
			count["running"]++
		case !found || r.well(): // what is lost is counted all the same
			count["succeeded"]++
		case r.fate == "":
			count["errored"]++
		default:
			count[r.fate]++
		}
	}
	return count
}

// batchCall serves a call that is about batches, under their lock.
func (s *Server) batchCall(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.batches.mu.Lock()
		defer s.batches.mu.Unlock()
		if s.batches.plan.Missing {
			s.notFound(w, r)
			return
		}
		serve(w, r)
	}
}

// failBatch answers an attempt to make a batch with an error.
func (s *Server) failBatch(w http.ResponseWriter, fail fail, turn Turn) {
	for name, value := range turn.Headers {
		w.Header().Set(name, value)
	}
	fail(w, turn, s.id("req"))
}

// batchOf serves a call about one batch.
func (s *Server) batchOf(fail fail, serve func(http.ResponseWriter, *batch)) http.HandlerFunc {
	return s.batchCall(func(w http.ResponseWriter, r *http.Request) {
		at := slices.IndexFunc(s.batches.all, func(b *batch) bool { return b.ID == r.PathValue("id") })
		if at < 0 {
			fail(w, Turn{Status: http.StatusNotFound, ErrorMessage: "no batch " + r.PathValue("id")}, s.id("req"))
			return
		}
		serve(w, s.batches.all[at])
	})
}

// page is the part of a list of batches that a client asks for, the newest
// first.
func (s *Server) page(r *http.Request, after string, of func(*batch) bool) (page []*batch, more bool) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = 20
	}
	after = r.URL.Query().Get(after)
	seen := after == ""
	for _, b := range slices.Backward(s.batches.all) {
		switch {
		case !of(b):
		case !seen:
			seen = b.ID == after
		case len(page) == limit:
			return page, true
		default:
			page = append(page, b)
		}
	}
	return page, false
}

// jsonLines joins what is each in one line.
func jsonLines(lines [][]byte) []byte {
	if len(lines) == 0 {
		return nil
	}
	return append(bytes.Join(lines, []byte("\n")), '\n')
}
