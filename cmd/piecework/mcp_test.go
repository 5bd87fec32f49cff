package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// agent is a client of `piecework mcp`.
type agent struct {
	t       *testing.T
	session *mcp.ClientSession
}

func connect(t *testing.T, transport mcp.Transport) agent {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return agent{t, session}
}

// text calls a tool and returns what it says, and whether that is an error.
func (a agent) text(tool string, arguments any) (string, bool) {
	a.t.Helper()
	answer, err := a.session.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	text := answer.Content[0].(*mcp.TextContent).Text
	if len(text) > maxToolText+100 {
		a.t.Errorf("%s answers %d bytes", tool, len(text))
	}
	return text, answer.IsError
}

func (a agent) call(tool string, arguments, into any) {
	a.t.Helper()
	text, failed := a.text(tool, arguments)
	if failed {
		a.t.Fatalf("%s: %s", tool, text)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		a.t.Fatalf("%s: %v: %s", tool, err, text)
	}
}

type object map[string]any

// An agent hands in work over stdio, with the program as its child.
func mcpOverStdio(t *testing.T, p *program) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "mcp")
	child.Env = []string{asProgram + "=1", "PIECEWORK_SERVER=" + p.server, "HOME=" + t.TempDir(), "TMPDIR=" + os.Getenv("TMPDIR")}
	a := connect(t, &mcp.CommandTransport{Command: child})
	list, err := a.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if tool.InputSchema == nil || tool.Description == "" {
			t.Errorf("%s has no schema or no description", tool.Name)
		}
	}
	slices.Sort(names)
	if want := "approve_batch batch_results cancel_batch cancel_work_unit explain get_batch get_work_unit list_backends list_work_units retry submit_batch submit_work_unit"; strings.Join(names, " ") != want {
		t.Errorf("tools %v", names)
	}

	var u toolUnit
	a.call("submit_work_unit", object{"backend": "mock", "prompt": "Say {x}",
		"payload": object{"x": "hello", "mock": object{"output_bytes": 40000}}, "wait": 50}, &u)
	if u.Status != "succeeded" || u.OutputBytes != 40000 || u.NextOffset == 0 || len(*u.Output) > maxToolOutput {
		t.Fatalf("%+v", u)
	}
	whole := *u.Output
	for at := u.NextOffset; at > 0; {
		var rest toolUnit
		a.call("get_work_unit", object{"id": u.ID, "output_offset": at}, &rest)
		whole += *rest.Output
		at = rest.NextOffset
	}
	if len(whole) != 40000 {
		t.Errorf("in parts the output has %d bytes", len(whole))
	}

	a.call("submit_work_unit", object{"backend": "mock", "prompt": "x", "on_denied": "note"}, &u)
	if _, document := p.call("GET", "/work-units/"+u.ID, ""); !strings.Contains(string(document), `"on_denied":"note"`) {
		t.Errorf("on_denied is lost: %s", document)
	}
	if text, failed := a.text("submit_work_unit", object{"backend": "mock", "prompt": "x", "on_denied": "ignore"}); !failed ||
		!strings.Contains(text, "on_denied") {
		t.Errorf("on_denied that does not exist: %s", text)
	}

	var b toolBatch
	var units []object
	for i := range 5 {
		units = append(units, object{"custom_id": fmt.Sprint("n", i), "payload": object{"n": i, "mock": object{"output_bytes": 9000}}})
	}
	batch := object{"title": "numbers", "unit": object{"backend": "mock", "prompt": "Look at {n}"}, "units": units, "test_first": 2}
	batch["dry_run"] = true
	a.call("submit_batch", batch, &b)
	if !b.DryRun || b.Counts.Total != 5 || b.Sample.CustomID != "n0" {
		t.Errorf("%+v", b)
	}
	delete(batch, "dry_run")
	b = toolBatch{}
	a.call("submit_batch", batch, &b)
	a.call("get_batch", object{"id": b.ID, "wait": 50}, &b)
	if b.Status != "awaiting_approval" || b.Forecast == nil || b.Forecast.Left != 3 || len(b.Next) != 3 {
		t.Fatalf("%+v", b)
	}
	a.call("approve_batch", object{"id": b.ID}, &b)
	b = toolBatch{ID: b.ID}
	a.call("get_batch", object{"id": b.ID, "wait": 50}, &b)
	if b.Status != "completed" {
		t.Fatalf("%+v", b)
	}
	var seen []string
	for cursor, calls := "", 0; calls < 9; calls++ {
		var page struct {
			Results []toolUnit
			Next    string
		}
		a.call("batch_results", object{"id": b.ID, "limit": 2, "cursor": cursor}, &page)
		for _, r := range page.Results {
			seen = append(seen, r.CustomID)
			if r.OutputBytes != 9000 || len(page.Results) == 2 && r.NextOffset != len(*r.Output) || len(page.Results) == 1 &&
				len(*r.Output) != 9000 {
				t.Errorf("%+v", r)
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if strings.Join(seen, " ") != "n0 n1 n2 n3 n4" {
		t.Errorf("results %v", seen)
	}

	var page struct {
		Units []toolUnit
		Next  *string
	}
	a.call("list_work_units", object{"batch": b.ID, "limit": 3, "status": "succeeded"}, &page)
	if len(page.Units) != 3 || page.Next == nil {
		t.Errorf("%+v", page)
	}
	if text, failed := a.text("list_backends", object{}); failed || !strings.Contains(text, `"mock"`) {
		t.Error(text)
	}
	for tool, arguments := range map[string]object{
		"get_work_unit": {"id": idA}, "get_batch": {"id": idA}, "retry": {}, "batch_results": {"id": b.ID, "status": "soon"},
		"submit_batch":     {"unit": object{}},
		"submit_work_unit": {"backend": "mock", "prompt": "x", "timeout": "soon"}, "approve_batch": {"id": b.ID},
	} {
		if text, failed := a.text(tool, arguments); !failed || text == "" {
			t.Errorf("%s %v: %s", tool, arguments, text)
		}
	}
	if text, failed := a.text("submit_work_unit", object{"backend": "mock", "prompt": "x", "colour": "red"}); !failed || !strings.Contains(text, "colour") {
		t.Error(text)
	}
}

// The same over HTTP; a browser that was led there gets nothing.
func mcpOverHTTP(t *testing.T, p *program) {
	m := launch(t, []string{"PIECEWORK_SERVER=" + p.server}, "mcp", "--http", "127.0.0.1:0").up()
	a := connect(t, &mcp.StreamableClientTransport{Endpoint: m.server, DisableStandaloneSSE: true})
	var u toolUnit
	a.call("submit_work_unit", object{"backend": "mock", "prompt": "sleep", "payload": object{"mock": object{"sleep": "1h"}}}, &u)
	if text, failed := a.text("explain", object{"id": u.ID}); failed || !strings.Contains(text, "reasons") {
		t.Error(text)
	}
	a.call("cancel_work_unit", object{"id": u.ID}, &u)
	a.call("get_work_unit", object{"id": u.ID, "wait": 50}, &u)
	if u.Status != "cancelled" {
		t.Errorf("%+v", u)
	}
	a.call("retry", object{"unit": u.ID}, &u)
	a.call("cancel_work_unit", object{"id": u.ID}, &u)
	var b toolBatch
	a.call("submit_batch", object{"unit": object{"backend": "mock", "prompt": "x"},
		"units": []object{{"payload": object{"mock": object{"fail": "refusal"}}}}}, &b)
	a.call("get_batch", object{"id": b.ID, "wait": 50}, &b)
	if b.Status != "completed_with_failures" {
		t.Errorf("%+v", b)
	}
	a.call("retry", object{"batch": b.ID}, &b)
	a.call("cancel_batch", object{"id": b.ID, "why": "enough"}, &b)

	for name, headers := range map[string]map[string]string{
		"another name":  {"Host": "evil.example:80"},
		"another site":  {"Origin": "https://evil.example"},
		"another port":  {"Origin": "http://127.0.0.1:1"},
		"a null origin": {"Origin": "null"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.server, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for header, value := range headers {
			req.Header.Set(header, value)
		}
		if host := headers["Host"]; host != "" {
			req.Host = host
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	for _, address := range []string{"0.0.0.0:0", "example.com:80", "7071"} {
		s := newStage(t)
		var cancel context.CancelFunc
		s.Ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if code := run(s.App, []string{"mcp", "--http", address}); code != exitUsage {
			t.Errorf("--http %s ends with %d: %s", address, code, s.errs.String())
		}
	}
}
