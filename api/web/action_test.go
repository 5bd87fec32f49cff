package web

import (
	"net/url"
	"testing"

	"piecework/internal/work"
	"piecework/store"
)

// A browser sends the whole form: what is in it as before is no change, or
// the unit would lose the session it could go on with.
func TestAFormSentAsItWasChangesNothing(t *testing.T) {
	t.Parallel()
	u := work.Unit{Spec: work.Spec{Prompt: "one\r\ntwo\n", Model: "small", MaxTurns: 3, OnDenied: work.OnDeniedNote}}
	changes, wrong := changesOf(u, url.Values{"prompt": {"one\ntwo\n"}, "model": {"small"}, "max_turns": {"3"}, "on_denied": {"note"}})
	if wrong != "" || changes != (store.Changes{}) {
		t.Errorf("%+v, %s", changes, wrong)
	}
	changes, wrong = changesOf(u, url.Values{"prompt": {"one"}, "model": {""}, "max_turns": {""}, "on_denied": {""}})
	if wrong != "" || changes.Prompt == nil || changes.Model != nil || changes.MaxTurns != nil || changes.OnDenied != nil {
		t.Errorf("%+v, %s", changes, wrong)
	}
}
