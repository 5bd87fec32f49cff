package fakemodel_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"piecework/internal/testkit/fakemodel"
)

// callServer sends a body, JSON unless a kind is given, and returns the status and
// what came back.
func callServer(t *testing.T, method, url, kind string, body []byte) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", kind)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(said)
}

func get(t *testing.T, url string) string {
	t.Helper()
	_, said := callServer(t, http.MethodGet, url, "", nil)
	return said
}

type made struct {
	ID     string
	Status string `json:"status"`            // OpenAI's
	State  string `json:"processing_status"` // Anthropic's
	Output string `json:"output_file_id"`
	Errors string `json:"error_file_id"`
}

func decode(t *testing.T, said string) (m made) {
	t.Helper()
	if err := json.Unmarshal([]byte(said), &m); err != nil {
		t.Fatal(err, said)
	}
	return m
}

// atOpenAI makes a batch of chat lines with these ids and prompts that choose
// scripts of that name.
func atOpenAI(t *testing.T, server *fakemodel.Server, more string, ids ...string) (int, string) {
	t.Helper()
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("purpose", "batch")
	file, err := parts.CreateFormFile("file", "lines.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		fmt.Fprintf(file, `{"custom_id":%q,"method":"POST","url":"/v1/chat/completions","body":{"model":"m"%s,"messages":[{"role":"user","content":"[[script:%s]]"}]}}`+"\n", id, more, id)
	}
	_ = parts.Close()
	status, said := callServer(t, http.MethodPost, server.URL+"/v1/files", parts.FormDataContentType(), form.Bytes())
	if status != http.StatusOK {
		return status, said
	}
	return callServer(t, http.MethodPost, server.URL+"/v1/batches", "application/json",
		fmt.Appendf(nil, `{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h","metadata":{"k":"v"}}`, decode(t, said).ID))
}

func atAnthropic(t *testing.T, server *fakemodel.Server, more string, ids ...string) (int, string) {
	t.Helper()
	var lines []string
	for _, id := range ids {
		lines = append(lines, fmt.Sprintf(`{"custom_id":%q,"params":{"model":"m"%s,"messages":[{"role":"user","content":"[[script:%s]]"}]}}`, id, more, id))
	}
	return callServer(t, http.MethodPost, server.URL+"/v1/messages/batches", "application/json", []byte(`{"requests":[`+strings.Join(lines, ",")+"]}"))
}

func TestBatchesAreAnsweredByScript(t *testing.T) {
	server := fakemodel.Start(t)
	server.Batches(fakemodel.BatchPlan{Hold: true, Expire: fakemodel.Nth(2), Lose: fakemodel.Nth(3), Repeat: fakemodel.Nth(0)})
	for _, id := range []string{"a", "c", "d"} {
		server.ScriptFor(id, fakemodel.Turn{Text: "this is " + id})
	}
	server.ScriptFor("b", fakemodel.Turn{Status: 429})
	_, said := atOpenAI(t, server, "", "a", "b", "c", "d")
	openai := decode(t, said)
	_, said = atAnthropic(t, server, "", "a", "b", "c", "d")
	anthropic := decode(t, said)
	if openai.Status != "in_progress" || anthropic.State != "in_progress" || len(server.Requests()) != 0 {
		t.Errorf("%+v, %+v, %d requests", openai, anthropic, len(server.Requests()))
	}
	server.EndBatches(openai.ID)
	openai = decode(t, get(t, server.URL+"/v1/batches/"+openai.ID))
	anthropic = decode(t, get(t, server.URL+"/v1/messages/batches/"+anthropic.ID))
	if openai.Status != "expired" || anthropic.State != "in_progress" {
		t.Errorf("%+v, %+v", openai, anthropic)
	}
	server.EndBatches()
	well, badly := get(t, server.URL+"/v1/files/"+openai.Output+"/content"), get(t, server.URL+"/v1/files/"+openai.Errors+"/content")
	if strings.Count(well, "this is a") != 2 || strings.Count(well, "\n") != 2 {
		t.Errorf("output %s", well)
	}
	if strings.Count(badly, "\n") != 2 || !strings.Contains(badly, `"status_code":429`) || !strings.Contains(badly, "batch_expired") {
		t.Errorf("errors %s", badly)
	}
	results := get(t, server.URL+"/v1/messages/batches/"+anthropic.ID+"/results")
	if strings.Count(results, "this is a") != 2 || strings.Count(results, "\n") != 4 || !strings.Contains(results, "rate_limit_error") ||
		!strings.Contains(results, `"expired"`) {
		t.Errorf("results %s", results)
	}
	if got := server.Executed(); !maps.Equal(got, map[string]int{"a": 2, "b": 2, "d": 2}) {
		t.Errorf("executed %v", got)
	}
	all := server.MadeBatches()
	if len(all) != 2 || all[0].State != fakemodel.BatchExpired || all[0].Metadata["k"] != "v" ||
		!slices.Equal(all[1].Lines, []string{"a", "b", "c", "d"}) {
		t.Errorf("batches %+v", all)
	}
}

