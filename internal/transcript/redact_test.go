package transcript

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

func TestRedactorForms(t *testing.T) {
	t.Parallel()
	const secret = `"p&ss<wörd>\/+?~` + "\t" + `"`
	quoted, err := json.Marshal(map[string]string{"key": secret})
	if err != nil {
		t.Fatal(err)
	}
	redact := Redactor([]string{secret})
	for name, text := range map[string]string{
		"raw":            secret,
		"JSON by Go":     string(quoted),
		"JSON by others": `{"key":"\"p&ss<wörd>\\/+?~\t\""}`,
		"query":          url.Values{"k": {secret}}.Encode(),
		"path":           url.PathEscape(secret),
		"base64":         base64.StdEncoding.EncodeToString([]byte(secret)),
		"base64 bare":    base64.RawStdEncoding.EncodeToString([]byte(secret)),
		"base64 url":     base64.URLEncoding.EncodeToString([]byte(secret)),
		"base64 urlbare": base64.RawURLEncoding.EncodeToString([]byte(secret)),
	} {
		if got := redact("<" + text + ">"); !strings.Contains(got, redacted) || strings.Contains(got, "ss") {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, form := range []string{string(quoted), `{"key":"\"p&ss<wörd>\\/+?~\t\""}`} {
		if got := redact(form); got != `{"key":"[redacted]"}` || !json.Valid([]byte(got)) {
			t.Errorf("args came out as %s", got)
		}
	}
}

func TestRedactorSecretsThatBeginAlike(t *testing.T) {
	t.Parallel()
	redact := Redactor([]string{"password", "password-and-more", "short"})
	if got, want := redact("password-and-more password short"), "[redacted] [redacted] short"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRedactorProviderKeys(t *testing.T) {
	t.Parallel()
	redact := Redactor(nil)
	body := strings.Repeat("Ab3", 20)
	for _, key := range []string{
		"sk-ant-api03-" + body, "sk-" + body, "sk-proj-" + body, "ghp_" + body, "gho_" + body, "ghu_" + body, "ghs_" + body,
		"ghr_" + body, "github_pat_" + body, "AKIAABCDEFGHIJKLMNOP", "AIza" + body[:35], "xoxb-" + body,
	} {
		if got := redact(`{"env":"KEY=` + key + `\nnext"}`); got != `{"env":"KEY=[redacted]\nnext"}` {
			t.Errorf("%s: %s", key, got)
		}
	}
	for _, text := range []string{"", "nothing secret", "a task-list of sk-ills", "AKIA is short"} {
		if got := redact(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
