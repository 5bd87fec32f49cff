package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"piecework/internal/work"
)

const (
	ownSecret   = "a secret of enough characters"
	slackSecret = "8f742231b10e8888abcd99yyyzzz85a5"
	slackBody   = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
	slackGood   = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
	whsec       = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	stdID       = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	stdBody     = `{"test": 2432232314}`
	stdGood     = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	githubGood  = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	stripeBody  = `{"id":"evt_1","object":"event","type":"invoice.paid"}`
	stripeKey   = "whsec_test_secret_0123456789abcdef"
	stripeHex   = "4351f3690c6c1b7874ed2c325dd97f47824c9d8028777bb02c86ee333d7bb4a8"
	sha512Hex   = "7ec17173d4005f001979903852cb14a445e2ace84fd0cdfc4a01238bb7d675ac03a0d628cf5b7448bc464bd26432c242c60375230e8681b28da1af9b0129ea1b"
)

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// The vectors that GitHub, Slack and Standard Webhooks publish, what Stripe's
// documents come to, and everything that is almost one of them.
func TestVerify(t *testing.T) {
	t.Parallel()
	github := func(signature string) http.Header {
		return headers("X-Hub-Signature-256", signature, "X-GitHub-Delivery", "72d3162e")
	}
	slack := func(signature, at string) http.Header {
		return headers("X-Slack-Signature", signature, "X-Slack-Request-Timestamp", at)
	}
	stripe := func(signature string) http.Header { return headers("Stripe-Signature", signature) }
	standard := func(signatures, id, at string) http.Header {
		return headers("webhook-signature", signatures, "webhook-id", id, "webhook-timestamp", at)
	}
	generic := work.Scheme{Preset: HMAC, Header: "X-Signature", Prefix: "v1:", Algorithm: "sha512"}
	for name, test := range map[string]struct {
		scheme  work.Scheme
		secrets []string
		header  http.Header
		body    string
		now     int64
		good    bool
		id      string
	}{
		"github": {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"}, github(githubGood), "Hello, World!", 0, true, "72d3162e"},
		"github, second secret": {work.Scheme{Preset: GitHub}, []string{ownSecret, "It's a Secret to Everybody"}, github(githubGood),
			"Hello, World!", 0, true, "72d3162e"},
		"github, one more space":   {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"}, github(githubGood), "Hello, World! ", 0, false, ""},
		"github, other secret":     {work.Scheme{Preset: GitHub}, []string{ownSecret}, github(githubGood), "Hello, World!", 0, false, ""},
		"github, no secret":        {work.Scheme{Preset: GitHub}, nil, github(githubGood), "Hello, World!", 0, false, ""},
		"github, half a signature": {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"}, github(githubGood[:40]), "Hello, World!", 0, false, ""},
		"github, no signature":     {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"}, http.Header{}, "Hello, World!", 0, false, ""},
		"github, empty signature":  {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"}, github("sha256="), "Hello, World!", 0, false, ""},
		"github, no hex":           {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"}, github("sha256=zz"), "Hello, World!", 0, false, ""},
		"github, sha1 only": {work.Scheme{Preset: GitHub}, []string{"It's a Secret to Everybody"},
			headers("X-Hub-Signature", "sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59"), "Hello, World!", 0, false, ""},
		"slack": {work.Scheme{Preset: Slack}, []string{slackSecret}, slack(slackGood, "1531420618"), slackBody,
			1531420618, true, ""},
		"slack, 300 s later": {work.Scheme{Preset: Slack}, []string{slackSecret}, slack(slackGood, "1531420618"), slackBody, 1531420918, true, ""},
		"slack, 301 s later": {work.Scheme{Preset: Slack}, []string{slackSecret}, slack(slackGood, "1531420618"), slackBody, 1531420919, false, ""},
		"slack, 301 s early": {work.Scheme{Preset: Slack}, []string{slackSecret}, slack(slackGood, "1531420618"), slackBody, 1531420317, false, ""},
		"slack, own tolerance": {work.Scheme{Preset: Slack, Tolerance: 10}, []string{slackSecret}, slack(slackGood, "1531420618"),
			slackBody, 1531420629, false, ""},
		"slack, other time": {work.Scheme{Preset: Slack}, []string{slackSecret}, slack(slackGood, "1531420619"), slackBody, 1531420618, false, ""},
		"slack, no time": {work.Scheme{Preset: Slack}, []string{slackSecret}, headers("X-Slack-Signature", slackGood),
			slackBody, 1531420618, false, ""},
		"slack, time without end": {work.Scheme{Preset: Slack}, []string{slackSecret}, slack(slackGood, "9223372036854775807"), slackBody, 1531420618, false, ""},
		"stripe": {work.Scheme{Preset: Stripe}, []string{stripeKey}, stripe("t=1492774577,v1=" + stripeHex),
			stripeBody, 1492774577, true, ""},
		"stripe, two signatures": {work.Scheme{Preset: Stripe}, []string{stripeKey},
			stripe("t=1492774577,v1=00ff,v1=" + stripeHex + ",v0=00"), stripeBody, 1492774577, true, ""},
		"stripe, v0 proves nothing": {work.Scheme{Preset: Stripe}, []string{stripeKey}, stripe("t=1492774577,v0=" + stripeHex), stripeBody, 1492774577, false, ""},
		"stripe, too late": {work.Scheme{Preset: Stripe}, []string{stripeKey}, stripe("t=1492774577,v1=" + stripeHex),
			stripeBody, 1492774577 + 301, false, ""},
		"stripe, no time": {work.Scheme{Preset: Stripe}, []string{stripeKey}, stripe("v1=" + stripeHex), stripeBody, 1492774577, false, ""},
		"stripe, key without prefix": {work.Scheme{Preset: Stripe}, []string{strings.TrimPrefix(stripeKey, "whsec_")},
			stripe("t=1492774577,v1=" + stripeHex), stripeBody, 1492774577, false, ""},
		"standard": {work.Scheme{Preset: Standard}, []string{whsec}, standard(stdGood, stdID, "1614265330"), stdBody,
			1614265330, true, stdID},
		"standard, one of several": {work.Scheme{Preset: Standard}, []string{whsec},
			standard("v1a,AAAA v1,AAAA "+stdGood, stdID, "1614265330"), stdBody, 1614265330, true, stdID},
		"standard, other id": {work.Scheme{Preset: Standard}, []string{whsec}, standard(stdGood, "msg_2", "1614265330"), stdBody,
			1614265330, false, ""},
		"standard, no id": {work.Scheme{Preset: Standard}, []string{whsec},
			headers("webhook-signature", stdGood, "webhook-timestamp", "1614265330"), stdBody, 1614265330, false, ""},
		"standard, empty": {work.Scheme{Preset: Standard}, []string{whsec}, standard("v1,", stdID, "1614265330"), stdBody, 1614265330, false, ""},
		"standard, as v1a": {work.Scheme{Preset: Standard}, []string{whsec},
			standard(strings.Replace(stdGood, "v1,", "v1a,", 1), stdID, "1614265330"), stdBody, 1614265330, false, ""},
		"standard, ten thousand": {work.Scheme{Preset: Standard}, []string{whsec},
			standard(strings.Repeat("v1,AAAA ", 10_000)+stdGood, stdID, "1614265330"), stdBody, 1614265330, false, ""},
		"sha512":            {generic, []string{ownSecret}, headers("X-Signature", "v1:"+sha512Hex), `{"a":1}`, 0, true, ""},
		"sha512, no prefix": {generic, []string{ownSecret}, headers("X-Signature", sha512Hex), `{"a":1}`, 0, false, ""},
		"basic": {work.Scheme{Preset: Basic, Username: "u"}, []string{ownSecret},
			headers("Authorization", "Basic dTphIHNlY3JldCBvZiBlbm91Z2ggY2hhcmFjdGVycw=="), "", 0, true, ""},
		"basic, other name": {work.Scheme{Preset: Basic, Username: "v"}, []string{ownSecret},
			headers("Authorization", "Basic dTphIHNlY3JldCBvZiBlbm91Z2ggY2hhcmFjdGVycw=="), "", 0, false, ""},
		"basic, other password": {work.Scheme{Preset: Basic, Username: "u"}, []string{ownSecret + "!"},
			headers("Authorization", "Basic dTphIHNlY3JldCBvZiBlbm91Z2ggY2hhcmFjdGVycw=="), "", 0, false, ""},
		"basic, nothing": {work.Scheme{Preset: Basic, Username: "u"}, []string{ownSecret}, http.Header{}, "", 0, false, ""},
		"api key": {work.Scheme{Preset: APIKey, Header: "X-API-Key", IDHeader: "X-Id"}, []string{"no", ownSecret},
			headers("X-API-Key", ownSecret, "X-Id", "7"), "", 0, true, "7"},
		"api key, other": {work.Scheme{Preset: APIKey, Header: "X-API-Key"}, []string{ownSecret},
			headers("X-API-Key", "x"+ownSecret), "", 0, false, ""},
		"api key, none": {work.Scheme{Preset: APIKey, Header: "X-API-Key"}, []string{ownSecret}, http.Header{}, "", 0, false, ""},
	} {
		if test.scheme.Preset == HMAC {
			var err error
			if test.scheme, err = Check(test.scheme); err != nil {
				t.Fatal(err)
			}
		}
		proof, err := Verify(test.scheme, test.secrets, Delivery{test.header, []byte(test.body)}, time.Unix(test.now, 0))
		if (err == nil) != test.good || proof.ID != test.id {
			t.Errorf("%s: %+v, error %v", name, proof, err)
		}
		for _, secret := range test.secrets {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error tells the secret: %v", name, err)
			}
		}
	}
}

// What we make for trying out, a trigger takes; each scheme signs the time, so
// that the digest of a later one is another.
func TestImitationsAreTaken(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	for _, s := range []work.Scheme{
		{Preset: GitHub}, {Preset: Stripe}, {Preset: Slack}, {Preset: Standard},
		{Preset: HMAC, Header: "X-Signature", Encoding: "base64", Algorithm: "sha512", Prefix: "t=", Signed: "{id}|{timestamp}|{body}",
			TimestampHeader: "X-Time", IDHeader: "X-Id"},
		{Preset: Basic, Username: "u", IDHeader: "X-Id"}, {Preset: APIKey, Header: "Authorization", Prefix: "Bearer "},
	} {
		checked, err := Check(s)
		if err != nil {
			t.Errorf("%s: %v", s.Preset, err)
			continue
		}
		h, err := Imitate(checked, whsec, "push", "id-1", []byte(`{}`), now)
		if err != nil {
			t.Errorf("%s: %v", s.Preset, err)
			continue
		}
		proof, err := Verify(checked, []string{ownSecret + "AAA=", whsec}[1:], Delivery{h, []byte(`{}`)}, now)
		if err != nil || (whole(checked).IDHeader != "") != (proof.ID == "id-1") {
			t.Errorf("%s: %+v, error %v", s.Preset, proof, err)
		}
		if _, err := Verify(checked, []string{whsec + "BBBB"}, Delivery{h, []byte(`{}`)}, now); err == nil {
			t.Errorf("%s: another secret was taken", s.Preset)
		}
		for name, value := range Public(checked, h) {
			if strings.Contains(value, whsec) || strings.Contains(name, "signature") || strings.Contains(name, "auth") ||
				strings.EqualFold(name, checked.Header) {
				t.Errorf("%s shows %s: %s", s.Preset, name, value)
			}
		}
	}
}

func TestBadSchemesAreRefused(t *testing.T) {
	t.Parallel()
	for pointer, schemes := range map[string][]work.Scheme{
		"#/preset": {{}, {Preset: "gitlab"}, {Preset: GitHub, Header: "X"}, {Preset: Basic, Username: "u", Header: "X"},
			{Preset: APIKey, Signed: "{body}"}, {Preset: HMAC, Header: "X", Username: "u"}},
		"#/header":    {{Preset: HMAC}, {Preset: HMAC, Header: "X Y"}},
		"#/algorithm": {{Preset: HMAC, Header: "X", Algorithm: "md5"}},
		"#/encoding":  {{Preset: HMAC, Header: "X", Encoding: "rot13"}},
		"#/signed": {{Preset: HMAC, Header: "X", Signed: "{timestamp}", TimestampHeader: "T"},
			{Preset: HMAC, Header: "X", Signed: "{body}{url}"}},
		"#/timestamp_header": {{Preset: HMAC, Header: "X", Signed: "{timestamp}.{body}"}, {Preset: HMAC, Header: "X", TimestampHeader: "T"}},
		"#/id_header":        {{Preset: HMAC, Header: "X", Signed: "{id}.{body}"}},
		"#/username":         {{Preset: Basic}, {Preset: Basic, Username: "a:b"}},
		"#/tolerance":        {{Preset: Slack, Tolerance: -1}, {Preset: Slack, Tolerance: 4000}, {Preset: GitHub, Tolerance: 5}},
	} {
		for _, s := range schemes {
			_, err := Check(s)
			if invalid, ok := err.(*work.Invalid); !ok || invalid.Pointer != pointer { //nolint:errorlint // it is made here
				t.Errorf("%+v: error %v, want one about %s", s, err, pointer)
			}
		}
	}
}

func TestSecretsMustBeHardToGuess(t *testing.T) {
	t.Parallel()
	for i, test := range []struct {
		preset, secret string
		good           bool
	}{
		{GitHub, ownSecret, true}, {GitHub, "short", false}, {HMAC, strings.Repeat("x", 1001), false}, {HMAC, ownSecret + "\n", false},
		{Stripe, stripeKey, true}, {Stripe, ownSecret, false}, {Slack, slackSecret, true}, {Slack, "short", false},
		{Standard, whsec, true}, {Standard, "whsec_!", false}, {Standard, "whsec_QUJD", false},
	} {
		if wrong := CheckSecret(test.preset, test.secret); (wrong == "") != test.good || strings.Contains(wrong, test.secret) {
			t.Errorf("%d: %q", i, wrong)
		}
	}
}

func TestSealer(t *testing.T) {
	t.Parallel()
	none, err := NewSealer("")
	if err != nil {
		t.Fatal(err)
	}
	some, err := NewSealer(strings.Repeat("k", minSealKey))
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewSealer(strings.Repeat("o", minSealKey))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewSealer("short"); err == nil {
		t.Error("a short key was taken")
	}
	stored, bare := some.Seal("a", ownSecret), none.Seal("a", ownSecret)
	if strings.Contains(string(stored), ownSecret) || string(some.Seal("a", ownSecret)) == string(stored) {
		t.Errorf("stored as %q", stored)
	}
	for i, test := range []struct {
		by     Sealer
		owner  string
		stored []byte
		good   bool
	}{
		{some, "a", stored, true}, {some, "a", bare, true}, {none, "a", bare, true}, {none, "b", bare, true},
		{some, "b", stored, false}, {other, "a", stored, false}, {none, "a", stored, false}, {some, "a", stored[:5], false},
		{some, "a", nil, false},
	} {
		got, err := test.by.Open(test.owner, test.stored)
		if (err == nil) != test.good || test.good && got != ownSecret {
			t.Errorf("%s: %q, error %v", strconv.Itoa(i), got, err)
		}
	}
	if Fingerprint(ownSecret) == Fingerprint(whsec) || len(Fingerprint(whsec)) != 8 {
		t.Errorf("fingerprints %s, %s", Fingerprint(ownSecret), Fingerprint(whsec))
	}
}