func TestBatchesThatComeToNothing(t *testing.T) {
	for _, test := range []struct {
		name           string
		plan           fakemodel.BatchPlan
		more           string
		ids            []string
		openai         string
		anthropic      int // status
		openaiStatus   int
		batches, asked int
	}{
		{"no API", fakemodel.BatchPlan{Missing: true}, "", []string{"a"}, "fakemodel has no POST", 404, 404, 0, 0},
		{"refused at once", fakemodel.BatchPlan{Fail: fakemodel.Turn{Status: 429, ErrorMessage: "slower"}}, "", []string{"a"}, "slower", 429, 429, 0, 0},
		{"made in silence", fakemodel.BatchPlan{DropReply: true}, "", []string{"a"}, "EOF", 0, 0, 2, 2},
		{"refused later", fakemodel.BatchPlan{Refuse: "token_limit_exceeded"}, "", []string{"a"}, `"code":"token_limit_exceeded","line":null`, 200, 200, 2, 1},
		{"a stream", fakemodel.BatchPlan{Hold: true}, `,"stream":true`, []string{"a"}, "stream is not supported", 400, 200, 1, 0},
		{"an id twice", fakemodel.BatchPlan{Hold: true}, "", []string{"a", "b", "a"}, `"line":3`, 400, 200, 1, 0},
		{"a bad id", fakemodel.BatchPlan{Hold: true}, "", []string{"a.b"}, "does not match", 400, 200, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := fakemodel.Start(t)
			server.ScriptFor("a")
			server.Batches(test.plan)
			status, said := atOpenAI(t, server, test.more, test.ids...)
			if status != test.openaiStatus || !strings.Contains(said, test.openai) {
				t.Errorf("OpenAI: %d %s", status, said)
			}
			if status, said = atAnthropic(t, server, test.more, test.ids...); status != test.anthropic {
				t.Errorf("Anthropic: %d %s", status, said)
			}
			if len(server.MadeBatches()) != test.batches || server.Executed()["a"] != test.asked {
				t.Errorf("%d batches, asked %v", len(server.MadeBatches()), server.Executed())
			}
		})
	}
}

func TestBatchesAreListedAndCancelled(t *testing.T) {
	server := fakemodel.Start(t)
	server.Batches(fakemodel.BatchPlan{Hold: true})
	var ids []string
	for range 3 {
		_, said := atOpenAI(t, server, "", "a")
		ids = append(ids, decode(t, said).ID)
		atAnthropic(t, server, "", "a")
	}
	first, second := get(t, server.URL+"/v1/batches?limit=2"), get(t, server.URL+"/v1/batches?limit=2&after="+ids[1])
	if !strings.Contains(first, ids[2]) || !strings.Contains(first, ids[1]) || strings.Contains(first, ids[0]+`"`) ||
		!strings.Contains(first, `"has_more":true`) {
		t.Errorf("first page %s", first)
	}
	if strings.Contains(second, ids[1]) || !strings.Contains(second, ids[0]) || !strings.Contains(second, `"has_more":false`) {
		t.Errorf("second page %s", second)
	}
	_, said := callServer(t, http.MethodPost, server.URL+"/v1/batches/"+ids[0]+"/cancel", "", nil)
	if b := decode(t, said); b.Status != "cancelled" || !strings.Contains(get(t, server.URL+"/v1/files/"+b.Errors+"/content"), "batch_cancelled") {
		t.Errorf("%s", said)
	}
	last := server.MadeBatches()[5].ID
	_, said = callServer(t, http.MethodPost, server.URL+"/v1/messages/batches/"+last+"/cancel", "", nil)
	if decode(t, said).State != "ended" || !strings.Contains(get(t, server.URL+"/v1/messages/batches/"+last+"/results"), `"canceled"`) {
		t.Errorf("%s", said)
	}
	if len(server.Executed()) != 0 {
		t.Errorf("executed %v", server.Executed())
	}
}
