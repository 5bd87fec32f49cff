package api

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/api/web/page"
	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

func TestPagesShowWhatThereIs(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	if page := string(f.get("/").is(200).body); !strings.Contains(page, "No units yet") {
		t.Error(page)
	}
	id := f.submit(mock(""))
	f.run(id, "Three words.", threeSteps...)
	for path, wants := range map[string][]string{
		"/":                                {"Count the words", "succeeded", "/units/" + id.String()},
		"/?q=words":                        {"Count the words"},
		"/?q=nothing":                      {"No task contains “nothing”"},
		"/units/" + id.String():            {"Three words.", "begin &lt;b&gt;", "count", "$0.25", "2 turns", "1 tool call<"},
		"/?q=" + strings.Repeat("x", 5000): {"No task contains"},
	} {
		a := f.get(path).is(200)
		if kind := a.header.Get("Content-Type"); kind != "text/html; charset=UTF-8" {
			t.Errorf("%s: %s", path, kind)
		}
		for _, want := range wants {
			if !strings.Contains(string(a.body), want) {
				t.Errorf("%s lacks %q", path, want)
			}
		}
	}
	f.get("/?after=x").refused(422, "after", "")
	f.get("/units/"+uuid.NewString()).refused(404, "", "")
	f.get("/static/app.css").is(200)
}

func TestListPageGoesOn(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	oldest := f.submit(mock(""))
	for range 50 {
		f.submit(mock(""))
	}
	page := string(f.get("/?q=words").is(200).body)
	next := regexp.MustCompile(`href="(/\?after=[^"]+)">Older`).FindStringSubmatch(page)
	if next == nil || strings.Contains(page, oldest.String()) {
		t.Fatal(page)
	}
	if page := string(f.get(strings.ReplaceAll(next[1], "&amp;", "&")).is(200).body); !strings.Contains(page, oldest.String()) ||
		strings.Contains(page, "Older") {
		t.Error(page)
	}
}

// Whatever a model, a tool or a caller writes is text and nothing else.
func TestTextOfOthersIsInert(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, evil := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</pre></title></textarea><svg onload=alert(1)>`,
		`[x](javascript:alert(1))`, `![](http://evil.example/?q=1)`, `</style><link rel=stylesheet href=//evil.example>`,
		`{{.}} ${{ env.HOME }}`, `&lt;script&gt;`, `http://evil.example/`, `javascript:alert(1)`,
	} {
		body := fmt.Sprintf(`{"backend":"mock","prompt":%[1]q,"payload":{"k":%[1]q},"model":%[1]q,"system_prompt":%[1]q,"labels":{%[1]q:%[1]q}}`, evil)
		id := f.submit(body)
		c := f.claim(id)
		f.finish(c, evil, step(1, transcript.SystemText, evil), step(2, transcript.Reasoning, evil),
			transcript.Step{Number: 3, Type: transcript.Action, Content: []transcript.Content{
				{Type: transcript.Text, Text: evil}, {Type: transcript.ToolCall, ID: "c", Name: evil, Args: evil}}},
			transcript.Step{Number: 4, Type: transcript.ToolResult, CallID: "c", Name: evil, Text: evil})
		unit := "/units/" + id.String()
		failed := f.fail(body, work.ClassInfra)
		other := f.run(f.submit(mock("")), "other", step(1, transcript.SystemText, "other")).ID.String()
		for _, path := range []string{unit, "/", "/units/" + failed.String() + "/retry?change=1", "/units/" + f.submit(body).String() + "/cancel",
			"/units/retry?status=failed", "/compare?a=" + id.String() + "&b=" + other, "/compare?a=" + other + "&b=" + failed.String(), "/compare?a=" + id.String()} {
			inert(t, path, string(f.get(path).is(200).body))
		}
	}
	for _, path := range []string{"/compare?a=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "/operate/queues/default/pause?back=/%22%3E%3Cscript%3E", "/?done=%3Cb%3E"} {
		inert(t, path, string(f.get(path).body))
	}
	inert(t, "/?q=", string(f.get(`/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E`).is(200).body))
}

