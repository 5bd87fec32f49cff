package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"piecework/internal/roots"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

// rooted is a door whose units may use one directory, which has these files.
func rooted(t *testing.T, files map[string]string) (*front, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	named, err := roots.Roots{}.With("docs", dir)
	if err != nil {
		t.Fatal(err)
	}
	return openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) { o.Roots = named }), dir
}

func TestUnknownField(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(`,"promt":"x"`)).refused(422, "#/promt", `there is no field "promt"`)
	f.post("/work-units", mock(`,"batch_id":"x"`)).refused(422, "#/batch_id", "POST /batches")
	f.post("/work-units", mock(`,"tenant_id":"other"`)).refused(422, "#/tenant_id", "no field")
}

func TestWorkerAndBackend(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", `{"prompt":"x"}`).refused(422, "#/backend", "one of claude")
	f.post("/work-units", `{"prompt":"x","backend":"mock","worker":"w"}`).refused(422, "#/worker", "not both")
	f.post("/work-units", `{"prompt":"x","worker":"w"}`).refused(422, "#/worker", `no worker "w"`)
	f.post("/work-units", `{"prompt":"x","backend":""}`).refused(422, "#/backend", "say which backend")
}

func TestUnknownBackend(t *testing.T) {
	t.Parallel()
	newFront(t).post("/work-units", `{"prompt":"x","backend":"gpt"}`).refused(422, "#/backend", `no backend "gpt"; choose one of`)
}

func TestPromptIsMissingOrBlank(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", `{"backend":"mock"}`).refused(422, "#/prompt", "is missing")
	f.post("/work-units", `{"backend":"mock","prompt":null}`).refused(422, "#/prompt", "is missing")
	f.post("/work-units", `{"backend":"mock","prompt":""}`).refused(422, "#/prompt", ">= 1")
	f.post("/work-units", `{"backend":"mock","prompt":" \n\t"}`).refused(422, "#/prompt", "blanks")
}

