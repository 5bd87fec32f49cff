package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/strictjson"
	"piecework/internal/testkit"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

// schemas is a front door that serves nobody: it knows what bodies must be.
func schemas(tb testing.TB) (huma.Registry, map[string]*huma.Schema) {
	tb.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	bell, err := queue.Connect(nowhere, log)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = bell.Close() })
	a := New(Options{Submitter: jobs.NewSubmitter(&jobs.Rules{Store: &store.Store{}}, bell, log, prometheus.NewRegistry()), Log: log,
		Registry: prometheus.NewRegistry(), Queue: bell})
	all := map[string]*huma.Schema{}
	for path, item := range a.huma.OpenAPI().Paths {
		for method, op := range map[string]*huma.Operation{"POST": item.Post, "PUT": item.Put, "PATCH": item.Patch} {
			if op != nil && op.RequestBody != nil && op.RequestBody.Content["application/json"] != nil {
				all[method+" "+path] = op.RequestBody.Content["application/json"].Schema
			}
		}
	}
	return a.huma.OpenAPI().Components.Schemas, all
}

// checked is what checkBody does with a body.
func checked(ctx context.Context, registry huma.Registry, schema *huma.Schema, sent []byte) *problem.Problem {
	if p := body.CheckJSON(sent); p != nil {
		return p
	}
	return validate(ctx, registry, schema, sent)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	registry, all := schemas(t)
	for _, c := range []struct{ path, body, want string }{
		{"POST /work-units", `{"backend":"mock","prompt":"x","labels":{"a.b":1}}`, ``},
		{"POST /work-units", `{"backend":"mock","prompt":"x","model":null}`, ``},
		{"POST /work-units", `[]`, `#: expected object`},
		{"POST /work-units", `7`, `#: expected object`},
		{"POST /webhook-endpoints", `{}`, `#/url: is missing; it must be there`},
		{"POST /work-units", `{"files":[1,"a",{}],"backend":[]}`, `#/backend: expected string|#/files/0: expected string|#/files/2: expected string`},
		{"POST /work-units", `{"prompt":"x","a/b~c":1,"Prompt":2}`, `#/Prompt: there is no field "Prompt"; check its spelling against /docs|#/a~1b~0c: there is no field "a/b~c"; check its spelling against /docs`},
		{"POST /batches", `{"units":[{},1,[{}]],"source":{"type":"x"}}`, ``},
		{"POST /batches", `{"stop_when":{"window":0,"failure_rate":2}}`, `#/stop_when/failure_rate: expected number <= 1|#/stop_when/window: expected number >= 1`},
	} {
		var got []string
		if p := checked(t.Context(), registry, all[c.path], []byte(c.body)); p != nil {
			for _, e := range p.Errors {
				got = append(got, e.Pointer+": "+e.Detail)
			}
		}
		if text := strings.Join(got, "|"); text != c.want && c.want != "" || c.want == "" && strings.Contains(text, "labels") {
			t.Errorf("%s %s:\n got %s\nwant %s", c.path, c.body, text, c.want)
		}
	}
}

// What a schema may say is what validate looks at: another word would be void.
func TestValidateKnowsEveryWordOfTheSchemas(t *testing.T) {
	t.Parallel()
	registry, all := schemas(t)
	seen := map[*huma.Schema]bool{}
	var look func(where string, s *huma.Schema)
	look = func(where string, s *huma.Schema) {
		if s == nil || seen[s] {
			return
		}
		seen[s] = true
		if s.Ref != "" {
			look(s.Ref, registry.SchemaFromRef(s.Ref))
		}
		if len(s.OneOf)+len(s.AnyOf)+len(s.AllOf)+len(s.DependentRequired) > 0 || s.Not != nil || s.UniqueItems ||
			s.Discriminator != nil || s.ReadOnly {
			t.Errorf("%s says what validate does not look at", where)
		}
		for name, property := range s.Properties {
			look(where+"."+name, property)
		}
		look(where+"[]", s.Items)
		if more, ok := s.AdditionalProperties.(*huma.Schema); ok {
			look(where+".*", more)
		}
	}
	for path, s := range all {
		look(path, s)
	}
}

// hostileBodies are 10 MB each, or as much as it takes.
func hostileBodies() map[string]string {
	const size = 10 << 20
	fill := func(head, piece, tail string) string {
		return head + strings.Repeat(piece, (size-len(head)-len(tail)-2)/(len(piece)+1)) + tail
	}
	return map[string]string{
		"8,000 errors":     `{"units":[` + strings.Repeat("1,", 7999) + `1]}`,
		"200,000 errors":   `{"units":[` + strings.Repeat("1,", 199_999) + `1]}`,
		"ones":             fill(`{"units":[`, "1,", "1]}"),
		"empty objects":    fill(`{"units":[`, "{},", "{}]}"),
		"unknown names":    `{` + manyNames(90_000) + `"z":1}`,
		"one long name":    `{"` + strings.Repeat("n", size-10) + `":1}`,
		"long names":       `{` + longNames(20, size/20-10) + `"z":1}`,
		"a long text":      `{"prompt":"` + strings.Repeat("p", size-20) + `"}`,
		"escapes":          fill(`{"prompt":"`, `\u00e9`, `"}`),
		"NULs that are no": fill(`{"prompt":"`, `\\u0000`, `"}`),
		"dots":             `{"units":{"` + strings.Repeat(".", 100_000) + `":1},"` + strings.Repeat(".", 100_000) + `":2}`,
		"deep":             strings.Repeat("[", 5<<20) + strings.Repeat("]", 5<<20),
		"spaces":           strings.Repeat(" ", size),
		"long number":      `{"max_retries":` + strings.Repeat("9", size-20) + `}`,
		"nested unknown":   `{"stop_when":{` + manyNames(50_000) + `"z":1},"synthesis":{` + manyNames(40_000) + `"z":1}}`,
	}
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"n%d.a[%d]":1,`, i, i)
	}
	return b.String()
}

func longNames(n, length int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d%s":1,`, i, strings.Repeat("x", length))
	}
	return b.String()
}

