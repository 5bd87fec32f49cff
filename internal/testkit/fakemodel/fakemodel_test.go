package fakemodel_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/testkit/fakemodel"
)

func post(t *testing.T, server *fakemodel.Server, body map[string]any) *http.Response {
	t.Helper()
	if body["model"] == nil {
		body["model"] = "claude-sonnet-4-5"
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(server.URL+"/v1/messages?beta=true", "application/json", bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func user(text string) map[string]any { return map[string]any{"role": "user", "content": text} }

func assistant(text string) map[string]any {
	return map[string]any{"role": "assistant", "content": []any{map[string]any{"type": "text", "text": text}}}
}

func toolResult(id string) map[string]any {
	return map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "tool_result", "tool_use_id": id, "content": "fine"},
		map[string]any{"type": "text", "text": "a reminder"},
	}}
}

func ask(t *testing.T, server *fakemodel.Server, messages ...any) (status int, text string) {
	t.Helper()
	response := post(t, server, map[string]any{"messages": messages})
	var answer struct {
		Content []struct{ Text string }
		Error   struct{ Type, Message string }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if len(answer.Content) > 0 {
		return response.StatusCode, answer.Content[0].Text
	}
	return response.StatusCode, answer.Error.Type
}

func wantAnswer(t *testing.T, server *fakemodel.Server, status int, text string, messages ...any) {
	t.Helper()
	gotStatus, gotText := ask(t, server, messages...)
	if gotStatus != status || gotText != text {
		t.Errorf("answer %d %q, want %d %q", gotStatus, gotText, status, text)
	}
}

func TestTurnIsChosenByTheConversation(t *testing.T) {
	server := fakemodel.Start(t)
	wantAnswer(t, server, 200, "ok", user("x"))
	server.Script(fakemodel.Turn{Text: "one"}, fakemodel.Turn{Text: "two"}, fakemodel.Turn{Text: "three"})
	wantAnswer(t, server, 200, "one", user("x"))
	wantAnswer(t, server, 200, "one", user("x"))
	wantAnswer(t, server, 200, "three", user("x"), assistant("a"), toolResult("1"), assistant("b"), toolResult("2"))
	wantAnswer(t, server, 200, "two", user("x"), assistant("a"), toolResult("1"))
	wantAnswer(t, server, 200, "two", user("x"), assistant("a"), toolResult("1"), user("<system-reminder>\nhm"))
	wantAnswer(t, server, 200, "one", user("x"), assistant("a"), user("next question"))
	wantAnswer(t, server, 200, "three", user("x"), assistant("a"), assistant("a"), assistant("a"), assistant("a"))
}

func TestFailuresAreUsedUp(t *testing.T) {
	server := fakemodel.Start(t)
	server.Script(
		fakemodel.Turn{Status: 429, Times: 2, Headers: map[string]string{"retry-after": "1"}},
		fakemodel.Turn{Status: 500, Times: 1},
		fakemodel.Turn{Text: "first"},
		fakemodel.Turn{Status: 529, Times: 1},
		fakemodel.Turn{Text: "second"},
	)
	second := []any{user("x"), assistant("a"), toolResult("1")}
	response := post(t, server, map[string]any{"messages": []any{user("x")}})
	if response.StatusCode != 429 || response.Header.Get("retry-after") != "1" || response.Header.Get("request-id") == "" {
		t.Errorf("got %d with %v", response.StatusCode, response.Header)
	}
	wantAnswer(t, server, 529, "overloaded_error", second...)
	wantAnswer(t, server, 429, "rate_limit_error", user("x"))
	wantAnswer(t, server, 500, "api_error", user("x"))
	wantAnswer(t, server, 200, "first", user("x"))
	wantAnswer(t, server, 200, "second", second...)

	server.Script(fakemodel.Turn{Status: 401})
	wantAnswer(t, server, 401, "authentication_error", user("x"))
	wantAnswer(t, server, 401, "authentication_error", second...)
}

func TestScriptsByMark(t *testing.T) {
	server := fakemodel.Start(t)
	server.Script(fakemodel.Turn{Text: "common"})
	var clients sync.WaitGroup
	for n := range 20 {
		name := fmt.Sprintf("unit-%d", n)
		server.ScriptFor(name, fakemodel.Turn{Status: 500, Times: 1}, fakemodel.Turn{Text: name}, fakemodel.Turn{Text: name + " again"})
		clients.Go(func() {
			prompt := user("do [[script:" + name + "]] well")
			wantAnswer(t, server, 500, "api_error", prompt)
			wantAnswer(t, server, 200, name, prompt)
			wantAnswer(t, server, 200, name+" again", prompt, assistant("a"), user("go on"))
			wantAnswer(t, server, 200, "common", user("x"))
		})
	}
	clients.Wait()
	wantAnswer(t, server, 400, "invalid_request_error", user("[[script:nobody]]"))
	if got := len(server.Requests()); got != 81 {
		t.Errorf("%d requests noted, want 81", got)
	}
}

func TestSideCallsEatNoTurn(t *testing.T) {
	server := fakemodel.Start(t)
	server.Script(fakemodel.Turn{Status: 500, Times: 1}, fakemodel.Turn{Text: "done"})
	for _, side := range []map[string]any{
		{"max_tokens": 1, "messages": []any{user("quota")}},
		{"system": "You are Claude Code. Generate a concise, sentence-case title for it.", "messages": []any{user("x")}},
	} {
		if response := post(t, server, side); response.StatusCode != 200 {
			t.Errorf("side call answered %d", response.StatusCode)
		}
	}
	wantAnswer(t, server, 500, "api_error", user("x"))
	wantAnswer(t, server, 200, "done", user("x"))
}

func TestRequestsAreParsed(t *testing.T) {
	server := fakemodel.Start(t)
	post(t, server, map[string]any{
		"system": []any{map[string]any{"type": "text", "text": "be brief"}}, "stream": true, "max_tokens": 7,
		"tools": []any{map[string]any{"name": "Bash", "description": "runs it", "input_schema": map[string]any{}}},
		"messages": []any{
			map[string]any{"role": "user", "content": []any{
				map[string]any{"type": "text", "text": "<system-reminder>no</system-reminder>"},
				map[string]any{"type": "text", "text": "look"},
				map[string]any{"type": "image", "source": map[string]any{"data": "AAAA"}},
			}},
			map[string]any{"role": "assistant", "content": []any{map[string]any{"type": "tool_use", "id": "t1", "name": "Bash",
				"input": map[string]any{"a": 1}}}},
			toolResult("t1"),
		},
	})
	r := server.Requests()[0]
	if r.System != "be brief" || !r.Stream || r.MaxTokens != 7 || r.Tools[0].Name != "Bash" || r.Prompt() != "look" || r.Index != 1 || r.Side {
		t.Errorf("request %+v", r)
	}
	if got := r.Messages[0].Content[2].Source; string(got) != `{"data":"AAAA"}` {
		t.Errorf("image source %s", got)
	}
	result := r.Messages[2].Content[0]
	if result.ToolUseID != "t1" || result.Content.Text() != "fine" {
		t.Errorf("tool result %+v", result)
	}
	if r.Headers.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", r.Headers)
	}
}

