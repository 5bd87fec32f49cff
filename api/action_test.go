package api

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// form sends a form as a browser does; fields come as name, value, name, value.
func (f *front) form(path string, fields ...string) *answer {
	f.t.Helper()
	return f.formAs(path, "", fields...)
}

// formAs sends it as the script does, which asks for a part.
func (f *front) formAs(path, part string, fields ...string) *answer {
	f.t.Helper()
	values := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		values.Set(fields[i], fields[i+1])
	}
	headers := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", f.url, "Sec-Fetch-Site", "same-origin"}
	if part != "" {
		headers = append(headers, "X-Part", part)
	}
	return f.do("POST", path, values.Encode(), headers...)
}

// leadsTo checks that a form was answered with the way to a page, and shows it.
func (a *answer) leadsTo(f *front, path string) string {
	a.t.Helper()
	a.is(303)
	if at := a.header.Get("Location"); at != path {
		a.t.Fatalf("leads to %s, not %s", at, path)
	}
	return string(f.get(path).is(200).body)
}

func (a *answer) has(texts ...string) *answer {
	a.t.Helper()
	for _, text := range texts {
		if !strings.Contains(string(a.body), text) {
			a.t.Errorf("no %q in %s", text, a.body)
		}
	}
	return a
}

func TestCancelAndRetryByForm(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	unit := "/units/" + id.String()
	f.get(unit).has(`href="` + unit + `/cancel"`)
	f.get(unit+"/cancel?status=queued").is(200).has("<html", "has cost nothing", `action="`+unit+`/cancel?status=queued"`)
	page := f.form(unit+"/cancel?status=cancelled").leadsTo(f, unit+"?done=cancelled&status=cancelled")
	if f.state(id) != work.Cancelled || !strings.Contains(page, "It is cancelled.") || !strings.Contains(page, `action="`+unit+`/retry?status=cancelled"`) {
		t.Errorf("%s: %s", f.state(id), page)
	}
	if page := f.form(unit+"/retry").leadsTo(f, unit+"?done=retried"); f.state(id) != work.Queued || !strings.Contains(page, "It is back in the queue.") {
		t.Errorf("%s: %s", f.state(id), page)
	}
	// What was done is told of what is true.
	if page := string(f.get(unit + "?done=cancelled").is(200).body); strings.Contains(page, "is cancelled") || strings.Contains(page, "asked to stop") {
		t.Error(page)
	}
	c := f.claim(id)
	f.form(unit+"/cancel").leadsTo(f, unit+"?done=cancelled")
	f.get(unit + "?done=cancelled").has("It was asked to stop and ends soon")
	f.get(unit + "/cancel").is(409).has("It was asked to stop already")
	f.finish(c, "done all the same")
	f.get(unit).is(200)
}

func TestScriptGetsPartsOfActions(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	unit := "/units/" + id.String()
	part := f.get(unit+"/cancel", "X-Part", "ask").is(200).has("Cancel this unit?")
	notice := f.formAs(unit+"/cancel", "notice").is(200).has("It is cancelled.", `action="`+unit+`/retry"`)
	for _, a := range []*answer{part, notice} {
		if strings.Contains(string(a.body), "<html") {
			t.Errorf("%s", a.body)
		}
	}
	f.formAs(unit+"/retry", "notice", "max_turns", "many").is(422).has(`role="alert"`, "whole number", `value="many"`)
	f.formAs(unit+"/retry", "notice").is(200).has("back in the queue")
}

// Between the look at a unit and the word to act it may have ended.
func TestActionsThatCameTooLate(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.submit(mock(""))
	unit := "/units/" + id.String()
	f.formAs(unit+"/retry", "notice").is(409).has(`class="bad"`, "the unit is queued; only a failed, cancelled or timed-out unit can be retried")
	f.run(id, "done")
	f.form(unit+"/cancel").is(409).has("<html", "the unit has succeeded already", `href="`+unit+`"`)
	f.formAs(unit+"/cancel", "notice").is(409).has(`class="bad"`, "the unit has succeeded already")
	f.get(unit + "/cancel").is(409).has("It has succeeded already.")
	f.get(unit + "/retry").is(409).has("submit it anew")
	if f.state(id) != work.Succeeded {
		t.Error(f.state(id))
	}
	f.form("/units/"+uuid.NewString()+"/cancel").refused(404, "", "")
	f.form("/units/x/retry").refused(404, "", "")
}

