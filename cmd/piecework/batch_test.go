package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"piecework/examples"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

// The clients that hand in batches, against one server: the commands, the
// examples, and agents through MCP.
func TestBatchClients(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	for name, text := range map[string]string{"in/a.txt": "one", "in/b.txt": "one two", "in/c.md": "no"} {
		write(t, filepath.Join(docs, name), text)
	}
	uses := t.TempDir()
	if err := os.CopyFS(filepath.Join(uses, "examples"), examples.Uses()); err != nil {
		t.Fatal(err)
	}
	p := dev(t, dataDir(t), "--roots", "docs="+docs+",examples="+filepath.Join(uses, "examples")).up()
	entries, err := fs.ReadDir(examples.Uses(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, use := range entries {
		t.Run("example "+use.Name(), func(t *testing.T) { t.Parallel(); runExample(t, p, uses, use.Name()) })
	}
	t.Run("commands", func(t *testing.T) { t.Parallel(); batchCommands(t, p) })
	t.Run("refusals", func(t *testing.T) { t.Parallel(); batchRefusals(t, p) })
	t.Run("mcp over stdio", func(t *testing.T) { t.Parallel(); mcpOverStdio(t, p) })
	t.Run("mcp over HTTP", func(t *testing.T) { t.Parallel(); mcpOverHTTP(t, p) })
}

// runExample runs the commands of an example's README as they stand there.
func runExample(t *testing.T, p *program, dir, use string) {
	readme, err := fs.ReadFile(examples.Uses(), use+"/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, found := strings.Cut(string(readme), "```sh\n")
	script, _, ended := strings.Cut(script, "```")
	if !found || !ended {
		t.Fatal("there is no block of commands in it")
	}
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script)
	shell.Dir = dir
	shell.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "PATH="+p.onPath()+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "completed") && !strings.Contains(string(out), "succeeded") {
		t.Errorf("%s\n%v\n%s", script, err, out)
	}
}

// The page's table of statuses is that of the code.
func TestBatchesPageShowsTheStatuses(t *testing.T) {
	page, err := os.ReadFile("../../docs/batches.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Statuses\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var shown []work.BatchStatus
	for _, row := range tableRow.FindAllStringSubmatch(section, -1) {
		shown = append(shown, work.BatchStatus(row[1]))
	}
	if diff := cmp.Diff(work.BatchStatuses, shown); diff != "" {
		t.Errorf("docs/batches.md and internal/work/batch.go differ (-code +page):\n%s", diff)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// batchDo runs `piecework batch …` and returns what it printed.
func batchDo(t *testing.T, p *program, stdin string, want int, args ...string) (out, errs string) {
	t.Helper()
	s := newStage(t)
	s.Stdin = strings.NewReader(stdin)
	if code := run(s.App, append(append([]string{"batch"}, args...), "--server", p.server)); code != want {
		t.Fatalf("%q: exit code %d, want %d\n%s%s", args, code, want, s.out.String(), s.errs.String())
	}
	return s.out.String(), s.errs.String()
}

func has(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in:\n%s", want, text)
		}
	}
}

func batchCommands(t *testing.T, p *program) {
	dir := t.TempDir()

	// A test first, then a person, then the rest, its results and its synthesis.
	out, errs := batchDo(t, p, "", exitAttention, "submit", "--source", "files:docs:in", "--suffix", ".txt", "-b", "mock", "--prompt", "Read {file_name}",
		"--title", "letters", "--test-first", "1", "--max-cost", "5", "--concurrency", "2", "--synthesis-prompt", "Sum {total} up", "--wait")
	has(t, out, "awaiting_approval", "letters", "2: 1 queued, 1 succeeded", "$0.00 of at most $5.00", "forecast", "1 units are left", "piecework batch approve")
	has(t, errs, "1 of 2 done, awaiting_approval", "piecework batch cancel")
	id := strings.Fields(out)[1]
	if out, _ = batchDo(t, p, "", 0, "results", id); strings.Count(out, "\n") != 1 {
		t.Errorf("results of the test:\n%s", out)
	}
	out, _ = batchDo(t, p, "", 0, "approve", id, "--concurrency", "3", "--wait")
	has(t, out, "completed", "2: 2 succeeded", "synthesis", "at once    3")
	table := filepath.Join(dir, "results.csv")
	batchDo(t, p, "", 0, "results", id, "-o", table)
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(text), "custom_id,", "a.txt,", "b.txt,", "succeeded")
	out, _ = batchDo(t, p, "", 0, "list", "--q", "LETT", "--status", "completed")
	has(t, out, id, "2/2", "letters")

	// Lines, with flags, from standard input; two of three succeed, until they are tried again.
	lines := `{"custom_id":"a","payload":{"text":"one"}}
{"payload":{"text":"two"}}
{"custom_id":"c","payload":{"text":"x","mock":{"fail":"refusal","fail_times":1}}}
`
	unit := write(t, filepath.Join(dir, "unit.json"), `{"backend":"mock","max_turns":3,"prompt":"Look at {text}"}`)
	out, errs = batchDo(t, p, lines, exitUnsuccessful, "submit", "-", "--unit", unit, "--prompt", "Count {text}", "--title", "lines", "--wait")
	has(t, out, "completed_with_failures", "2 succeeded, 1 failed", "piecework batch retry")
	has(t, errs, "1 of 3 units did not succeed")
	id = strings.Fields(out)[1]
	out, _ = batchDo(t, p, "", 0, "results", id)
	has(t, out, `"custom_id":"a"`, `"custom_id":"2"`, `"class":"refusal"`)
	out, _ = batchDo(t, p, "", 0, "results", id, "--status", "failed", "--format", "csv")
	if strings.Count(out, "\n") != 2 {
		t.Errorf("one row and a head are to be there:\n%s", out)
	}
	out, _ = batchDo(t, p, "", 0, "retry", id, "--status", "failed", "--wait", "--json")
	var b batch
	if err := json.Unmarshal([]byte(out), &b); err != nil || b.Status != work.BatchCompleted || b.Counts.Succeeded != 3 {
		t.Errorf("%v %s", err, out)
	}
	var shared struct {
		Prompt   string
		MaxTurns int `json:"max_turns"`
	}
	if err := json.Unmarshal(b.Unit, &shared); err != nil || shared.Prompt != "Count {text}" || shared.MaxTurns != 3 {
		t.Errorf("the flags and the file make %s", b.Unit)
	}

	// A batch in JSON is paused, goes on, and is cancelled.
	long := write(t, filepath.Join(dir, "batch.json"), `{"title":"old","unit":{"backend":"mock","prompt":"x","payload":{"mock":{"sleep":"1h"}}},
		"concurrency":1,"units":[{},{}]}`)
	out, _ = batchDo(t, p, "", 0, "submit", long, "--title", "new", "--idempotency-key", "only once")
	id = strings.TrimSpace(out)
	if out, _ = batchDo(t, p, "", 0, "submit", long, "--title", "new", "--idempotency-key", "only once"); strings.TrimSpace(out) != id {
		t.Errorf("%s, then %s", id, out)
	}
	eventuallyBatch(t, p, id, func(b batch) bool { return b.Counts.Running == 1 })
	out, _ = batchDo(t, p, "", 0, "pause", id, "--by", "Ada", "--why", "lunch")
	has(t, out, "in_progress (paused)", "new")
	out, _ = batchDo(t, p, "", 0, "status", id)
	has(t, out, "by Ada: lunch", "piecework batch resume")
	has(t, first(batchDo(t, p, "", 0, "resume", id, "--max-cost", "3")), "in_progress")
	batchDo(t, p, "", exitConflict, "approve", id)
	out, _ = batchDo(t, p, "", exitUnsuccessful, "cancel", id, "--why", "enough", "--wait")
	has(t, out, "cancelled", "enough", "2: 2 cancelled")

	// Files of this machine are uploaded; a dry run leaves nothing.
	rows := write(t, filepath.Join(dir, "rows.csv"), "nr;name\nk1;Ann\nk2;Bob\n")
	uploads := func() int {
		_, files := p.call("GET", "/files?limit=100", "")
		return strings.Count(string(files), `"rows.csv"`)
	}
	out, _ = batchDo(t, p, "", 0, "submit", "--csv", rows, "--delimiter", ";", "--id-field", "nr", "-b", "mock", "--prompt", "Hi {name}", "--dry-run")
	has(t, out, "2 would be made", "k1", "Hi Ann")
	if n := uploads(); n != 0 {
		t.Errorf("%d uploads are left by a dry run", n)
	}
	out, _ = batchDo(t, p, "", 0, "submit", "--csv", rows, "--delimiter", ";", "--id-field", "nr", "-b", "mock", "--prompt", "Hi {name}",
		"--wait", "--json")
	has(t, out, `"status": "completed"`, `"input_file"`)
	if n := uploads(); n != 1 {
		t.Errorf("%d uploads", n)
	}
	large := write(t, filepath.Join(dir, "large.csv"), "name\n"+strings.Repeat(strings.Repeat("Ann", 20_000)+"\n",
		200)) // more than a unit's file may have
	out, _ = batchDo(t, p, "", 0, "submit", "--csv", large, "-b", "mock", "--prompt", "Hi {name}", "--dry-run")
	has(t, out, "200 would be made")
	values := write(t, filepath.Join(dir, "doc.json"), `{"rows":[{"name":"Ann"},{"name":"Bob"}]}`)
	has(t, first(batchDo(t, p, "", 0, "submit", "--json-file", values, "--items", "/rows", "--limit", "1", "-b", "mock", "--prompt",
		"Hi {name}", "--wait")), "1: 1 succeeded")
	people := write(t, filepath.Join(dir, "people.jsonl"), "{\"name\":\"Ann\"}\n{\"name\":\"Bob\"}\n")
	has(t, first(batchDo(t, p, "", 0, "submit", "--jsonl", people, "-b", "mock", "--prompt", "Hi {name}", "--wait")), "2: 2 succeeded")
	has(t, first(batchDo(t, p, lines, 0, "submit", "-", "-b", "mock", "--prompt", "{text}", "--dry-run")), "3 would be made")
}

func first(out, _ string) string { return out }

func eventuallyBatch(t *testing.T, p *program, id string, cond func(batch) bool) {
	t.Helper()
	testkit.Eventually(t, "the batch is so far", func() bool {
		var b batch
		_, document := p.call("GET", "/batches/"+id, "")
		return json.Unmarshal(document, &b) == nil && cond(b)
	})
}

// What cannot be is refused with what to do.
func batchRefusals(t *testing.T, p *program) {
	dir := t.TempDir()
	rows := write(t, filepath.Join(dir, "bad.csv"), "name\nAnn\n")
	empty := write(t, filepath.Join(dir, "empty.jsonl"), "\n\n")
	for _, c := range []struct {
		stdin, want string
		code        int
		args        []string
	}{
		{"", "no column", exitUsage, []string{"submit", "--csv", rows, "-b", "mock", "--prompt", "Hi {name}", "--id-field", "nr"}},
		{"", "standard input), or a source", exitUsage, []string{"submit"}},
		{"", "no unit in it", exitUsage, []string{"submit", empty}},
		{"", "no such file", exitUsage, []string{"submit", filepath.Join(dir, "nowhere.jsonl")}},
		{"", "not both", exitUsage, []string{"submit", rows, "--suffix", ".txt"}},
		{"{\n", "is no JSON object", exitUsage, []string{"submit", "-"}},
		{"{}\n", "TYPE:PATH", exitUsage, []string{"submit", "--source", "files"}},
		{`{"prompt":"x"}`, "line 1", exitUsage, []string{"submit", "-", "--title", "x"}},
		{"{}", "failure_rate", exitUsage, []string{"submit", "-", "--stop-when", "failure_rate=often"}},
		{"", "no JSON object", exitUsage, []string{"submit", "-", "--unit", rows}},
		{"", "piecework batch list", exitNotFound, []string{"status", idA}},
		{"", "piecework batch list", exitNotFound, []string{"results", idA, "-o", filepath.Join(dir, "out.jsonl")}},
		{"", "exclude each other", exitUsage, []string{"results", idA, "--json", "--format", "csv"}},
		{"", "in_progress", exitUsage, []string{"list", "--status", "soon"}},
	} {
		_, errs := batchDo(t, p, c.stdin, c.code, c.args...)
		has(t, errs, c.want)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*out*")); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
	if _, files := p.call("GET", "/files?limit=100", ""); strings.Contains(string(files), "bad.csv") {
		t.Error("the upload of a batch that was refused is still there")
	}
}
