// Package fakemodel is a scriptable model server that speaks Anthropic's
// Messages API, OpenAI's chat completions and Responses, and Google's for
// Gemini, for tests and for trying a real CLI agent without a model.
//
//	fakemodel.go        Server: start it, script it, ask what it was asked
//	turn.go             Turn: one answer; which turn answers which request
//	request.go          Request: what a client sent, parsed
//	answer.go           an answer on the wire: JSON, server-sent events, errors
//	openai.go           what OpenAI's clients send; OpenAI's errors
//	openai_answer.go    OpenAI's answers on the wire
//	gemini.go           Google's requests and answers
//	batch.go            the providers' own batches: what becomes of them, by plan
//	batch_protocols.go  OpenAI's batches and files, and Anthropic's batches, on the wire
//
// A script is chosen by the conversation, not by the order of arrival, so that
// retries, side calls and several clients at once get the answers meant for
// them; turn.go has the rules.
package fakemodel

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

const maxBody = 64 << 20

// Server answers POST /v1/messages, /v1/chat/completions, /v1/responses and
// /v1/embeddings by script, at once or in batches.
type Server struct {
	// URL is the base URL for clients, without the /v1 that OpenAI's want.
	URL string

	mu       sync.Mutex
	scripts  map[string]*script
	requests []Request
	ids      int
	batches  batches

	closing sync.Once
	closed  chan struct{}
}

// Start serves a new server on 127.0.0.1 until the test ends. It answers "ok"
// until it is scripted.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{scripts: map[string]*script{}, closed: make(chan struct{})}
	s.Script()
	listener := httptest.NewServer(s.handler())
	s.URL = listener.URL
	t.Cleanup(func() {
		s.Close()
		listener.CloseClientConnections()
		listener.Close()
	})
	return s
}

// Close ends the answers that are being waited for.
func (s *Server) Close() { s.closing.Do(func() { close(s.closed) }) }

// Script sets the turns of every conversation without a [[script:NAME]] mark
// and forgets how often earlier turns failed.
func (s *Server) Script(turns ...Turn) { s.ScriptFor("", turns...) }

// ScriptFor sets the turns of conversations whose prompt has the mark
// [[script:NAME]].
func (s *Server) ScriptFor(name string, turns ...Turn) {
	if len(turns) == 0 {
		turns = []Turn{{Text: "ok"}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[name] = &script{turns: slices.Clone(turns)}
}

// Requests returns every request for an answer seen so far, in order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forget drops the requests seen so far.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", s.serve(parseRequest, writeError))
	mux.HandleFunc("POST /v1/chat/completions", s.serve(parseChat, writeOpenAIError))
	mux.HandleFunc("POST /v1/responses", s.serve(parseResponses, writeOpenAIError))
	mux.HandleFunc("POST /v1/embeddings", s.serve(parseEmbeddings, writeOpenAIError))
	s.handleOpenAIBatches(mux)
	s.handleAnthropicBatches(mux)
	mux.HandleFunc("POST /v1/messages/count_tokens", s.countTokens)
	mux.HandleFunc("POST /v1beta/models/{call...}", s.gemini)
	mux.HandleFunc("/", s.notFound)
	return mux
}

func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	writeError(w, Turn{Status: http.StatusNotFound, ErrorMessage: "fakemodel has no " + r.Method + " " + r.URL.Path}, s.id("req"))
}

type (
	parse func(body []byte, headers http.Header) (Request, error)
	fail  func(w http.ResponseWriter, turn Turn, requestID string)
)

func (s *Server) serve(parse parse, fail fail) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request, err := s.read(w, r, parse)
		if err != nil {
			fail(w, Turn{Status: http.StatusBadRequest, ErrorMessage: err.Error()}, s.id("req"))
			return
		}
		turn := s.take(request)
		s.answer(w, r, request, turn, fail)
		if turn.Broken {
			panic(http.ErrAbortHandler)
		}
	}
}

func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	request, err := s.read(w, r, parseRequest)
	if err != nil {
		writeError(w, Turn{Status: http.StatusBadRequest, ErrorMessage: err.Error()}, s.id("req"))
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(request.Body)/4 + 1})
}

func (s *Server) read(w http.ResponseWriter, r *http.Request, parse parse) (Request, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return Request{}, err
	}
	return parse(body, r.Header)
}

// take notes the request and chooses its turn in one step, so that clients at
// once cannot use up the same failure.
func (s *Server) take(request Request) Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
	if request.Side {
		return Turn{Text: "side call"}
	}
	chosen, ok := s.scripts[request.Script]
	if !ok {
		return Turn{Status: http.StatusBadRequest, ErrorMessage: "fakemodel has no script named " + strconv.Quote(request.Script)}
	}
	return chosen.take(request.Index)
}

func (s *Server) id(prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids++
	return prefix + "_fake" + strconv.Itoa(s.ids)
}

// wait pauses for d, less when the client goes away or the server closes; it
// tells whether the answer is still wanted.
func (s *Server) wait(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	case <-s.closed:
		return false
	}
}
