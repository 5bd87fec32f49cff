package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"

	"piecework/internal/testkit"
)

var (
	batchLines = flag.Int("batch-lines", 400, "lines of the batch that everything dies under; 50000 shows what is promised")
	lineBytes  = flag.Int("batch-line-bytes", 1000, "of the document in each line")
)

// mostGrowth is how much more memory the API may need for a batch of
// promisedLines.
const (
	mostGrowth    = 64 << 20
	promisedLines = 50_000
)

// A batch comes through the unmodified SDK, and every line has one result,
// whether nothing dies meanwhile, or the API, the worker process and Redis do.
func TestOpenAIBatchOfManyLines(t *testing.T) {
	t.Parallel()
	for _, deaths := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaths %t", deaths), func(t *testing.T) { batchOfManyLines(t, deaths) })
	}
}

// parts is the program in parts that can be killed one by one.
type parts struct {
	t           *testing.T
	env         []string
	address     string
	api, worker *program
	redis       *testkit.RedisServer
}

func (h *parts) openAPI() { h.api = launch(h.t, h.env, "api", "--listen", h.address).up() }
func (h *parts) openWorker() {
	h.worker = launch(h.t, h.env, "worker", "--listen", "127.0.0.1:0", "--concurrency", "32").up()
}

func newParts(t *testing.T) *parts {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &parts{t: t, address: free.Addr().String(), redis: testkit.StartRedis(t)}
	_ = free.Close()
	h.env = []string{"DATABASE_URL=" + testkit.DB(t, nil), "REDIS_URL=" + h.redis.URL, "PIECEWORK_DATA=" + dataDir(t),
		"PIECEWORK_LEASE=10s", "PIECEWORK_HEARTBEAT=1s"}
	h.openAPI()
	h.openWorker()
	return h
}

// memory is what a process holds now, in bytes.
func (p *program) memory() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

func batchOfManyLines(t *testing.T, deaths bool) {
	h := newParts(t)
	s := &sdks{program: h.api, openai: openai.NewClient(openaioption.WithBaseURL("http://"+h.address+"/v1"),
		openaioption.WithAPIKey("any"), openaioption.WithMaxRetries(5))}
	s = s.with(t)
	document := strings.Repeat("word ", *lineBytes/5)
	var text strings.Builder
	for i := range *batchLines {
		text.WriteString(line(fmt.Sprint("doc-", i), chat, fmt.Sprintf(`{"model":"mock-1","messages":[{"role":"user","content":"%d %s"}]}`, i, document)) + "\n")
	}
	s.over(s.batch(chat, manyLines(20)...).ID) // so that all that is made once is made
	before, peak := h.api.memory(), int64(0)
	watch := func() { peak = max(peak, h.api.memory()-before) }
	begun := time.Now()
	f, err := s.openai.Files.New(t.Context(), openai.FileNewParams{File: openai.File(strings.NewReader(text.String()), "many.jsonl",
		"application/jsonl"), Purpose: openai.FilePurposeBatch})
	if err != nil {
		t.Fatal(err)
	}
	watch()
	uploaded := time.Since(begun)
	b, err := s.openai.Batches.New(t.Context(), openai.BatchNewParams{InputFileID: f.ID, Endpoint: chat, CompletionWindow: "24h"})
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	kills := []func(){
		func() { h.api.kill(); h.openAPI(); before = h.api.memory() },
		func() { h.worker.kill(); h.openWorker() },
		func() { h.redis.Stop(); h.redis.Start() },
		func() {
			h.api.kill()
			h.worker.kill()
			h.redis.Stop()
			h.openAPI()
			h.redis.Start()
			h.openWorker()
			before = h.api.memory()
		},
	}
	if deaths {
		kills[0]() // while the units are made
		killed++
	}
	total, polls, last, enumerated := int64(*batchLines), 0, openai.BatchRequestCounts{}, time.Duration(0)
	for deadline := time.Now().Add(time.Minute + time.Duration(total)*50*time.Millisecond); ; time.Sleep(50 * time.Millisecond) {
		watch()
		if b, err = s.openai.Batches.Get(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		polls++
		n := b.RequestCounts
		if n.Completed+n.Failed > n.Total || n.Completed < last.Completed || n.Failed != 0 || n.Total != 0 && n.Total != total ||
			n.Total == 0 && b.Status != openai.BatchStatusValidating {
			t.Fatalf("counts %+v after %+v while it is %s", n, last, b.Status)
		}
		if last = n; n.Total > 0 && enumerated == 0 {
			enumerated = time.Since(begun)
		}
		if b.Status == openai.BatchStatusCompleted {
			break
		}
		if deaths && killed < len(kills) && n.Completed > total*int64(killed)/int64(len(kills)) {
			kills[killed]()
			killed++
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s", b.RawJSON())
		}
	}
	took := time.Since(begun)
	seen := map[string]bool{}
	res, err := s.openai.Files.Content(t.Context(), b.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var r resultLine
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Response == nil || seen[r.CustomID] {
			t.Fatalf("%v %s", err, lines.Text())
		}
		seen[r.CustomID] = true
		if len(seen)%1000 == 0 {
			watch()
		}
	}
	object, err := s.openai.Files.Get(t.Context(), b.OutputFileID)
	watch()
	if err != nil || object.Bytes == 0 || lines.Err() != nil {
		t.Errorf("%v %v %+v", err, lines.Err(), object)
	}
	if int64(len(seen)) != total || b.RequestCounts.Completed != total || deaths && killed != len(kills) {
		t.Errorf("%d results, %d deaths, %s", len(seen), killed, b.RawJSON())
	}
	if runtime.GOOS == "linux" && total >= promisedLines && peak > mostGrowth { // of fewer it is what any process takes after its start
		t.Errorf("the API grew by %d MB", peak>>20)
	}
	t.Logf("%d lines, %d MB: uploaded in %.1f s, made in %.1f s, done in %.1f s; %d polls; %d deaths; the API grew by %.1f MB at most",
		total, text.Len()>>20, uploaded.Seconds(), enumerated.Seconds(), took.Seconds(), polls, killed, float64(peak)/(1<<20))
}