// A request stands in place of a prompt, with nothing beside it that makes one.
func TestRequest(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const call = `"request":{"endpoint":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"What is it?"}]}}`
	f.post("/work-units", `{"backend":"claude",`+call+`}`).refused(422, "#/request", "claude has no API")
	f.post("/work-units", `{"backend":"mock","prompt":"x",`+call+`}`).refused(422, "#/prompt", "goes with a prompt")
	f.post("/work-units", `{"backend":"mock","max_cost_usd":1,`+call+`}`).refused(422, "#/max_cost_usd", "goes with a prompt")
	f.post("/work-units", `{"backend":"anthropic","request":{"endpoint":"/v1/responses","body":{}}}`).refused(422, "#/request/endpoint", "/v1/messages")
	f.post("/work-units", `{"backend":"mock","request":{"endpoint":"/v1/messages"}}`).refused(422, "#/request/body", "must be an object")
	f.post("/work-units", `{"backend":"mock","request":{"endpoint":"/v1/messages","body":{},"x":1}}`).refused(422, "#/request", "no others")
	a := f.post("/work-units", `{"backend":"mock",`+call+`}`)
	if text := string(a.body); a.status != 202 || !strings.Contains(text, `"title":"What is it?"`) ||
		!strings.Contains(text, `"model":"m"`) || !strings.Contains(text, `"request":{"endpoint"`) {
		t.Errorf("%d %s", a.status, text)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for field, values := range map[string][]string{
		"timeout":      {"-5", "0", `"-5s"`, "1e9", `"25h"`, `"1e300"`, `"soon"`, "true", "{}", `""`, `"NaN"`},
		"idle_timeout": {"-1", "86401", `"x"`}, "startup_timeout": {"0", "-1", "86401", `"x"`},
		"delay": {"-1", `"9999h"`, "[]"}, "cache": {"true", "false", "0", `"-1h"`, `"9000h"`, `{"ttl":"24h"}`},
		"expires_at": {`"soon"`, "5", `"2001-01-01T00:00:00Z"`},
		"deadline":   {`"soon"`, "5", `"2001-01-01T00:00:00Z"`, `"2030-13-01T00:00:00Z"`},
		"not_before": {`"soon"`, "5"},
	} {
		for _, value := range values {
			f.post("/work-units", mock(`,"`+field+`":`+value)).refused(422, "#/"+field, field+": ")
		}
	}
	f.post("/work-units", mock(`,"delay":5,"not_before":"2090-01-01T00:00:00Z"`)).refused(422, "#/delay", "not both")
	for _, end := range []string{"deadline", "expires_at"} {
		f.post("/work-units", mock(`,"`+end+`":"2090-01-01T00:00:00Z","not_before":"2091-01-01T00:00:00Z"`)).refused(422, "#/"+end, "before not_before")
		f.post("/work-units", mock(`,"`+end+`":"`+time.Now().Add(time.Minute).Format(time.RFC3339)+`","delay":120`)).refused(422, "#/"+end, "delay")
	}
	u := f.post("/work-units", mock(`,"timeout":"1h30m","idle_timeout":2.5,"startup_timeout":"1m","cache":"24h","delay":null,"deadline":"2090-01-01T00:00:00+01:00"`)).is(202).fields()
	if u["timeout"] != 5400.0 || u["idle_timeout"] != 2.5 || u["startup_timeout"] != 60.0 || u["cache_ttl"] != 86400.0 ||
		u["cache"] != nil || u["not_before"] != nil || u["deadline"] != "2089-12-31T23:00:00Z" {
		t.Errorf("%v", u)
	}
}

// A time that Postgres rounds to the year 10000 could be accepted, and then no
// list with the unit in it could be written.
func TestTimesThatCannotBeKept(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, field := range []string{"not_before", "deadline", "expires_at"} {
		f.post("/work-units", mock(`,"`+field+`":"9999-12-31T23:59:59-23:00"`)).refused(422, "#/"+field, "between the years")
		f.submit(mock(`,"` + field + `":"9999-12-31T23:59:59.9999999Z"`))
	}
	f.post("/work-units", mock(`,"not_before":"0000-01-01T00:00:00Z"`)).refused(422, "#/not_before", "between the years")
	f.submit(mock(`,"not_before":"0001-01-01T00:00:00Z"`))
	batch := func(at string) *answer {
		return f.post("/batches", `{"units":[{"backend":"mock","prompt":"x"}],"expires_at":"`+at+`"}`)
	}
	batch("9999-12-31T23:59:59-23:00").refused(422, "#/expires_at", "between the years")
	batch("9999-12-31T23:59:59.9999999Z").is(202)
	f.get("/work-units").is(200).fields()
	f.get("/batches").is(200).fields()
}

func TestLimitsOfFields(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for field, values := range map[string][]string{
		"max_turns": {"0", "-1", "10001", "1.5", "1e1", `"3"`}, "max_cost_usd": {"0", "-1", "1e7", `"3"`},
		"max_retries": {"-1", "101"}, "priority": {"-1", "10"}, "queue": {`"Bad Name"`, `"` + strings.Repeat("q", 65) + `"`, "7"},
		"missing_key": {`"maybe"`}, "payload": {`"text"`, "[]", "7"}, "model": {"7", `"` + strings.Repeat("m", 201) + `"`},
		"output_schema": {"7"}, "labels": {"7", `["a"]`},
	} {
		for _, value := range values {
			f.post("/work-units", mock(`,"`+field+`":`+value)).refused(422, "#/"+field, "")
		}
	}
}

func TestNullIsLeftOut(t *testing.T) {
	t.Parallel()
	u := newFront(t).post("/work-units", mock(`,"payload":null,"labels":null,"output_schema":null,"timeout":null,"max_retries":null,
		"model":null,"max_turns":null,"queue":null,"deadline":null,"worker":null,"missing_key":null`)).is(202).fields()
	if got := fmt.Sprintf("%v %v %v %v", u["payload"], u["labels"], u["timeout"], u["queue"]); got != "map[] map[] 3600 default" {
		t.Errorf("%v", u)
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprintf(`"l%d":""`, i)
	}
	for labels, place := range map[string]string{
		`{"app.io/name":5}`: "#/labels/app.io~1name",
		`{"a":null}`:        "#/labels/a",
		`{"":"x"}`:          "#/labels",
		`{"` + strings.Repeat("x", 65) + `":"x"}`:     "#/labels",
		`{"a":"` + strings.Repeat("x", 257) + `"}`:    "#/labels/a",
		`{` + strings.Join(many, ",") + `}`:           "#/labels",
		`{"a":{"b":"c"}}`:                             "#/labels/a",
		`{"z":1,"a":1,"m":1,"b":1,"y":1,"c":1,"d":1}`: "#/labels/a",
	} {
		f.post("/work-units", mock(`,"labels":`+labels)).refused(422, place, "")
	}
	f.submit(mock(`,"labels":{"app.io/name":"x","kind":"ä"}`))
}

func TestOutputSchema(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	claude := func(schema string) *answer {
		return f.post("/work-units", `{"backend":"claude","prompt":"x","output_schema":`+schema+`}`)
	}
	claude(`{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"string"}}}`).is(202)
	claude(`{"type":5}`).refused(422, "#/output_schema", "no JSON Schema")
	claude(`{"$ref":"file:///etc/passwd"}`).refused(422, "#/output_schema", "only references within the schema")
	claude(`{"$ref":"http://127.0.0.1:1/x"}`).refused(422, "#/output_schema", "only references within the schema")
}

func TestFileThatDoesNotExist(t *testing.T) {
	t.Parallel()
	f, _ := rooted(t, map[string]string{"a.txt": "a"})
	f.post("/work-units", mock(`,"payload":{"file_path":"docs:b.txt"}`)).refused(422, "#/payload/file_path", "does not exist")
	f.post("/work-units", mock(`,"payload":{"file_paths":["docs:a.txt","docs:b.txt"]}`)).refused(422, "#/payload/file_paths/1", "does not exist")
	f.submit(mock(`,"payload":{"file_path":"docs:a.txt"}`))
	f.submit(mock(`,"payload":{"file_path":null,"file_paths":null,"File_Path":5}`))
	f.post("/work-units", mock(`,"payload":{"file_path":5}`)).refused(422, "#/payload/file_path", "must be a text")
	f.post("/work-units", mock(`,"payload":{"file_paths":"docs:a.txt"}`)).refused(422, "#/payload/file_paths", "array of texts")
	f.post("/work-units", mock(`,"payload":{"file_paths":["docs:a.txt",7]}`)).refused(422, "#/payload/file_paths", "array of texts")
}

func TestFileOutsideTheRoots(t *testing.T) {
	t.Parallel()
	f, dir := rooted(t, map[string]string{"a.txt": "a", "sub/b.txt": "b"})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{
		"/etc/passwd", "docs:../../etc/passwd", "../../etc/passwd", "docs:link", "docs:sub", "other:a.txt", "/dev/zero", "/proc/self/environ",
		"file:///etc/passwd", "~/x", "docs:" + strings.Repeat("x/", 3000), dir + "/../x", "a\\nb",
	} {
		p := f.post("/work-units", mock(`,"payload":{"file_path":"`+ref+`"}`)).refused(422, "#/payload/file_path", "")
		if strings.Contains(p.Detail, dir) && !strings.HasPrefix(ref, dir) {
			t.Errorf("%.40s: tells where the root is: %s", ref, p.Detail)
		}
	}
	f.post("/work-units", mock(`,"payload":{"file_path":"docs:a.txt\u0000"}`)).refused(400, "#/payload/file_path", "NUL")
	f.submit(mock(`,"payload":{"file_paths":["docs:sub/b.txt","` + dir + `/a.txt"]}`))
}

func TestFilesWithoutRoots(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(`,"payload":{"file_path":"/etc/hostname"}`)).refused(422, "#/payload/file_path", "PIECEWORK_ROOTS")
	f.post("/work-units", mock(`,"working_directory":"/tmp"`)).refused(422, "#/working_directory", "PIECEWORK_ROOTS")
}