func TestRetryWithChangesByForm(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.fail(`{"backend":"mock","prompt":"one\ntwo","model":"small"}`, work.ClassRefusal)
	unit := "/units/" + id.String()
	f.get(unit+"/retry?change=1").is(200).has("<details open>", "one\ntwo</textarea>", `value="small"`, `<option value="fail" selected>`, "It ended with refusal.")
	for _, bad := range [][]string{{"prompt", " "}, {"max_turns", "0"}, {"max_turns", "10001"}, {"max_turns", "x"},
		{"model", strings.Repeat("x", 201)}, {"on_denied", "ignore"}} {
		f.form(unit+"/retry", bad...).is(422).has("<html", `role="alert"`)
	}
	f.form(unit+"/retry", "prompt", "a\x00").refused(400, "prompt", "NUL")
	f.form(unit+"/retry", "model", "\xff").refused(400, "model", "UTF-8")
	f.form(unit+"/retry", "prompt", strings.Repeat("x", 512<<10)).refused(413, "", "larger")
	if f.state(id) != work.Failed {
		t.Fatal(f.state(id))
	}
	f.form(unit+"/retry", "prompt", "one\r\nthree", "model", " large ", "max_turns", "7", "on_denied", "note").leadsTo(f, unit+"?done=retried")
	u, err := f.Store.Units.Get(t.Context(), work.DefaultTenant, id)
	if err != nil || u.Prompt != "one\nthree" || u.Model != "large" || u.MaxTurns != 7 || u.OnDenied != work.OnDeniedNote {
		t.Errorf("%+v, error %v", u.Spec, err)
	}
}

func TestPauseAndResumeByForm(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.crew(work.Offer{Name: "mock", Available: true})
	id := f.submit(mock(""))
	unit := "/units/" + id.String()
	for _, s := range [][2]string{{"queue", "default"}, {"backend", "mock"}} {
		path := "/operate/" + s[0] + "s/" + s[1]
		f.get(path+"/pause?back="+unit).is(200).has("None of its units begins", `value="`+unit+`"`)
		page := f.form(path+"/pause", "back", unit+"?status=queued&done=x", "by", "ann", "why", "<b>").
			leadsTo(f, unit+"?done="+url.QueryEscape("paused:"+s[0]+":"+s[1])+"&status=queued")
		for _, want := range []string{"by ann: &lt;b&gt;", `action="` + path + `/resume"`, "Resume the " + s[0] + " " + s[1]} {
			if strings.Count(page, want) < 2 { // in the notice, and beside the reason that the unit waits
				t.Errorf("no %q in %s", want, page)
			}
		}
		page = f.form(path+"/resume", "back", unit).leadsTo(f, unit+"?done="+url.QueryEscape("resumed:"+s[0]+":"+s[1]))
		if !strings.Contains(page, "The "+s[0]+" "+s[1]+" goes on.") || strings.Contains(page, `action="`+path+`/resume"`) {
			t.Error(page)
		}
	}
	f.form("/operate/queues/NO/pause").refused(404, "", "")
	f.form("/operate/backends/none/pause").refused(404, "", "there is no backend")
	f.get("/operate/queues/default/resume").refused(405, "", "")
	for _, evil := range []string{"//evil.example", "https://evil.example/", `/\evil.example`, "javascript:alert(1)", "x", "", "/\t/evil.example", "%"} {
		f.form("/operate/queues/default/resume", "back", evil).leadsTo(f, "/?done=resumed%3Aqueue%3Adefault")
	}
}

// A lane that refused its credentials is opened from the unit that waits.
func TestUnitThatALaneHoldsOffersItsResume(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.crew(work.Offer{Name: "mock", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: "no"}})
	id := f.submit(mock(""))
	f.get("/units/" + id.String()).has(`action="/operate/backends/mock/resume"`)
}