func TestOtherEndpoints(t *testing.T) {
	server := fakemodel.Start(t)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/", "", 404, "not_found_error"},
		{"HEAD", "/", "", 404, ""},
		{"GET", "/v1/models", "", 404, "not_found_error"},
		{"GET", "/v1/messages", "", 404, "not_found_error"},
		{"POST", "/v1/messages", "{", 400, "invalid_request_error"},
		{"POST", "/v1/messages", `{"model":"m"}`, 400, "messages: Field required"},
		{"POST", "/v1/messages", `{"messages":[]}`, 400, "model: Field required"},
		{"POST", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"x"}]}`, 200, `"input_tokens":`},
	} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %s, want %d with %q", c.method, c.path, response.StatusCode, body, c.status, c.want)
		}
	}
}

func TestSilenceEnds(t *testing.T) {
	server := fakemodel.Start(t)
	server.Script(fakemodel.Turn{Text: "late", Silence: time.Hour})
	failed := make(chan error, 2)
	for range 2 {
		go func() {
			body := `{"model":"m","messages":[{"role":"user","content":"x"}]}`
			client := http.Client{Timeout: testkit.Patience}
			_, err := client.Post(server.URL+"/v1/messages", "application/json", strings.NewReader(body))
			failed <- err
		}()
	}
	time.Sleep(50 * time.Millisecond)
	server.Close()
	for range 2 {
		if err := <-failed; err == nil || strings.Contains(err.Error(), "Timeout") {
			t.Errorf("got %v, want a broken connection", err)
		}
	}
}

type sseEvent struct {
	Type         string
	Index        int
	Message      struct{ Usage map[string]int }
	ContentBlock map[string]any `json:"content_block"`
	Delta        map[string]any
	Usage        map[string]int
	Error        map[string]string
}

func stream(t *testing.T, turn fakemodel.Turn) (events []sseEvent, kinds []string) {
	t.Helper()
	server := fakemodel.Start(t)
	server.Script(turn)
	response := post(t, server, map[string]any{"stream": true, "messages": []any{user("x")}})
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var event sseEvent
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
		kinds = append(kinds, event.Type)
	}
	return events, kinds
}

func joined(events []sseEvent, field string) string {
	var b strings.Builder
	for _, e := range events {
		if part, ok := e.Delta[field].(string); ok {
			b.WriteString(part)
		}
	}
	return b.String()
}

func TestStream(t *testing.T) {
	events, kinds := stream(t, fakemodel.Turn{
		Thinking: "hm", Text: "schön", Calls: []fakemodel.Call{{Name: "Bash", Input: map[string]int{"a": 1}}}, OutputTokens: 42,
	})
	want := []string{
		"message_start", "ping",
		"content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop",
		"message_delta", "message_stop",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("events %v, want %v", kinds, want)
	}
	if joined(events, "thinking") != "hm" || joined(events, "text") != "schön" || joined(events, "partial_json") != `{"a":1}` {
		t.Errorf("deltas of %+v", events)
	}
	end := events[len(events)-2]
	if end.Delta["stop_reason"] != "tool_use" || end.Usage["output_tokens"] != 42 || events[0].Message.Usage["input_tokens"] != 100 {
		t.Errorf("end %+v", end)
	}
	if call := events[9].ContentBlock; call["name"] != "Bash" || call["id"] == "" {
		t.Errorf("call %v", call)
	}
}

func TestStreamThatBreaks(t *testing.T) {
	events, kinds := stream(t, fakemodel.Turn{Text: "abcdéfghij", Cut: true})
	if got := joined(events, "text"); got != "abcd" || kinds[len(kinds)-1] != "content_block_delta" {
		t.Errorf("cut stream: %q %v", got, kinds)
	}
	events, kinds = stream(t, fakemodel.Turn{Calls: []fakemodel.Call{{Name: "Bash", Input: "abcdef"}}, Cut: true})
	if got := joined(events, "partial_json"); got != `"abc` || slices.Contains(kinds, "message_stop") {
		t.Errorf("cut call: %q %v", got, kinds)
	}
	events, _ = stream(t, fakemodel.Turn{Text: "abc", ErrorType: "overloaded_error"})
	if got := events[len(events)-1]; got.Type != "error" || got.Error["type"] != "overloaded_error" {
		t.Errorf("last event %+v", got)
	}
}

func TestDripAndLongText(t *testing.T) {
	start := time.Now()
	events, _ := stream(t, fakemodel.Turn{Text: strings.Repeat("é", 40), Drip: 10 * time.Millisecond})
	if got := joined(events, "text"); got != strings.Repeat("é", 40) || time.Since(start) < 90*time.Millisecond {
		t.Errorf("dripped %q in %v", got, time.Since(start))
	}
	events, _ = stream(t, fakemodel.Turn{TextBytes: 1 << 20})
	if got := len(joined(events, "text")); got != 1<<20 {
		t.Errorf("%d bytes of filler", got)
	}
}

func TestCutAnswerWithoutStream(t *testing.T) {
	server := fakemodel.Start(t)
	server.Script(fakemodel.Turn{Text: "whole", Cut: true})
	response := post(t, server, map[string]any{"messages": []any{user("x")}})
	if _, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want unexpected EOF", err)
	}
}
