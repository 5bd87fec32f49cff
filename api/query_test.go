package api

import (
	"net/url"
	"strings"
	"testing"
)

func TestUnknownQueryParameter(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.get("/work-units?sort=title").refused(422, "sort", `there is no query parameter "sort"; this path takes status, worker`)
	f.get("/healthz?x=").refused(422, "x", "takes none")
	f.post("/work-units?await=3s", mock("")).refused(422, "await", "takes wait")
}

func TestRepeatedQueryParameter(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.get("/work-units?status=queued&status=failed").refused(422, "status", "is there twice")
	f.get("/work-units?label=a:b&label=c:d").is(200)
	f.get("/work-units?label=a:b&label=a:c").refused(422, "label", "two values at once")
}

// A filter that cannot be read must not become no filter.
func TestUnreadableQuery(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, path := range []string{"/work-units", "/runs", "/"} {
		f.get(path+"?status=%zz").refused(400, "", "cannot be read")
		f.get(path+"?a=1;b=2").refused(400, "", "cannot be read")
		f.get(path+"?q=%00").refused(400, "q", "NUL")
		f.get(path+"?q=%ff").refused(400, "q", "UTF-8")
		f.get(path+"?%00=x").refused(400, "", "NUL")
	}
}

func TestEmptyQueryParameters(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.submit(mock(""))
	for _, query := range []string{"status=", "limit=", "after=", "q=", "backend=", "worker="} {
		if a := f.get("/work-units?" + query).is(200); !strings.Contains(string(a.body), "Count the words") {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	f.get("/work-units?label=").refused(422, "label", "is empty")
	f.get("/work-units?label=&label=a:b").refused(422, "label", "is empty")
}

func TestBadQueryValues(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for query, place := range map[string]string{
		"status=done": "status", "status=queued,done": "status", "limit=0": "limit", "limit=501": "limit", "limit=ten": "limit",
		"after=x": "after", "label=nocolon": "label", "q=" + strings.Repeat("x", 201): "q",
	} {
		f.get("/work-units?"+query).refused(422, place, place+": ")
	}
	f.get("/runs?unit=x").refused(422, "unit", "must be a unit's id")
	f.get("/runs?status="+url.QueryEscape("lost,gone")).refused(422, "status", `"gone"; there are running,`)
	f.get("/runs/"+f.anyRun()+"/transcript?format=xml").refused(422, "format", "one of")
}

func (f *front) anyRun() string {
	f.t.Helper()
	return f.run(f.submit(mock("")), "done").RunID.String()
}