func TestTooManyOrTooLargeFiles(t *testing.T) {
	t.Parallel()
	f, dir := rooted(t, map[string]string{"a.txt": "a"})
	five := strings.TrimSuffix(strings.Repeat(`"docs:a.txt",`, work.DefaultFilePolicy().MaxFiles+1), ",")
	f.post("/work-units", mock(`,"payload":{"file_paths":[`+five+`]}`)).refused(422, "#/payload/file_paths", "at most 4")
	if err := os.Truncate(filepath.Join(dir, "a.txt"), work.DefaultFilePolicy().MaxBytes+1); err != nil { // sparse
		t.Fatal(err)
	}
	f.post("/work-units", mock(`,"payload":{"file_path":"docs:a.txt"}`)).refused(422, "#/payload/file_path", "at most 10485760")
}

func TestWorkingDirectoryOutsideTheRoots(t *testing.T) {
	t.Parallel()
	f, dir := rooted(t, map[string]string{"sub/a.txt": "a"})
	for _, ref := range []string{"/", "/etc", "docs:..", "docs:sub/a.txt", "docs:nope", "other:sub"} {
		f.post("/work-units", mock(`,"working_directory":"`+ref+`"`)).refused(422, "#/working_directory", "")
		f.post("/work-units", mock(`,"payload":{"working_directory":"`+ref+`"}`)).refused(422, "#/payload/working_directory", "")
	}
	f.submit(mock(`,"working_directory":"docs:sub"`))
	f.post("/work-units", mock(`,"cache":"1h","working_directory":"docs:sub"`)).refused(422, "#/cache", "leave out cache or working_directory")
	f.post("/work-units", mock(`,"cache":"1h","payload":{"working_directory":"docs:sub"}`)).refused(422, "#/cache", "leave out cache or working_directory")
	f.submit(mock(`,"payload":{"working_directory":"` + dir + `/sub"}`))
	f.submit(mock(`,"payload":{"Working_Directory":"/etc"}`)) // a key of the caller's own
}

// A refusal leaves the key free: the caller mends the body and sends it again.
// A repeat is answered even when what the unit names is gone by now.
