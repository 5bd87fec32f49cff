package webhook

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"

	"piecework/internal/work"
)

// The presets.
const (
	GitHub   = "github"
	Stripe   = "stripe"
	Slack    = "slack"
	Standard = "standard" // Standard Webhooks, which OpenAI's are too
	HMAC     = "hmac"
	Basic    = "basic"
	APIKey   = "api_key"
)

// Presets lists them.
var Presets = []string{GitHub, Stripe, Slack, Standard, HMAC, Basic, APIKey}

// Tolerance is how far a timestamp may be from now when a scheme says nothing.
const Tolerance = work.Seconds(300)

// MaxTolerance is as long as a delivery may be on its way.
const MaxTolerance = work.Seconds(3600)

// fixed are the schemes that everybody knows. Stripe's and Standard's headers
// have a form of their own, which verify.go reads.
var fixed = map[string]work.Scheme{
	GitHub:   {Header: "X-Hub-Signature-256", Encoding: "hex", Prefix: "sha256=", Signed: "{body}", IDHeader: "X-GitHub-Delivery"},
	Slack:    {Header: "X-Slack-Signature", Encoding: "hex", Prefix: "v0=", Signed: "v0:{timestamp}:{body}", TimestampHeader: "X-Slack-Request-Timestamp"},
	Stripe:   {Header: "Stripe-Signature", Encoding: "hex", Signed: "{timestamp}.{body}"},
	Standard: {Header: "Webhook-Signature", Encoding: "base64", Signed: "{id}.{timestamp}.{body}", TimestampHeader: "Webhook-Timestamp", IDHeader: "Webhook-Id"},
}

// whole is a scheme with all that its preset says.
func whole(s work.Scheme) work.Scheme {
	if f, ok := fixed[s.Preset]; ok {
		f.Preset, f.Algorithm, f.Tolerance = s.Preset, "sha256", s.Tolerance
		s = f
	}
	if s.Tolerance == 0 {
		s.Tolerance = Tolerance
	}
	return s
}

// Timed tells whether what a scheme signs says when.
func Timed(s work.Scheme) bool { return strings.Contains(whole(s).Signed, "{timestamp}") }

