package api

import (
	"testing"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// What follows denials is said when the unit is submitted, shown on the unit, and
// kept by a retry unless the retry says otherwise.
func TestOnDenied(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	shown := func(id uuid.UUID, want string) {
		t.Helper()
		var u struct {
			OnDenied string `json:"on_denied"`
		}
		if f.get("/work-units/" + id.String()).is(200).into(&u); u.OnDenied != want {
			t.Errorf("on_denied is %q, want %q", u.OnDenied, want)
		}
	}
	for _, bad := range []string{`"ignore"`, `""`, `true`} {
		f.post("/work-units", mock(`,"on_denied":`+bad)).refused(422, "#/on_denied", "")
		f.post("/work-units/"+uuid.NewString()+"/retry", `{"on_denied":`+bad+`}`).refused(422, "#/on_denied", "")
		f.post("/work-units/retry?all=true", `{"on_denied":`+bad+`}`).refused(422, "#/on_denied", "")
	}
	f.post("/work-units", mock(`,"on_denied":"ignore"`)).refused(422, "#/on_denied", "fail")
	f.post("/work-units", `{"backend":"openai","request":{"endpoint":"/v1/chat/completions","body":{"model":"m"}},"on_denied":"note"}`).
		refused(422, "#/on_denied", "")
	shown(f.submit(mock("")), work.OnDeniedFail)
	for _, test := range []struct{ first, changes, then string }{
		{"note", "", "note"},
		{"note", `{"model":"large"}`, "note"},
		{"note", `{"on_denied":"fail"}`, "fail"},
		{"fail", `{"on_denied":"note"}`, "note"},
	} {
		one := f.fail(mock(`,"on_denied":"`+test.first+`"`), work.ClassToolDenied)
		shown(one, test.first)
		f.post("/work-units/"+one.String()+"/retry", test.changes).is(202)
		shown(one, test.then)
		many := f.fail(mock(`,"labels":{"many":"yes"},"on_denied":"`+test.first+`"`), work.ClassToolDenied)
		if v := f.bulk("/work-units/retry?label=many:yes", test.changes); v.Count != 1 {
			t.Errorf("%d units retried", v.Count)
		}
		shown(many, test.then)
	}
}
