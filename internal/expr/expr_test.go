package expr

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func vars(t *testing.T, body string) Vars {
	t.Helper()
	v, err := Read([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return Vars{Body: v, Headers: map[string]string{"x-kind": "test"}, Event: "push", Delivery: "d-1"}
}

const pull = `{"action":"opened","number":7,"id":9007199254740993,"ratio":0.5,"draft":false,"none":null,
	"pull_request":{"title":"Mend <it>","labels":[{"name":"bug"},{"name":"api"}]},"odd key":"é"}`

func TestJSON(t *testing.T) {
	t.Parallel()
	l, v := New(), vars(t, pull)
	for source, want := range map[string]string{
		`body.pull_request.title`: `"Mend <it>"`,
		`body.id`:                 `9007199254740993`,
		`body.ratio`:              `0.5`,
		`body.none`:               `null`,
		`body.draft`:              `false`,
		`body["odd key"]`:         `"é"`,
		`body.pull_request`:       `{"labels":[{"name":"bug"},{"name":"api"}],"title":"Mend <it>"}`,
		`body.pull_request.labels.map(l, l.name)`:              `["bug","api"]`,
		`body.pull_request.labels.map(l, l.name).join(", ")`:   `"bug, api"`,
		`body.pull_request.labels[1].name.upper()`:             `"API"`,
		`"a,b".split(",")`:                                     `["a","b"]`,
		`" é ".trim() + "é".lower()`:                           `"éé"`,
		`"Ünder".cut(2)`:                                       `"Ün"`,
		`"ab".cut(9)`:                                          `"ab"`,
		`event + "/" + delivery + "/" + headers["x-kind"]`:     `"push/d-1/test"`,
		`has(body.pull_request.body) ? "yes" : "no"`:           `"no"`,
		`{"n": body.number + 1, "half": body.number / 2}`:      `{"half":3,"n":8}`,
		`"#" + string(body.number)`:                            `"#7"`,
		`timestamp("2026-01-02T03:04:05Z") + duration("1h")`:   `"2026-01-02T04:04:05Z"`,
		`body.number > 6.5 && body.pull_request.title != null`: `true`,
	} {
		p, err := l.Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := p.JSON(t.Context(), v, 1000); err != nil || string(got) != want {
			t.Errorf("%s: %s, error %v; want %s", source, got, err, want)
		}
	}
}

func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	l, v := New(), vars(t, pull)
	for source, gone := range map[string]bool{
		`body.nope`: true, `body.pull_request.nope.deep`: true, `body.pull_request.labels[9]`: true, `headers["x"]`: true,
		`body.none.deep`: true, `body.number.deep`: true,
		`body.number + "x"`: false, `1 / 0`: false, `body.pull_request.labels.join("")`: false, `"x".cut(-1)`: false,
	} {
		p, err := l.Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if _, err = p.JSON(t.Context(), v, 1000); err == nil || errors.Is(err, ErrMissing) != gone {
			t.Errorf("%s: error %v", source, err)
		}
	}
}

func TestConditionsAndTexts(t *testing.T) {
	t.Parallel()
	l, v := New(), vars(t, pull)
	for source, want := range map[string]string{
		`body.action == "opened"`: "true <nil>", `event in ["pull_request"]`: "false <nil>", `body.draft`: "false <nil>",
		`event.startsWith("pu") && event.matches("^p.*h$")`: "true <nil>",
		`body.number`: "false came to a int, neither true nor false",
	} {
		p, err := l.CompileCondition(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := p.Bool(t.Context(), v); fmt.Sprint(got, " ", err) != want {
			t.Errorf("%s: %v, error %v; want %s", source, got, err, want)
		}
	}
	if _, err := l.CompileCondition(`"text"`); err == nil || !strings.Contains(err.Error(), "condition") {
		t.Errorf("error %v", err)
	}
	for source, want := range map[string]string{`body.number`: "7", `body.action`: "opened", `body.none`: "", `body.draft`: "false"} {
		p, err := l.Compile(source)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Text(t.Context(), v); err != nil || got != want {
			t.Errorf("%s: %q, error %v; want %q", source, got, err, want)
		}
	}
	p, err := l.Compile("body")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Text(t.Context(), v); err == nil {
		t.Error("an object was taken for a text")
	}
}

func TestBadExpressionsAreRefused(t *testing.T) {
	t.Parallel()
	l := New()
	for source, want := range map[string]string{
		``: "empty", `body.`: "Syntax error", `nope.x`: "undeclared reference", `env("HOME")`: "undeclared reference", `event + 1`: "no matching overload",
		`event.matches("(")`:                    "invalid matches argument",
		strings.Repeat("x", 5000):               "size exceeds limit",
		strings.Repeat("(", 1000):               "recursion",
		`body.replace("", "boo!")`:              "undeclared reference",
		`[1].map(a, [a].map(b, [b].map(c, c)))`: "comprehension exceeds nesting limit",
	} {
		if _, err := l.Compile(source); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: error %v; want %q", source, err, want)
		}
	}
}

// Whatever an author or a sender thinks up ends soon, and small.
func TestExpressionsAreBounded(t *testing.T) {
	t.Parallel()
	l := New()
	items := `["` + strings.Repeat(`x","`, 200_000) + `x"]`
	many, long := vars(t, items), vars(t, `"`+strings.Repeat("a", 4_000_000)+`"`)
	eight := "[a,a,a,a,a,a,a,a]"
	for name, test := range map[string]struct {
		source string
		vars   Vars
	}{
		"loop in a loop":  {`body.all(a, body.all(b, a == b))`, many},
		"text doubled":    {`"x".split("").map(a, a+body+body+body+body).map(a, a+a+a+a+a+a+a+a)` + strings.Repeat(`+["a"]`, 3), long},
		"wide and shared": {`[[1].map(a, ` + eight + `).map(a, ` + eight + `)].map(a, [` + eight + `,` + eight + `,` + eight + `])`, many},
		"long text":       {`body.upper()`, long},
		"joined":          {`body.join("` + strings.Repeat("y", 1000) + `")`, many},
		"all of it":       {`[body, body, body, body, body]`, many},
		"a long pattern":  {`body.matches("(a|aa|aaa){300}b$")`, long},
		"a slow pattern":  {`body.matches("(a*)*(a*)*(a*)*b$") || body.matches("(a|a|a|aa)*b$")`, long},
	} {
		p, err := l.Compile(test.source)
		if err != nil {
			if !strings.Contains(err.Error(), "nesting") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		begun := time.Now()
		got, err := p.JSON(t.Context(), test.vars, 2000)
		if err == nil {
			t.Errorf("%s: came to %d bytes", name, len(got))
		}
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
		t.Logf("%s: %v (%s)", name, err, time.Since(begun))
	}
}