var (
	headerName  = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,100}$`)
	placeholder = regexp.MustCompile(`\{[^{}]*\}`)
)

// Check fills in what a scheme leaves out, or says what is wrong with it.
func Check(s work.Scheme) (work.Scheme, error) {
	var err error
	switch _, known := fixed[s.Preset]; {
	case known:
		err = onlyFor(s, "hmac, basic and api_key", s.Header, s.Algorithm, s.Encoding, s.Prefix, s.Signed, s.TimestampHeader, s.IDHeader, s.Username)
	case s.Preset == HMAC:
		s, err = checkHMAC(s)
	case s.Preset == Basic:
		if s.Username == "" || strings.Contains(s.Username, ":") {
			return s, work.Invalidf("#/username", "is needed: the user name of basic authentication, without a colon")
		}
		err = onlyFor(s, "hmac", s.Header, s.Algorithm, s.Encoding, s.Prefix, s.Signed, s.TimestampHeader)
	case s.Preset == APIKey:
		if s.Header == "" {
			s.Header = "X-API-Key"
		}
		err = onlyFor(s, "hmac", s.Algorithm, s.Encoding, s.Signed, s.TimestampHeader, s.Username)
	default:
		return s, work.Invalidf("#/preset", "there is no preset %.50q; choose one of %s", s.Preset, strings.Join(Presets, ", "))
	}
	if err != nil {
		return s, err
	}
	return s, checkCommon(s)
}

func checkHMAC(s work.Scheme) (work.Scheme, error) {
	for field, into := range map[string]*string{"sha256": &s.Algorithm, "hex": &s.Encoding, "{body}": &s.Signed} {
		if *into == "" {
			*into = field
		}
	}
	switch {
	case s.Header == "":
		return s, work.Invalidf("#/header", "is needed: the header that has the signature, such as X-Signature")
	case s.Algorithm != "sha256" && s.Algorithm != "sha512":
		return s, work.Invalidf("#/algorithm", "is sha256 or sha512")
	case s.Encoding != "hex" && s.Encoding != "base64":
		return s, work.Invalidf("#/encoding", "is hex or base64")
	case strings.Count(s.Signed, "{body}") != 1:
		return s, work.Invalidf("#/signed", "must have {body} in it once: what is not signed anybody can change")
	case strings.Contains(s.Signed, "{timestamp}") != (s.TimestampHeader != ""):
		return s, work.Invalidf("#/timestamp_header", "goes with {timestamp} in signed: the one names it, the other signs it")
	case strings.Contains(s.Signed, "{id}") && s.IDHeader == "":
		return s, work.Invalidf("#/id_header", "is needed for {id} in signed")
	}
	for _, name := range placeholder.FindAllString(s.Signed, -1) {
		if name != "{body}" && name != "{timestamp}" && name != "{id}" {
			return s, work.Invalidf("#/signed", "%.50s: there are {body}, {timestamp} and {id}", name)
		}
	}
	return s, onlyFor(s, "basic", s.Username)
}

func onlyFor(s work.Scheme, presets string, fields ...string) error {
	if strings.Join(fields, "") != "" {
		return work.Invalidf("#/preset", "%s leaves nothing to say in header, algorithm, encoding, prefix, signed, timestamp_header, id_header or username that is for %s", s.Preset, presets)
	}
	return nil
}

func checkCommon(s work.Scheme) error {
	for pointer, name := range map[string]string{"#/header": s.Header, "#/timestamp_header": s.TimestampHeader, "#/id_header": s.IDHeader} {
		if name != "" && !headerName.MatchString(name) {
			return work.Invalidf(pointer, "%.50q is no name of a header", name)
		}
	}
	if len(s.Prefix) > 100 || len(s.Signed) > 500 {
		return work.Invalidf("#/signed", "prefix has at most 100 bytes, signed at most 500")
	}
	if !(s.Tolerance >= 0 && s.Tolerance <= MaxTolerance) { // NaN is neither
		return work.Invalidf("#/tolerance", "must lie between 0 and %v seconds", float64(MaxTolerance))
	}
	if s.Tolerance > 0 && !Timed(s) {
		return work.Invalidf("#/tolerance", "there is no timestamp in what %s signs", s.Preset)
	}
	return nil
}

// Bounds of a secret, in bytes.
const (
	minSecret = 24
	maxSecret = 1000
)

// CheckSecret says what is wrong with a secret, without telling it.
func CheckSecret(preset, secret string) string {
	least := minSecret
	switch preset {
	case Stripe:
		if !strings.HasPrefix(secret, "whsec_") {
			return "Stripe's signing secrets begin with whsec_, and are used whole"
		}
	case Slack:
		least = 16 // Slack chooses it
	case Standard:
		key, err := standardKey(secret)
		if err != nil || len(key) < minSecret || len(key) > 64 {
			return "a secret of Standard Webhooks is whsec_ and base64 of 24 to 64 bytes"
		}
	}
	switch {
	case len(secret) < least:
		return "is too easy to guess: make one of at least 24 characters, such as by `openssl rand -hex 32`"
	case len(secret) > maxSecret || strings.ContainsAny(secret, "\x00\r\n"):
		return "has at most 1000 bytes, none of them a line end"
	}
	return ""
}

func standardKey(secret string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
}

// Public is the headers of a delivery that expressions may see: those that say
// something about it, none that prove it or authenticate anybody. Of headers
// that come twice, the first.
func Public(s work.Scheme, h http.Header) map[string]string {
	s = whole(s)
	public := map[string]string{}
	for name, values := range h {
		lower := strings.ToLower(name)
		shown := lower == "content-type" || lower == "user-agent" || strings.HasPrefix(lower, "x-") ||
			strings.HasPrefix(lower, "webhook-") || strings.HasPrefix(lower, "ce-") || strings.EqualFold(name, s.IDHeader)
		if shown && !secretive.MatchString(lower) && !strings.EqualFold(name, s.Header) && len(values) > 0 {
			public[lower] = work.Clean(values[0])
		}
	}
	return public
}

var secretive = regexp.MustCompile(`signature|secret|token|key|auth|cookie|passw|session|^x-forwarded|^x-real-ip`)