// No body makes us work for long or hold much: each is read twice, whatever is
// wrong with it. Not parallel, for it counts what the process allocates.
func TestHostileBodiesAreCheap(t *testing.T) {
	registry, all := schemas(t)
	for name, text := range hostileBodies() {
		for _, path := range []string{"POST /work-units", "POST /batches"} {
			sent := []byte(text)
			var p *problem.Problem
			spent := testkit.Allocated(t, func() { p = checked(t.Context(), registry, all[path], sent) })
			if spent > 32<<20 { // garbage included: less than 20 MB are held at once
				t.Errorf("%s to %s: allocated %d bytes", name, path, spent)
			}
			if p == nil {
				continue
			}
			if len(p.Errors) > strictjson.MaxShown {
				t.Errorf("%s: %d errors", name, len(p.Errors))
			}
			if answer, err := json.Marshal(p); err != nil || len(answer) > 256<<10 {
				t.Errorf("%s to %s: an answer of %d bytes, %v", name, path, len(answer), err)
			}
		}
	}
	p := checked(t.Context(), registry, all["POST /batches"], []byte(hostileBodies()["8,000 errors"]))
	if p == nil || len(p.Errors) != strictjson.MaxShown || !strings.Contains(p.Detail, "the first 100 of 8000 errors") {
		t.Errorf("%+v", p)
	}
}

// countdown is a context that ends when it has been asked n times.
type countdown struct {
	context.Context
	asked, n int
}

func (c *countdown) Err() error {
	if c.asked++; c.asked > c.n {
		return context.Canceled
	}
	return nil
}

func TestValidateStopsWithTheCaller(t *testing.T) {
	t.Parallel()
	registry, all := schemas(t)
	gone := &countdown{Context: t.Context(), n: 2}
	p := validate(gone, registry, all["POST /batches"], []byte(hostileBodies()["200,000 errors"]))
	if p == nil || p.Status != statusClientGone || gone.asked > 4 {
		t.Errorf("%+v, asked %d times", p, gone.asked)
	}
}

// FuzzBody holds what is said about a body against the body, and against
// huma's own validation: nothing may pass that huma would refuse.
func FuzzBody(f *testing.F) {
	registry, all := schemas(f)
	var paths []string
	for path := range all {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for i, sent := range []string{
		`{"backend":"mock","prompt":"x"}`, `{"units":[1,{},{"a.b":1}],"a.b":{"c/d~e":[null]}}`, `{"labels":{"a.b":1},"files":[1,null],"model":null}`,
		`{"x":1,"x":2}`, `{"a":"\u0000"}`, `[[[]]]`, `{"unit":{},"stop_when":{"window":"x","y.z":[1]}}`, "\x00", `{"":{"":1}}`,
	} {
		f.Add(uint8(i), []byte(sent))
	}
	f.Fuzz(func(t *testing.T, which uint8, sent []byte) {
		if len(bytes.TrimSpace(sent)) == 0 {
			return // it is not compared with a schema
		}
		path := paths[int(which)%len(paths)]
		p := checked(t.Context(), registry, all[path], sent)
		if p != nil {
			pointsInto(t, sent, p)
		}
		if p != nil {
			return
		}
		var value any
		if err := json.Unmarshal(sent, &value); err != nil {
			t.Fatalf("passed, and is no JSON: %v", err)
		}
		var result huma.ValidateResult
		huma.Validate(registry, all[path], huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, value, &result)
		if len(result.Errors) > 0 {
			t.Errorf("%s took %q, of which huma says: %v", path, sent, result.Errors)
		}
	})
}

// pointsInto sees that each pointer of an answer leads to a place in the body,
// or to one that is missing in an object of it.
func pointsInto(t *testing.T, sent []byte, p *problem.Problem) {
	t.Helper()
	if text, err := json.Marshal(p); err != nil || !json.Valid(text) || len(p.Errors) == 0 || len(p.Errors) > strictjson.MaxShown {
		t.Fatalf("%v: %s", err, text)
	}
	if p.Status != 422 {
		return // it is no JSON, or none that we keep
	}
	for _, e := range p.Errors {
		pointer, ok := strings.CutPrefix(e.Pointer, "#")
		if !ok {
			t.Fatalf("%q is no pointer", e.Pointer)
		}
		if strings.HasSuffix(e.Detail, "it must be there") {
			pointer = string(jsontext.Pointer(pointer).Parent())
		}
		if strings.HasSuffix(pointer, "…") {
			continue
		}
		var at any
		if err := json.Unmarshal(sent, &at); err != nil {
			t.Fatal(err)
		}
		for name := range jsontext.Pointer(pointer).Tokens() {
			switch in := reflect.ValueOf(at); in.Kind() { //nolint:exhaustive // JSON has no others
			case reflect.Map:
				next := in.MapIndex(reflect.ValueOf(name))
				if !next.IsValid() {
					t.Fatalf("%q leads nowhere in %q", e.Pointer, sent)
				}
				at = next.Interface()
			case reflect.Slice:
				var i int
				if _, err := fmt.Sscan(name, &i); err != nil || i >= in.Len() {
					t.Fatalf("%q leads nowhere in %q", e.Pointer, sent)
				}
				at = in.Index(i).Interface()
			default:
				t.Fatalf("%q leads nowhere in %q", e.Pointer, sent)
			}
		}
	}
}
