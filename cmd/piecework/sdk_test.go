package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"

	"piecework/internal/testkit/fakemodel"
)

// sdks are the official clients, which know nothing of us but the base URL.
type sdks struct {
	*program
	openai    openai.Client
	anthropic anthropic.Client
	model     *fakemodel.Server
}

func newSDKs(t *testing.T) *sdks {
	t.Helper()
	model := fakemodel.Start(t)
	model.Script(fakemodel.Turn{Text: "from the model"})
	p := launch(t, []string{
		"ANTHROPIC_API_KEY=sk-a", "ANTHROPIC_BASE_URL=" + model.URL, "OPENAI_API_KEY=sk-o", "OPENAI_BASE_URL=" + model.URL + "/v1",
	}, "dev", "--data", dataDir(t), "--listen", "127.0.0.1:0", "--claude-path", "/nowhere/claude").up()
	return &sdks{
		program: p, model: model,
		openai:    openai.NewClient(openaioption.WithBaseURL(p.server+"/v1"), openaioption.WithAPIKey("any")),
		anthropic: anthropic.NewClient(anthropicoption.WithBaseURL(p.server), anthropicoption.WithAPIKey("any")),
	}
}

// upload sends lines as a batch's input.
func (s *sdks) upload(lines ...string) *openai.FileObject {
	s.t.Helper()
	f, err := s.openai.Files.New(s.t.Context(), openai.FileNewParams{
		File: openai.File(strings.NewReader(strings.Join(lines, "\n")+"\n"), "lines.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

func (s *sdks) batch(endpoint string, lines ...string) *openai.Batch {
	s.t.Helper()
	b, err := s.openai.Batches.New(s.t.Context(), openai.BatchNewParams{
		InputFileID: s.upload(lines...).ID, Endpoint: openai.BatchNewParamsEndpoint(endpoint),
		CompletionWindow: openai.BatchNewParamsCompletionWindow24h,
		Metadata:         map[string]string{"why": "a test"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// over polls until a batch is, and sees that its counts only grow.
func (s *sdks) over(id string) *openai.Batch {
	s.t.Helper()
	var last openai.BatchRequestCounts
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		b, err := s.openai.Batches.Get(s.t.Context(), id)
		if err != nil {
			s.t.Fatal(err)
		}
		n := b.RequestCounts
		if n.Completed+n.Failed > n.Total || n.Completed < last.Completed || n.Failed < last.Failed || n.Total < last.Total {
			s.t.Errorf("counts %+v after %+v", n, last)
		}
		last = n
		switch b.Status {
		case openai.BatchStatusCompleted, openai.BatchStatusFailed, openai.BatchStatusCancelled, openai.BatchStatusExpired:
			return b
		}
	}
	s.t.Fatalf("batch %s is not over", id)
	return nil
}

type resultLine struct {
	ID       string `json:"id"`
	CustomID string `json:"custom_id"`
	Response *struct {
		StatusCode int             `json:"status_code"`
		RequestID  string          `json:"request_id"`
		Body       json.RawMessage `json:"body"`
	} `json:"response"`
	Error *struct{ Code, Message string } `json:"error"`
}

// content is a file of results, by custom id.
func (s *sdks) content(file string) map[string]resultLine {
	s.t.Helper()
	res, err := s.openai.Files.Content(s.t.Context(), file)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := s.openai.Files.Get(s.t.Context(), file)
	if err != nil || f.Bytes != int64(len(body)) || f.Purpose != "batch_output" {
		s.t.Errorf("%v: %d bytes of %+v", err, len(body), f)
	}
	lines := map[string]resultLine{}
	for text := range strings.Lines(string(body)) {
		var line resultLine
		if err := json.Unmarshal([]byte(text), &line); err != nil || !strings.HasPrefix(line.ID, "batch_req_") {
			s.t.Fatalf("%v: %s", err, text)
		}
		if _, twice := lines[line.CustomID]; twice {
			s.t.Errorf("%s comes twice", line.CustomID)
		}
		lines[line.CustomID] = line
	}
	return lines
}

func line(id, url, body string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":%s}`, id, url, body)
}

const chat = "/v1/chat/completions"

func TestOpenAISDK(t *testing.T) {
	t.Parallel()
	s := newSDKs(t)
	t.Run("mixed models", s.mixedModels)
	t.Run("other endpoints", s.otherEndpoints)
	t.Run("bad input", s.badInput)
	t.Run("refusals", s.refusals)
	t.Run("cancel", s.cancel)
	t.Run("files", s.files)
	t.Run("node", s.node)
}

func (s *sdks) with(t *testing.T) *sdks {
	p := *s.program
	p.t = t
	copied := *s
	copied.program = &p
	return &copied
}

func (s *sdks) mixedModels(t *testing.T) {
	s = s.with(t)
	s.model.ScriptFor("no", fakemodel.Turn{Status: 400, ErrorMessage: "temperature: no"})
	b := s.batch(chat,
		line("a", chat, `{"model":"mock-1","messages":[{"role":"user","content":"hello <you>"}]}`), "",
		line("b", chat, `{"model":"gpt-4.1","stream":true,"messages":[{"role":"user","content":"hello"}]}`),
		line("c", chat, `{"model":"claude-sonnet-4-5","messages":[{"role":"user","content":"hello"}]}`),
		line("d", chat, `{"model":"gpt-4.1","messages":[{"role":"user","content":"[[script:no]]"}]}`),
		line("e", chat, `{"model":"mock-1","mock":{"fail":"infra","message":"out of order"},"messages":[]}`),
		line("f", chat, `{"model":"mock-1","mock":{"fail":"hang"},"messages":[]}`),
	)
	if b.Status != openai.BatchStatusValidating || b.Object != "batch" || b.Endpoint != chat || b.CompletionWindow != "24h" ||
		b.ExpiresAt != b.CreatedAt+86400 || b.OutputFileID != "" {
		t.Errorf("%s", b.RawJSON())
	}
	b = s.over(b.ID)
	if b.Status != openai.BatchStatusCompleted || b.RequestCounts.Total != 6 || b.RequestCounts.Completed != 3 ||
		b.RequestCounts.Failed != 3 ||
		b.Metadata["why"] != "a test" || b.InProgressAt == 0 || b.FinalizingAt == 0 || b.CompletedAt == 0 || b.FailedAt != 0 ||
		b.Usage.TotalTokens == 0 || b.Usage.TotalTokens != b.Usage.InputTokens+b.Usage.OutputTokens {
		t.Errorf("%s", b.RawJSON())
	}
	out := s.content(b.OutputFileID)
	for id, says := range map[string]string{"a": "mock (no model was called): hello <you>", "b": "from the model", "c": "from the model"} {
		var answer openai.ChatCompletion
		line := out[id]
		if line.Response == nil || line.Response.StatusCode != 200 || line.Response.RequestID == "" ||
			json.Unmarshal(line.Response.Body, &answer) != nil {
			t.Errorf("%s: %+v", id, line)
			continue
		}
		if answer.Choices[0].Message.Content != says {
			t.Errorf("%s: %s", id, line.Response.Body)
		}
	}
	bad := s.content(b.ErrorFileID)
	if d := bad["d"]; d.Response == nil || d.Response.StatusCode != 400 || !strings.Contains(string(d.Response.Body), "temperature: no") || d.Error != nil {
		t.Errorf("d: %+v", d)
	}
	if e := bad["e"]; e.Response == nil || e.Response.StatusCode != 500 || !strings.Contains(string(e.Response.Body), "out of order") {
		t.Errorf("e: %+v", e)
	}
	if f := bad["f"]; f.Response != nil || f.Error == nil || f.Error.Code != "request_timeout" {
		t.Errorf("f: %+v", f)
	}
	if len(out) != 3 || len(bad) != 3 {
		t.Errorf("%d results, %d errors", len(out), len(bad))
	}
	for _, r := range s.model.Requests() {
		if r.Stream {
			t.Errorf("a stream was asked for: %s", r.Body)
		}
	}
	again, err := s.openai.Batches.Cancel(t.Context(), b.ID)
	if err != nil || again.RawJSON() != b.RawJSON() {
		t.Errorf("%v: a batch that is over was changed by a cancel: %s", err, again.RawJSON())
	}
}

func (s *sdks) otherEndpoints(t *testing.T) {
	s = s.with(t)
	responses := s.batch("/v1/responses", line("r", "/v1/responses", `{"model":"mock-1","input":"hello"}`))
	embeddings := s.batch("/v1/embeddings", line("e", "/v1/embeddings", `{"model":"mock-1","input":["a","b"]}`))
	units := s.batch("/v1/work-units", line("u", "/v1/work-units", `{"backend":"mock","prompt":"Count {text}","payload":{"text":"one two"}}`),
		line("v", "/v1/work-units", `{"backend":"mock","prompt":"x","payload":{"mock":{"fail":"refusal","message":"I would rather not"}}}`))
	for id, has := range map[*openai.Batch]string{responses: `"output_text"`, embeddings: `"embedding":[`, units: `"output":"mock`} {
		b := s.over(id.ID)
		if b.OutputFileID == "" {
			t.Errorf("%s", b.RawJSON())
			continue
		}
		for _, line := range s.content(b.OutputFileID) {
			if line.Response == nil || !strings.Contains(string(line.Response.Body), has) {
				t.Errorf("%s: %+v", b.Endpoint, line)
			}
		}
	}
	if v := s.content(s.over(units.ID).ErrorFileID)["v"]; v.Error == nil || v.Error.Code != "refusal" || v.Error.Message != "I would rather not" {
		t.Errorf("%+v", v)
	}
}

func (s *sdks) badInput(t *testing.T) {
	s = s.with(t)
	good := line("a", chat, `{"model":"mock-1","messages":[]}`)
	for name, c := range map[string]struct {
		lines []string
		code  string
		line  int64
		param string
	}{
		"duplicate":      {[]string{good, "", good}, "duplicate_custom_id", 3, "custom_id"},
		"no JSON":        {[]string{good, `{"custom_id":`}, "invalid_json_line", 2, ""},
		"no custom_id":   {[]string{`{"method":"POST","url":"/v1/chat/completions","body":{}}`}, "missing_required_parameter", 1, "custom_id"},
		"method":         {[]string{strings.Replace(good, "POST", "GET", 1)}, "invalid_method", 1, "method"},
		"url":            {[]string{good, line("b", "/v1/responses", `{"model":"mock-1"}`)}, "mismatched_url", 2, "url"},
		"no body":        {[]string{`{"custom_id":"a","method":"POST","url":"/v1/chat/completions"}`}, "missing_required_parameter", 1, "body"},
		"no model":       {[]string{line("a", chat, `{"messages":[]}`)}, "missing_required_parameter", 1, "body.model"},
		"empty":          {[]string{"", ""}, "empty_file", 0, ""},
		"too many lines": {manyLines(50_001), "request_limit_exceeded", 50_001, ""},
	} {
		b := s.over(s.batch(chat, c.lines...).ID)
		if b.Status != openai.BatchStatusFailed || b.FailedAt == 0 || b.RequestCounts.Total != 0 || len(b.Errors.Data) == 0 ||
			b.OutputFileID != "" || b.ErrorFileID != "" {
			t.Errorf("%s: %s", name, b.RawJSON())
			continue
		}
		if e := b.Errors.Data[0]; e.Code != c.code || e.Line != c.line || e.Param != c.param || e.Message == "" {
			t.Errorf("%s: %s", name, e.RawJSON())
		}
	}
	wrong := s.over(s.batch("/v1/work-units", line("u", "/v1/work-units", `{"backend":"mock","prompt":"x","promt":"y"}`)).ID)
	if len(wrong.Errors.Data) != 1 || wrong.Errors.Data[0].Param != "body.promt" {
		t.Errorf("%s", wrong.RawJSON())
	}
}

func manyLines(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = line(fmt.Sprint("line-", i), chat, `{"model":"mock-1","messages":[{"role":"user","content":"hello"}]}`)
	}
	return lines
}

// refused sees that an error is what the SDK makes of the API's own.
func refused(t *testing.T, what string, err error, status int, param string) {
	t.Helper()
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != status || api.Param != param || api.Message == "" ||
		api.Type != "invalid_request_error" || api.Response.Header.Get("x-request-id") == "" {
		t.Errorf("%s: %v", what, err)
	}
}

func (s *sdks) refusals(t *testing.T) {
	s = s.with(t)
	file := s.upload(line("a", chat, `{"model":"mock-1"}`)).ID
	other, err := s.openai.Files.New(t.Context(), openai.FileNewParams{File: openai.File(strings.NewReader("x"), "a.txt", "text/plain"),
		Purpose: openai.FilePurposeUserData})
	if err != nil {
		t.Fatal(err)
	}
	long := map[string]string{"key": strings.Repeat("x", 513)}
	for name, c := range map[string]struct {
		params openai.BatchNewParams
		param  string
	}{
		"endpoint": {openai.BatchNewParams{InputFileID: file, Endpoint: "/v1/moderations", CompletionWindow: "24h"}, "endpoint"},
		"file":     {openai.BatchNewParams{InputFileID: "file-nosuch", Endpoint: chat, CompletionWindow: "24h"}, "input_file_id"},
		"purpose":  {openai.BatchNewParams{InputFileID: other.ID, Endpoint: chat, CompletionWindow: "24h"}, "input_file_id"},
		"window":   {openai.BatchNewParams{InputFileID: file, Endpoint: chat, CompletionWindow: "1h"}, "completion_window"},
		"metadata": {openai.BatchNewParams{InputFileID: file, Endpoint: chat, CompletionWindow: "24h", Metadata: long}, "metadata.key"},
		"expiry": {openai.BatchNewParams{InputFileID: file, Endpoint: chat, CompletionWindow: "24h",
			OutputExpiresAfter: openai.BatchNewParamsOutputExpiresAfter{Seconds: 1}}, "output_expires_after.seconds"},
	} {
		_, err := s.openai.Batches.New(t.Context(), c.params)
		refused(t, name, err, 400, c.param)
	}
	_, err = s.openai.Batches.Get(t.Context(), "batch_nosuch")
	refused(t, "batch", err, 404, "id")
	_, err = s.openai.Files.Get(t.Context(), "file-nosuch")
	refused(t, "file", err, 404, "id")
	_, err = s.openai.Files.New(t.Context(), openai.FileNewParams{File: strings.NewReader("x"), Purpose: "fine-tune"})
	refused(t, "purpose", err, 400, "purpose")
	_, err = s.openai.Batches.List(t.Context(), openai.BatchListParams{Limit: openai.Int(101)})
	refused(t, "limit", err, 400, "limit")
	_, err = s.openai.Models.List(t.Context())
	refused(t, "path", err, 404, "")
}

func (s *sdks) cancel(t *testing.T) {
	s = s.with(t)
	var lines []string
	for i := range 60 {
		sleep := 0
		if i > 52 { // seven of eight slots: the others have one, in whichever order they begin
			sleep = 600
		}
		lines = append(lines, line(fmt.Sprint(i), chat, fmt.Sprintf(`{"model":"mock-1","mock":{"sleep":%d},"messages":[{"role":"user","content":"hello"}]}`, sleep)))
	}
	b := s.batch(chat, lines...)
	partial := strings.Replace(b.ID, "batch_", "file-", 1) + "-output"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // results while it runs
		res, err := s.openai.Files.Content(t.Context(), partial)
		if err == nil {
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if strings.Contains(string(body), `"custom_id":"0"`) {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("no result while it runs", err)
		}
	}
	b, err := s.openai.Batches.Cancel(t.Context(), b.ID)
	if err != nil || b.Status != openai.BatchStatusCancelling || b.CancellingAt == 0 {
		t.Fatalf("%v %s", err, b.RawJSON())
	}
	b = s.over(b.ID)
	n := b.RequestCounts
	if b.Status != openai.BatchStatusCancelled || b.CancelledAt == 0 || b.CompletedAt != 0 || n.Completed == 0 ||
		n.Completed+n.Failed != 60 {
		t.Errorf("%s", b.RawJSON())
	}
	out, bad := s.content(b.OutputFileID), s.content(b.ErrorFileID)
	if out["59"].Response != nil || int64(len(out)) != n.Completed || int64(len(bad)) != n.Failed || bad["59"].Error == nil ||
		bad["59"].Error.Code != "batch_cancelled" {
		t.Errorf("%d results, %d errors, %+v", len(out), len(bad), bad["59"])
	}
	if err := s.emptied(b.OutputFileID); err != nil {
		t.Error(err)
	}
}

// emptied deletes a file and looks that it is gone.
func (s *sdks) emptied(file string) error {
	gone, err := s.openai.Files.Delete(s.t.Context(), file)
	if err != nil || !gone.Deleted || gone.ID != file {
		return fmt.Errorf("delete: %w %+v", err, gone)
	}
	var api *openai.Error
	if _, err := s.openai.Files.Get(s.t.Context(), file); !errors.As(err, &api) || api.StatusCode != 404 {
		return fmt.Errorf("after the delete: %w", err)
	}
	return nil
}

func (s *sdks) files(t *testing.T) {
	s = s.with(t)
	text := line("a", chat, `{"model":"mock-1","messages":[{"role":"user","content":"x"}]}`)
	var ids []string
	for range 3 {
		ids = append(ids, s.upload(text).ID)
	}
	f, err := s.openai.Files.New(t.Context(), openai.FileNewParams{File: openai.File(strings.NewReader(text), "größe.jsonl",
		"application/jsonl"), Purpose: "batch",
		ExpiresAfter: openai.FileNewParamsExpiresAfter{Seconds: 3600}})
	if err != nil || f.ExpiresAt < f.CreatedAt+3590 || f.Filename != "größe.jsonl" || f.Bytes != int64(len(text)) {
		t.Errorf("%v %s", err, f.RawJSON())
	}
	ids = append(ids, f.ID)
	res, err := s.openai.Files.Content(t.Context(), f.ID)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(res.Body); string(body) != text {
		t.Errorf("content %q", body)
	}
	res.Body.Close()
	done := s.over(s.batch(chat, text).ID)
	all := map[string]int{}
	pages := s.openai.Files.ListAutoPaging(t.Context(), openai.FileListParams{Limit: openai.Int(2)})
	for pages.Next() {
		all[pages.Current().ID]++
	}
	if pages.Err() != nil {
		t.Fatal(pages.Err())
	}
	for _, id := range append(ids, done.OutputFileID) {
		if all[id] != 1 {
			t.Errorf("%s is %d times in the list", id, all[id])
		}
	}
	page, err := s.openai.Files.List(t.Context(), openai.FileListParams{Purpose: openai.String("batch_output"),
		Order: openai.FileListParamsOrderAsc, Limit: openai.Int(1)})
	if err != nil || len(page.Data) != 1 || page.Data[0].Purpose != "batch_output" || page.Data[0].Bytes == 0 {
		t.Errorf("%v %+v", err, page)
	}
	batches := s.openai.Batches.ListAutoPaging(t.Context(), openai.BatchListParams{Limit: openai.Int(1)})
	if !batches.Next() || batches.Current().ID != done.ID || !batches.Next() {
		t.Errorf("%v: the newest batch is %s", batches.Err(), batches.Current().ID)
	}
	if err := s.emptied(f.ID); err != nil {
		t.Error(err)
	}
}

// nodePackages is where the official packages for Node are; empty: nowhere.
var nodePackages = os.Getenv("PIECEWORK_TEST_NODE_SDKS")

func (s *sdks) node(t *testing.T) { s.script(t, "openai.mjs") }

// script runs a program for Node against the server.
func (s *sdks) script(t *testing.T, name string) {
	if nodePackages == "" {
		t.Skip("needs the packages openai and @anthropic-ai/sdk: PIECEWORK_TEST_NODE_SDKS names the directory they are installed in")
	}
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "-", s.server)
	cmd.Dir, cmd.Stdin = nodePackages, strings.NewReader(string(text))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

func TestAnthropicSDK(t *testing.T) {
	t.Parallel()
	s := newSDKs(t)
	t.Run("flow", s.messageFlow)
	t.Run("cancel", s.messageCancel)
	t.Run("refusals", s.messageRefusals)
	t.Run("node", func(t *testing.T) { s.script(t, "anthropic.mjs") })
}

func messageOf(id, model string, more map[string]any) anthropic.MessageBatchNewParamsRequest {
	r := anthropic.MessageBatchNewParamsRequest{CustomID: id, Params: anthropic.MessageBatchNewParamsRequestParams{
		Model: anthropic.Model(model), MaxTokens: 9,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hello " + id))},
	}}
	r.Params.SetExtraFields(more)
	return r
}

func (s *sdks) ended(id string) *anthropic.MessageBatch {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		b, err := s.anthropic.Messages.Batches.Get(s.t.Context(), id, anthropic.MessageBatchGetParams{})
		if err != nil {
			s.t.Fatal(err)
		}
		if b.ProcessingStatus == "ended" {
			return b
		}
		if n := b.RequestCounts; n.Succeeded+n.Errored+n.Canceled+n.Expired != 0 || n.Processing == 0 || b.ResultsURL != "" {
			s.t.Errorf("%s", b.RawJSON())
		}
	}
	s.t.Fatalf("batch %s has not ended", id)
	return nil
}

// results are the results of a batch by custom id.
func (s *sdks) results(id string) map[string]anthropic.MessageBatchIndividualResponse {
	s.t.Helper()
	all := map[string]anthropic.MessageBatchIndividualResponse{}
	stream := s.anthropic.Messages.Batches.ResultsStreaming(s.t.Context(), id, anthropic.MessageBatchResultsParams{})
	defer stream.Close()
	for stream.Next() {
		all[stream.Current().CustomID] = stream.Current()
	}
	if stream.Err() != nil {
		s.t.Fatal(stream.Err())
	}
	return all
}

func (s *sdks) messageFlow(t *testing.T) {
	s = s.with(t)
	s.model.ScriptFor("no", fakemodel.Turn{Status: 400, ErrorMessage: "temperature: no"})
	bad := messageOf("bad", "claude-sonnet-4-5", nil)
	bad.Params.Messages = []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("[[script:no]]"))}
	batches := s.anthropic.Messages.Batches
	b, err := batches.New(t.Context(), anthropic.MessageBatchNewParams{Requests: []anthropic.MessageBatchNewParamsRequest{
		messageOf("one", "mock-claude", nil), messageOf("two", "claude-sonnet-4-5", nil), bad,
		messageOf("hung", "mock-claude", map[string]any{"mock": map[string]any{"fail": "hang"}}),
	}})
	if err != nil || b.ProcessingStatus != "in_progress" || b.RequestCounts.Processing != 4 || b.Type != "message_batch" ||
		b.ExpiresAt.Sub(b.CreatedAt).Round(time.Minute) != 24*time.Hour {
		t.Fatalf("%v %s", err, b.RawJSON())
	}
	b = s.ended(b.ID)
	n := b.RequestCounts
	if n.Processing != 0 || n.Succeeded != 2 || n.Errored != 1 || n.Expired != 1 || n.Canceled != 0 || b.EndedAt.IsZero() ||
		b.ResultsURL != s.server+"/v1/messages/batches/"+b.ID+"/results" {
		t.Errorf("%s", b.RawJSON())
	}
	kinds := map[string]string{}
	results := s.results(b.ID)
	for id, r := range results {
		kinds[id] = r.Result.Type
	}
	if diff := cmp.Diff(map[string]string{"one": "succeeded", "two": "succeeded", "bad": "errored", "hung": "expired"}, kinds); diff != "" {
		t.Error(diff)
	}
	if text := results["one"].Result.AsSucceeded().Message.Content[0].Text; text != "mock (no model was called): hello one" {
		t.Errorf("one: %q", text)
	}
	if e := results["bad"].Result.AsErrored().Error.Error; e.Type != "invalid_request_error" || e.Message != "temperature: no" {
		t.Errorf("bad: %s", results["bad"].RawJSON())
	}
	gone, err := s.anthropic.Messages.Batches.Delete(t.Context(), b.ID, anthropic.MessageBatchDeleteParams{})
	if err != nil || gone.ID != b.ID || gone.Type != "message_batch_deleted" {
		t.Errorf("%v %+v", err, gone)
	}
	_, err = s.anthropic.Messages.Batches.Get(t.Context(), b.ID, anthropic.MessageBatchGetParams{})
	refusedMessage(t, err, 404, "not_found_error")
}

func (s *sdks) messageCancel(t *testing.T) {
	s = s.with(t)
	var ids []string
	for range 3 {
		b, err := s.anthropic.Messages.Batches.New(t.Context(),
			anthropic.MessageBatchNewParams{Requests: []anthropic.MessageBatchNewParamsRequest{
				messageOf("one", "mock-claude", map[string]any{"mock": map[string]any{"sleep": 600}}),
			}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, b.ID)
	}
	_, err := s.anthropic.Messages.Batches.Delete(t.Context(), ids[0], anthropic.MessageBatchDeleteParams{})
	refusedMessage(t, err, 400, "invalid_request_error")
	for _, id := range ids {
		b, err := s.anthropic.Messages.Batches.Cancel(t.Context(), id, anthropic.MessageBatchCancelParams{})
		if err != nil || b.ProcessingStatus == "in_progress" || b.CancelInitiatedAt.IsZero() {
			t.Errorf("%v %s", err, b.RawJSON())
		}
	}
	for _, id := range ids {
		if b := s.ended(id); b.RequestCounts.Canceled != 1 || s.results(id)["one"].Result.Type != "canceled" {
			t.Errorf("%s", b.RawJSON())
		}
	}
	var listed []string
	pages := s.anthropic.Messages.Batches.ListAutoPaging(t.Context(), anthropic.MessageBatchListParams{Limit: anthropic.Int(2)})
	for pages.Next() {
		listed = append(listed, pages.Current().ID)
	}
	if diff := cmp.Diff([]string{ids[2], ids[1], ids[0]}, listed[:min(3, len(listed))]); diff != "" || pages.Err() != nil {
		t.Error(diff, pages.Err())
	}
	before, err := s.anthropic.Messages.Batches.List(t.Context(),
		anthropic.MessageBatchListParams{BeforeID: anthropic.String(ids[0]), Limit: anthropic.Int(1)})
	if err != nil || len(before.Data) != 1 || before.Data[0].ID != ids[1] || !before.HasMore || before.FirstID != ids[1] {
		t.Errorf("%v %+v", err, before)
	}
}

func refusedMessage(t *testing.T, err error, status int, kind string) {
	t.Helper()
	var api *anthropic.Error
	if !errors.As(err, &api) || api.StatusCode != status || string(api.Type()) != kind || api.RequestID == "" {
		t.Errorf("%v, want %d %s", err, status, kind)
	}
}

func (s *sdks) messageRefusals(t *testing.T) {
	s = s.with(t)
	one := messageOf("one", "mock-claude", nil)
	for _, requests := range [][]anthropic.MessageBatchNewParamsRequest{{}, {one, one}, {messageOf("with space", "mock-claude", nil)},
		{messageOf(strings.Repeat("x", 65), "mock-claude", nil)}} {
		_, err := s.anthropic.Messages.Batches.New(t.Context(), anthropic.MessageBatchNewParams{Requests: requests})
		refusedMessage(t, err, 400, "invalid_request_error")
	}
	for _, body := range []string{`{"requests":[{"custom_id":"a","params":{}}`, `{"requests":{}}`, `[]`,
		`{"requests":[{"custom_id":"a"}]}`, `{"requests":[{"custom_id":"a","params":{},"x":1}]}`, ``, `{"x":[]}`, `{"requests":[1]}`, `{"requests":[{"custom_id":"a","params":{}}]} {}`} {
		status, answer := s.call(http.MethodPost, "/v1/messages/batches", body)
		if status != 400 || !strings.Contains(string(answer), `"type":"invalid_request_error"`) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	stream := s.anthropic.Messages.Batches.ResultsStreaming(context.WithoutCancel(t.Context()), "msgbatch_nosuch", anthropic.MessageBatchResultsParams{})
	refusedMessage(t, stream.Err(), 404, "not_found_error")
}