func TestRetryAllByForm(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
	one, two, other := f.fail(mock(""), work.ClassRefusal), f.fail(mock(""), work.ClassInfra), f.fail(mock(`,"labels":{"a":"b"}`), work.ClassInfra)
	f.get("/?status=failed,timed_out").has("Retry these 3…", `href="/units/retry?status=failed%2Ctimed_out"`)
	if page := string(f.get("/?status=succeeded").body); strings.Contains(page, "/units/retry") {
		t.Error(page)
	}
	const these = "/units/retry?class=infra&label=a%3Ab&since=1h&status=failed"
	f.get(these).is(200).has("Run 1 unit again?", "$0.50", other.String(), "label a:b")
	f.form(these).leadsTo(f, "/?class=infra&done=retried%3A1&label=a%3Ab&since=1h&status=failed")
	if f.state(other) != work.Queued || f.state(one) != work.Failed || f.state(two) != work.Failed {
		t.Error("the filter did not hold")
	}
	f.formAs("/units/retry?status=failed", "notice").is(200).has("2 units went back into the queue.")
	f.get("/units/retry?status=failed").is(409).has("No unit is like this any more")
	for _, query := range []string{"", "?status=", "?status=succeeded", "?status=failed,queued", "?q=words"} {
		f.get("/units/retry"+query).refused(422, "status", "run again")
		f.form("/units/retry"+query).refused(422, "status", "run again")
	}
}

// deeds are all paths that change something when a form is sent to them.
func deeds(id uuid.UUID) []string {
	unit := "/units/" + id.String()
	return []string{unit + "/cancel", unit + "/retry", "/units/retry?status=failed",
		"/operate/queues/default/pause", "/operate/queues/default/resume", "/operate/backends/mock/pause", "/operate/backends/mock/resume"}
}

func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id, failed := f.submit(mock("")), f.fail(mock(""), work.ClassInfra)
	for _, path := range append(deeds(id), "/units/"+failed.String()+"/retry") {
		for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Origin", "https://evil.example"}, {"Origin", "null"}} {
			f.do("POST", path, "max_turns=1", append(headers, "Content-Type", "application/x-www-form-urlencoded")...).refused(403, "", "another site")
		}
	}
	f.unchanged(id, failed)
}

func (f *front) unchanged(queued, failed uuid.UUID) {
	f.t.Helper()
	pauses, err := f.Store.Pauses.List(f.t.Context())
	if f.state(queued) != work.Queued || f.state(failed) != work.Failed || len(pauses) > 0 || err != nil {
		f.t.Errorf("%s, %s, %v, error %v", f.state(queued), f.state(failed), pauses, err)
	}
}

func TestLookingChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id, failed := f.submit(mock("")), f.fail(mock(""), work.ClassInfra)
	for _, path := range append(deeds(id), "/units/"+failed.String()+"/retry", "/?done=retried:5", "/units/"+id.String()+"?done=cancelled") {
		for _, method := range []string{"GET", "HEAD"} {
			if a := f.do(method, path, ""); a.status >= 500 {
				t.Errorf("%s %s: %d", method, path, a.status)
			}
		}
		f.do("GET", path, "", "X-HTTP-Method-Override", "POST", "X-Part", "notice")
		f.do("PUT", path, "")
	}
	f.unchanged(id, failed)
}

// Pages take forms and nothing else; the API takes JSON and no forms.
func TestFormsAndJSONStayApart(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id, failed := f.submit(mock("")), f.fail(mock(""), work.ClassInfra)
	for _, path := range deeds(id) {
		for _, kind := range []string{"application/json", "text/plain", "multipart/form-data; boundary=x", ""} {
			f.do("POST", path, "{}", "Content-Type", kind).refused(415, "", "forms")
		}
	}
	const form = "application/x-www-form-urlencoded"
	for _, path := range []string{"/work-units", "/work-units/" + failed.String() + "/retry", "/work-units/retry?status=failed",
		"/queues/default/pause", "/backends/mock/pause"} {
		f.do("POST", path, "model=x&by=ann&prompt=x&backend=mock", "Content-Type", form).refused(400, "#", "not JSON")
	}
	f.unchanged(id, failed)
}
