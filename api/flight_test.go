package api

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"piecework/api/body"
	"piecework/internal/testkit"
	"piecework/internal/webhook"
)

// Whoever proves nothing is refused before the body has come.
func TestUnsignedWebhookIsNotRead(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.trigger("hook", webhook.GitHub, "", "x")
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The body is announced and never sent.
	if _, err := io.WriteString(conn, "POST /triggers/hook HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil || !strings.Contains(string(answer[:n]), " 401 ") {
		t.Errorf("%q %v", answer[:n], err)
	}
}

// Bodies that are still coming use up the budget of all, and the next is sent
// away instead of filling the memory.
func TestBodiesShareABudget(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.bodies.Budget = body.NewBudget(256 << 10)
	slow, in := io.Pipe()
	done := make(chan int, 1)
	go func() {
		req, _ := http.NewRequest("POST", f.url+"/work-units", slow)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			done <- 0
			return
		}
		_ = resp.Body.Close()
		done <- resp.StatusCode
	}()
	if _, err := io.WriteString(in, `{"backend":"mock","prompt":"`+strings.Repeat("x", 150<<10)); err != nil {
		t.Fatal(err)
	}
	left := func() int64 { return f.bodies.Budget.Left() }
	testkit.Eventually(t, "the first body is held", func() bool { return left() < 128<<10 })
	p := f.post("/work-units", mock(`,"payload":{"x":"`+strings.Repeat("y", 200<<10)+`"}`))
	if p.refused(503, "", "too many large bodies"); p.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if _, err := io.WriteString(in, `"}`); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	if status := <-done; status != 202 {
		t.Errorf("the first: %d", status)
	}
	testkit.Eventually(t, "all is given back", func() bool { return left() == 256<<10 })
}