// What the storybook shows is what the browser tests look at.
func TestStoriesAreServedAndInert(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	book := string(f.get("/stories").is(200).body)
	for _, story := range page.Stories() {
		path := "/stories/" + story.Name
		if !strings.Contains(book, `href="`+path+`"`) {
			t.Errorf("%s is not in the list", path)
		}
		page := string(f.get(path).is(200).body)
		inert(t, path, page)
		for _, hidden := range []string{"\u202e", "\u200b", "\u2066", "\x1b", "\U000e0041"} {
			if story.Name == "unit-hostile" && strings.Contains(page, hidden) {
				t.Errorf("%s has %U as it is", path, []rune(hidden)[0])
			}
		}
	}
	f.get("/stories/none").refused(404, "", "")
}

// inert fails when a page has an element, an attribute or an address that is
// not of the templates.
func inert(t *testing.T, name, page string) {
	t.Helper()
	allowed := " html head meta title link script body header a nav main h1 h2 h3 p span section article pre details summary ol ul li form label input button code " +
		"b div select option time dialog dl dt dd kbd figure figcaption svg rect br em strong " +
		"ins del table caption thead tbody tr th td textarea blockquote tfoot small defs pattern circle path line g desc text "
	for _, tag := range regexp.MustCompile(`(?i)<([a-z][a-z0-9]*)([^>]*)>`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(allowed, " "+strings.ToLower(tag[1])+" ") {
			t.Errorf("%s: element %s", name, tag[0])
		}
		if tag[0] == `<script type="module" src="/static/app.js">` {
			continue
		}
		if regexp.MustCompile(`(?i)\s(on\w+|style|src)\s*=`).MatchString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag[2], `""`)) {
			t.Errorf("%s: attribute in %s", name, tag[0])
		}
		for _, ref := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(tag[2], -1) {
			followed := strings.HasPrefix(ref[1], "http") && strings.Contains(tag[2], `rel="nofollow noreferrer noopener" target="_blank"`)
			if !strings.HasPrefix(ref[1], "/") && !strings.HasPrefix(ref[1], "#") && !followed || strings.HasPrefix(ref[1], "//") {
				t.Errorf("%s: leads away: %s", name, tag[0])
			}
		}
	}
}

func TestPagesLoadNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, path := range []string{"/", "/docs"} {
		page := string(f.get(path).is(200).body)
		for _, ref := range regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page, -1) {
			if strings.HasPrefix(ref[1], "#") {
				continue
			}
			if !strings.HasPrefix(ref[1], "/") || strings.HasPrefix(ref[1], "//") {
				t.Errorf("%s loads %s", path, ref[1])
				continue
			}
			f.get(ref[1]).is(200)
		}
	}
	if csp := f.get("/docs").header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'self'") {
		t.Error(csp)
	}
	if page := string(f.get("/docs").body); !strings.Contains(page, "/openapi.json") {
		t.Error("the API page does not read the description")
	}
}

func TestAsynqmonMayLookAndNotTouch(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
	id := f.submit(mock(""))
	f.Wait()
	page := string(f.get("/asynqmon").is(200).body)
	script := regexp.MustCompile(`src="(/asynqmon/static/js/main[^"]+)"`).FindStringSubmatch(page)
	if script == nil || !strings.Contains(page, `READ_ONLY="true"`) && !strings.Contains(page, "READ_ONLY=true") {
		t.Fatal(page)
	}
	if a := f.get(script[1]).is(200); !strings.HasPrefix(a.header.Get("Content-Type"), "application/javascript") {
		t.Errorf("%v", a.header)
	}
	tasks := "/asynqmon/api/queues/default:mock/pending_tasks"
	task := strings.ReplaceAll(id.String(), "-", "") // Asynqmon shows ids up to the first dash
	seen := func() bool { return strings.Contains(string(f.get(tasks).is(200).body), task) }
	if !seen() {
		t.Fatal("the dispatch is not shown")
	}
	for _, call := range [][2]string{
		{"DELETE", "/asynqmon/api/queues/default:mock"}, {"POST", "/asynqmon/api/queues/default:mock:pause"},
		{"DELETE", tasks + ":delete_all"}, {"POST", tasks + ":archive_all"}, {"DELETE", tasks + "/" + task + ".1"}, {"PUT", tasks},
	} {
		f.do(call[0], call[1], "").refused(405, "", "")
		f.do("GET", call[1], "", "X-HTTP-Method-Override", call[0])
	}
	if !seen() {
		t.Error("the dispatch is gone")
	}
}

