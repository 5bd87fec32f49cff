package transcript

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// made is text of letters and digits that looks made by a machine.
func made(n int, alphabet string) string {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	out := make([]byte, n)
	for i := range out {
		out[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(out)
}

const (
	alnum = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	lower = "abcdef0123456789"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// samples are credentials of each kind, and what must not be left of each. They
// are put together here so that no scanner of repositories takes them for real.
func samples() map[string][2]string {
	one := func(parts ...string) [2]string { return [2]string{strings.Join(parts, ""), parts[len(parts)-1]} }
	pem := made(64, alnum) + "\n" + made(64, alnum) + "=="
	jwt := "." + "eyJ" + made(60, alnum) + "." + made(43, alnum)
	return map[string][2]string{
		"private key":     {"-----BEGIN RSA PRIVATE KEY-----\n" + pem + "\n-----END RSA PRIVATE KEY-----", pem[:40]},
		"OpenSSH key":     {"-----BEGIN OPENSSH PRIVATE KEY-----\\n" + pem + "\\n-----END OPENSSH PRIVATE KEY-----\\n", pem[:40]},
		"PGP key":         {"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + pem, pem[:40]},
		"JWT":             {"eyJ" + made(33, alnum) + jwt, jwt[4:]},
		"database URL":    {"postgres://app:" + made(12, alnum) + "@db.internal/x", made(12, alnum)},
		"Redis URL":       {"redis://:" + made(12, alnum) + "@db.internal/0", made(12, alnum)},
		"bearer":          one("Authorization: Bearer ", made(40, alnum)),
		"basic":           one("authorization: Basic ", base64.StdEncoding.EncodeToString([]byte("user:"+made(12, alnum)))),
		"Anthropic":       one("sk-ant-", "api03-", made(93, alnum)),
		"OpenAI":          one("sk-", "proj-", made(48, alnum)),
		"GitHub":          one("ghp_", made(36, alnum)),
		"GitHub app":      one("ghs_", made(36, alnum)),
		"GitHub fine":     one("github_pat_", made(82, alnum)),
		"GitLab":          one("glpat-", made(20, alnum)),
		"GitLab runner":   one("glrt-", made(20, alnum)),
		"AWS id":          one("AKIA", made(16, upper)),
		"AWS temporary":   one("ASIA", made(16, upper)),
		"AWS secret":      one("aws_secret_access_key = ", made(40, alnum)),
		"AWS in JSON":     {`{"SecretAccessKey": "` + made(40, alnum) + `"}`, made(40, alnum)},
		"Google":          one("AIza", made(35, alnum)),
		"Google OAuth":    one("ya29.", made(60, alnum)),
		"Azure storage":   {"AccountName=x;AccountKey=" + made(86, alnum) + "==;EndpointSuffix=core", made(86, alnum)},
		"Azure client":    {"abc8Q~" + made(34, alnum), made(34, alnum)},
		"Slack":           one("xoxb-", "123456789012-", made(24, alnum)),
		"Slack webhook":   one("https://hooks.slack.com/services/T0000/B0000/", made(24, alnum)),
		"Stripe":          one("sk_live_", made(24, alnum)),
		"Stripe limited":  one("rk_live_", made(24, alnum)),
		"webhook secret":  one("whsec_", made(32, alnum)),
		"Hugging Face":    one("hf_", made(34, alnum)),
		"npm":             one("npm_", made(36, alnum)),
		"npm registry":    one("//registry.npmjs.org/:_authToken=", made(36, alnum)),
		"PyPI":            one("pypi-", "AgEIcHlwaS5vcmc", made(70, alnum)),
		"SendGrid":        one("SG.", made(22, alnum), ".", made(43, alnum)),
		"Twilio":          one("SK", made(32, lower)),
		"Mailgun":         one("key-", made(32, lower)),
		"Mailchimp":       {made(32, lower) + "-us12", made(32, lower)},
		"Discord":         {"MTk" + made(21, alnum) + "." + made(6, alnum) + "." + made(38, alnum), made(38, alnum)},
		"Discord webhook": one("https://discord.com/api/webhooks/123456789012345678/", made(68, alnum)),
		"Telegram":        {"123456789:AA" + made(33, alnum), made(33, alnum)},
		"DigitalOcean":    one("dop_v1_", made(64, lower)),
		"Shopify":         one("shpat_", made(32, lower)),
		"Square":          one("sq0atp-", made(22, alnum)),
		"Databricks":      one("dapi", made(32, lower)),
		"Linear":          one("lin_api_", made(40, alnum)),
		"Notion":          one("ntn_", made(46, alnum)),
		"Atlassian":       one("ATATT3", made(60, alnum)),
		"New Relic":       one("NRAK-", made(27, upper)),
		"Grafana":         one("glsa_", made(32, alnum)),
		"Vault":           one("hvs.", made(90, alnum)),
		"Docker":          one("dckr_pat_", made(27, alnum)),
		"Postman":         {"PMAK-" + made(24, lower) + "-" + made(34, lower), made(34, lower)},
		"Sentry":          one("sntryu_", made(64, lower)),
		"Supabase":        one("sbp_", made(40, lower)),
		"named":           one("API_KEY=", made(32, alnum)),
		"named in JSON":   {`{"client_secret": "` + made(32, alnum) + `"}`, made(32, alnum)},
		"named in a text": {`{\"accessToken\":\"` + made(32, alnum) + `\"}`, made(32, alnum)},
		"password":        one("password: ", made(24, alnum)),
	}
}

func TestRedactorKinds(t *testing.T) {
	t.Parallel()
	redact := Redactor(nil)
	for name, sample := range samples() {
		for place, format := range map[string]string{
			"alone": "%s", "line": "before\n%s\nafter", "words": "it is %s, and so on", "quoted": `x="%s";`, "markdown": "`%s`",
			"assigned": "KEY=%s", "after an escape": `a\n%s\nb`,
		} {
			if got := redact(fmt.Sprintf(format, sample[0])); strings.Contains(got, sample[1]) || !strings.Contains(got, redacted) {
				t.Errorf("%s, %s: %s", name, place, got)
			}
		}
		quoted, err := json.Marshal(map[string]any{"a": []string{"x " + sample[0] + " y", "and more"}, "b": 1})
		if err != nil {
			t.Fatal(err)
		}
		if got := redact(string(quoted)); !json.Valid([]byte(got)) || !strings.Contains(got, `"b":1`) || strings.Contains(got, sample[1]) {
			t.Errorf("%s in JSON: %s", name, got)
		}
	}
}

// The start of a text is redacted as it is in the whole.
func TestRedactStart(t *testing.T) {
	t.Parallel()
	redact := Redactor(nil)
	parts := []string{"words ", "MON.O ", "secret: ", "://", "\n", "ü ", "-us1 ", "0123456789abcdef0123456789abcdef", ":AA", "Bearer "}
	for _, sample := range samples() {
		parts = append(parts, sample[0], sample[0]+" ")
	}
	slices.Sort(parts)
	r := rand.New(rand.NewPCG(7, 7))
	for range 5000 {
		var text strings.Builder
		for range 1 + r.IntN(8) {
			text.WriteString(parts[r.IntN(len(parts))])
		}
		want, most := redact(text.String()), r.IntN(300)
		got, n := RedactStart(text.String(), most), min(most, len(want))
		if len(got) < n || got[:n] != want[:n] {
			t.Fatalf("the first %d bytes of %q: %q, want %q", most, text.String(), got, want)
		}
	}
}

func TestRedactorLeavesOrdinaryTextAlone(t *testing.T) {
	t.Parallel()
	redact := Redactor([]string{"an-operators-secret"})
	for _, text := range []string{
		"nothing secret", "a task-list of sk-ills", "AKIA is short", "https://a.example/b@c", "see http://user@host/", "10:30:AAA",
		"token: string", `{"token":"x"}`,
		"the bearer of bad news", "Basic English words", "the secret is out", "password: ********", "func token() (secret string) {", "a secret: internationalization-of-things",
		"commit 0123456789abcdef0123456789abcdef01234567", "uuid 8b0c2c3e-7a55-4f43-9f1c-1b2f3a4d5e6f", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"MOUNTAINS.OF.MONEY", "SK is Slovakia", "max_output_tokens: 32000", "export TOKEN=$GITHUB_TOKEN", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "secrets.yaml: secretKeyRef:",
		"an-oper", "ets", "eyJ is how it begins", "A.B", "usage: input_tokens=123456789012",
	} {
		if got := redact(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// The secrets of the server are known in every way in which programs write them.
func TestRedactorWaysOfWriting(t *testing.T) {
	t.Parallel()
	const secret = "s3rver/Secret+with=signs&more?"
	redact := Redactor([]string{secret})
	bytesAs := func(format string) (out string) {
		for _, c := range []byte(secret) {
			out += fmt.Sprintf(format, c)
		}
		return out
	}
	for name, text := range map[string]string{
		"hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"percent": bytesAs("%%%02X"), "percent, small": bytesAs("%%%02x"),
		"some percent": "s3rver%2fSecret%2bwith%3dsigns%26more%3f", "escapes": bytesAs(`\u%04x`), "ESCAPES": bytesAs(`\u%04X`), "bytes": bytesAs(`\x%02x`),
	} {
		if got := redact("<" + text + ">"); got != "<"+redacted+">" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for before := range 6 {
		for after := range 4 {
			text := strings.Repeat("a", before) + secret + strings.Repeat("z", after)
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
				got := redact("x " + encoding.EncodeToString([]byte(text)) + " y")
				if !strings.Contains(got, redacted) || len(got) > len("x  y")+len(redacted)+16 {
					t.Errorf("%d before, %d after: %s", before, after, got)
				}
			}
		}
	}
}

// A stream or a step may end in the middle of a secret.
func TestRedactorPartsOfSecrets(t *testing.T) {
	t.Parallel()
	const secret = "0123456789-known-to-us-abcdefghij"
	redact := Redactor([]string{secret})
	for at := range len(secret) {
		first, second := redact("so "+secret[:at]), redact(secret[at:]+" on")
		left := strings.Contains(first, secret[:at]) && at >= minPart || strings.Contains(second, secret[at:]) && len(secret)-at >= minPart
		if left {
			t.Errorf("at %d: %q %q", at, first, second)
		}
	}
	if got := redact(secret[3:30]); strings.Contains(got, "known") && got != secret[3:30] {
		t.Errorf("%q", got)
	}
}

// Text full of keys whose patterns then do not hold is what costs most.
func BenchmarkRedactorHostile(b *testing.B) {
	redact := Redactor([]string{"an-operators-secret"})
	const size = 50 << 10
	for _, piece := range []string{"eyJ-", "eyJ", "token=", "secret", "://a:b", "M-", "SK", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----",
		"Bearer ", "Q~", "sig=", "sk-", ":AA", "an-operators-secre", "-us1"} {
		text := strings.Repeat(piece, size/len(piece))
		b.Run(piece, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				redact(text)
			}
		})
	}
}

func BenchmarkRedactor(b *testing.B) {
	redact := Redactor([]string{"an-operators-secret", "another/secret+of=ours", "postgres://a:b@c/d", strings.Repeat("k", 40)})
	for name, text := range map[string]string{
		"prose": strings.Repeat("The quick brown fox jumps over the lazy dog, and nothing here is a secret.\n", 14_000),
		"code":  strings.Repeat("if err := json.Unmarshal(data, &token); err != nil { return fmt.Errorf(\"https://a.example: %w\", err) }\n", 10_000),
		"hex":   strings.Repeat(made(64, lower)+"\n", 16_000),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				redact(text)
			}
		})
	}
}
