package bench

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// pace is how often a stream has a word.
const pace = 500 * time.Millisecond

// slowModel answers chat completions and messages a few words at a time until
// it is told that it is enough.
type slowModel struct {
	open   atomic.Int64 // streams
	most   atomic.Int64 // at once
	enough chan struct{}
}

// streams is how many streams there are, and were at most at once.
type streams struct{ Open, Most int64 }

func beSlowModel() {
	m := &slowModel{enough: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() { _ = http.Serve(listener, m) }()
	fmt.Println("http://" + listener.Addr().String())
	end := sync.OnceFunc(func() { close(m.enough) })
	eachWord(func(word string) any {
		if word == "end" {
			end()
		}
		return streams{m.open.Load(), m.most.Load()}
	})
}

const (
	chatWord = `data: {"model":"slow","choices":[{"index":0,"delta":{"content":"WORD"}}]}` + "\n\n"
	chatEnd  = `data: {"model":"slow","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
		`data: {"model":"slow","choices":[],"usage":{"prompt_tokens":300,"completion_tokens":100}}` + "\n\ndata: [DONE]\n\n"

	messagesWord = "event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"WORD"}}` + "\n\n"
	messagesEnd  = "event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":100}}` + "\n\n" +
		"event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n"
)

func (m *slowModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	word, end := chatWord, chatEnd
	switch {
	case r.Method != http.MethodPost: // is it there?
		return
	case strings.HasSuffix(r.URL.Path, "/messages"):
		word, end = messagesWord, messagesEnd
	}
	say := func(words string) { fmt.Fprint(w, strings.Replace(word, "WORD", words, 1)) }
	open := m.open.Add(1)
	defer m.open.Add(-1)
	for most := m.most.Load(); open > most && !m.most.CompareAndSwap(most, open); most = m.most.Load() {
	}
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(pace)
	defer tick.Stop()
	say(strings.Repeat("many words ", 55)) // enough for a step
	for {
		say("and some more words ")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-m.enough:
			fmt.Fprint(w, end)
			return
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