func TestAsynqmonWithoutRedis(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.get("/asynqmon").is(200)
	if a := f.get("/asynqmon/api/queues"); a.status != 500 {
		t.Errorf("%d %s", a.status, a.body)
	}
	f.get("/healthz").is(200)
}

func TestUnitPageOfALongTranscript(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	steps := make([]transcript.Step, 2000)
	for i := range steps {
		steps[i] = transcript.Step{Number: i + 1, Time: time.Now(), Type: transcript.SystemText, Text: fmt.Sprintf("number %d.", i+1)}
	}
	id := f.submit(mock(""))
	f.run(id, "done", steps...)
	page := string(f.get("/units/" + id.String()).is(200).body)
	if !strings.Contains(page, "Show earlier steps") || !strings.Contains(page, "number 2000.") || strings.Contains(page, "number 7.") {
		t.Errorf("%.3000s", page)
	}
	for path, wants := range map[string]string{
		"?at=7": "number 7.", "/steps?run=1&n=7": "number 7.", "/steps?run=1&n=1999-": "number 2000.", "/steps?run=1&at=1000": "number 1000.",
	} {
		if page := string(f.get("/units/" + id.String() + path).is(200).body); !strings.Contains(page, wants) {
			t.Errorf("%s: %.3000s", path, page)
		}
	}
	f.get("/units/"+id.String()+"/steps?run=2").refused(404, "", "")
	f.get("/units/"+id.String()+"?run=2").refused(404, "", "")
	f.get("/units/"+id.String()+"?at=x").refused(422, "at", "")
}

func TestPartsOfPages(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	c := f.claim(id)
	if err := f.Store.Transcripts.Append(t.Context(), store.Progress{RunID: c.RunID, LiveStatus: "looks around", ToolCalls: 3}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ path, part, has, lacks string }{
		{"/", "list", `id="pills"`, "<html"},
		{"/", "cards", "3 tool calls · looks around", `id="pills"`},
		{"/?status=running&since=1h&backend=mock&label=", "cards", id.String() + "?backend=mock&amp;since=1h&amp;status=running", "No unit"},
		{"/?status=failed", "cards", "No unit is like this", id.String()},
		{"/cards?ids=" + id.String(), "", "looks around", "<html"},
		{"/units/" + id.String(), "unit", `id="transcript-title"`, `id="cards"`},
		{"/units/" + id.String(), "head", `data-attempt="1"`, `id="transcript-title"`},
	} {
		a := f.do("GET", test.path, "", "X-Part", test.part).is(200)
		if page := string(a.body); !strings.Contains(page, test.has) || strings.Contains(page, test.lacks) {
			t.Errorf("%s of %s: %s", test.part, test.path, page)
		}
		if a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s may be kept", test.path)
		}
	}
	for path, parameter := range map[string]string{
		"/?since=x": "since", "/?since=-1h": "since", "/?status=x": "status", "/?label=x": "label", "/?class=x": "class", "/cards": "ids",
		"/cards?ids=x": "ids",
		"/cards?ids=" + strings.Repeat(id.String()+",", 200): "ids",
	} {
		f.get(path).refused(422, parameter, "")
	}
}

func TestPagesAreSmallOnTheWire(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	plain := f.get("/stories/unit-done").is(200)
	packed := f.get("/stories/unit-done", "Accept-Encoding", "gzip").is(200)
	if packed.header.Get("Content-Encoding") != "gzip" || len(packed.body) > len(plain.body)/4 {
		t.Errorf("%d bytes became %d", len(plain.body), len(packed.body))
	}
	f.get("/units/x", "Accept-Encoding", "gzip").refused(404, "", "")
	for name := range page.Assets() {
		path := "/static/" + name
		first := f.get(path).is(200)
		if !strings.Contains(first.header.Get("Content-Type"), "/") {
			t.Errorf("%s has no type", path)
		}
		tag := first.header.Get("ETag")
		if again := f.get(path, "If-None-Match", tag, "Accept-Encoding", "gzip").is(304); len(again.body) > 0 {
			t.Errorf("%s: %d bytes of what is known", path, len(again.body))
		}
		f.get(path, "If-None-Match", `W/"old"`).is(200)
	}
	if kind := f.get("/static/app.js", "Accept-Encoding", "gzip").is(200).header.Get("Content-Type"); kind != "text/javascript; charset=utf-8" {
		t.Error(kind)
	}
}
