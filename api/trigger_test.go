package api

import (
	"fmt"
	"strings"
	"testing"

	"piecework/internal/testkit"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

const (
	goodSecret  = "a secret of enough characters"
	olderSecret = "the secret that was before it"
)

// trigger makes a trigger: a preset, more fields, and a unit that is asked for
// its prompt.
func (f *front) trigger(name, preset, more, prompt string) work.Trigger {
	f.t.Helper()
	var t work.Trigger
	f.do("PUT", "/triggers/"+name, fmt.Sprintf(`{"preset":%q,"secrets":[%q,%q]%s,"unit":{"backend":"mock","prompt":%q}}`,
		preset, goodSecret, olderSecret, more, prompt)).is(200).into(&t)
	return t
}

func TestTriggers(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	put := f.trigger("reviews", "github", `,"events":["pull_request","x.*"],"filter":"body.action == \"opened\"","mapping":{"title":"body.pull_request.title"}`, "Review {title}")
	if len(put.Secrets) != 2 || put.Secrets[0].Fingerprint != webhook.Fingerprint(goodSecret) ||
		string(put.Unit.Labels) != `{"trigger":"reviews"}` || put.Unit.Timeout != work.DefaultTimeout {
		t.Errorf("%+v", put)
	}
	for _, path := range []string{"/triggers/reviews", "/triggers"} {
		text := string(f.get(path).is(200).body)
		if strings.Contains(text, goodSecret) || strings.Contains(text, olderSecret) ||
			!strings.Contains(text, put.Secrets[1].Fingerprint) {
			t.Errorf("%s: %s", path, text)
		}
	}
	// Who reads, changes and puts has no secrets to put.
	keep := func(preset string) *answer {
		return f.do("PUT", "/triggers/reviews", fmt.Sprintf(`{"preset":%q,"paused":true,"unit":{"backend":"mock","prompt":"x","labels":{"trigger":"mine"}}}`, preset))
	}
	keep("github").is(200)
	var got work.Trigger
	if f.get("/triggers/reviews").is(200).into(&got); !got.Paused || len(got.Secrets) != 2 || len(got.Events) != 0 ||
		string(got.Unit.Labels) != `{"trigger":"mine"}` {
		t.Errorf("%+v", got)
	}
	keep("stripe").refused(422, "#/secrets", "is needed")
	f.do("DELETE", "/triggers/reviews", "").is(204)
	for _, missing := range []*answer{f.get("/triggers/reviews"), f.do("DELETE", "/triggers/reviews", ""), f.do("POST", "/triggers/reviews", "")} {
		missing.refused(404, "", "")
	}
	keep("github").refused(422, "#/secrets", "is needed")
	if log := f.log.String(); strings.Contains(log, goodSecret) {
		t.Error("the log has a secret")
	}
}

func TestBadTriggersAreRefused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const unit = `"unit":{"backend":"mock","prompt":"x"}`
	good := fmt.Sprintf(`"secrets":[%q],`, goodSecret) + unit
	for _, test := range []struct{ name, body, pointer, words string }{
		{"Reviews", `{"preset":"github",` + good + `}`, "#/name", "lower-case"},
		{"t", `{` + good + `}`, "#/preset", "missing"},
		{"t", `{"preset":"gitlab",` + good + `}`, "#/preset", "github"},
		{"t", `{"preset":"github",` + unit + `}`, "#/secrets", "is needed"},
		{"t", `{"preset":"github","secrets":["short"],` + unit + `}`, "#/secrets/0", "easy to guess"},
		{"t", `{"preset":"github","secrets":["a","b","c"],` + unit + `}`, "#/secrets", "<= 2"},
		{"t", `{"preset":"stripe",` + good + `}`, "#/secrets/0", "whsec_"},
		{"t", `{"preset":"hmac",` + good + `}`, "#/header", "X-Signature"},
		{"t", `{"preset":"hmac","header":"X","signed":"{url}{body}",` + good + `}`, "#/signed", "{url}"},
		{"t", `{"preset":"slack","tolerance":"2h",` + good + `}`, "#/tolerance", "3600"},
		{"t", `{"preset":"slack","tolerance":"soon",` + good + `}`, "#/tolerance", "length of time"},
		{"t", `{"preset":"github","events":["[a"],` + good + `}`, "#/events/0", "names no event"},
		{"t", `{"preset":"github","filter":"body.action ==",` + good + `}`, "#/filter", "Syntax error"},
		{"t", `{"preset":"github","filter":"\"text\"",` + good + `}`, "#/filter", "condition"},
		{"t", `{"preset":"github","event_from":"body.type",` + good + `}`, "#/event_from", "leave it out"},
		{"t", `{"preset":"github","mapping":{"a":"nope.b"},` + good + `}`, "#/mapping/a", "undeclared reference to 'nope'"},
		{"t", `{"preset":"github","mapping":{"a b":"body.b"},` + good + `}`, "#/mapping/a b", "letters"},
		{"t", `{"preset":"github","mapping":{"file_path":"body.b"},` + good + `}`, "#/mapping/file_path", "must not"},
		{"t", `{"preset":"github","secrets":["` + goodSecret + `"]}`, "#/unit", "either"},
		{"t", `{"preset":"github","secrets":["` + goodSecret + `"],"unit":{"backend":"gpt","prompt":"x"}}`, "#/unit/backend", "no backend"},
		{"t", `{"preset":"github","secrets":["` + goodSecret + `"],"unit":{"backend":"mock","prompt":"x","delay":5}}`, "#/unit", "delay"},
	} {
		p := f.do("PUT", "/triggers/"+test.name, test.body).refused(422, test.pointer, test.words)
		if strings.Contains(fmt.Sprint(p), goodSecret) {
			t.Errorf("%+v tells the secret", p)
		}
	}
}

// A dump of the database shows no secret when the server has a key; a server
// with another key says so in its log, and not to the sender.
func TestSecretsAreSealed(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, migrate)
	keyed := func(key string) *front {
		sealer, err := webhook.NewSealer(key)
		if err != nil {
			t.Fatal(err)
		}
		return openFront(t, database, nowhere, func(o *Options) { o.Sealer = sealer })
	}
	f, other := keyed(strings.Repeat("k", 32)), keyed(strings.Repeat("o", 32))
	f.trigger("keys", "api_key", "", "x")
	f.do("POST", "/triggers/keys", "{}", "X-API-Key", goodSecret).is(202)
	stored, err := f.Store.Triggers.Get(t.Context(), work.DefaultTenant, "keys")
	if err != nil || strings.Contains(string(stored.Sealed[0]), goodSecret) {
		t.Errorf("stored as %q, error %v", stored.Sealed, err)
	}
	other.do("POST", "/triggers/keys", "{}", "X-API-Key", goodSecret).refused(503, "", "log")
	if log := other.log.String(); !strings.Contains(log, "PIECEWORK_SECRETS_KEY") || strings.Contains(log, goodSecret) {
		t.Error(log)
	}
}
