package transcript

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const redacted = "[redacted]"

// Keys that providers mark with a prefix of their own, whoever they belong to.
// Each pattern begins with plain characters, for which regexp has a fast search:
// as one pattern they would take seconds for a text of 20 MB.
var patterns = []*regexp.Regexp{
	regexp.MustCompile(`sk-ant-[A-Za-z0-9_-]{16,}`),
	regexp.MustCompile(`sk-(?:proj-)?[A-Za-z0-9_-]{32,}`),
	regexp.MustCompile(`ghp_[A-Za-z0-9]{30,}`),
	regexp.MustCompile(`gho_[A-Za-z0-9]{30,}`),
	regexp.MustCompile(`ghu_[A-Za-z0-9]{30,}`),
	regexp.MustCompile(`ghs_[A-Za-z0-9]{30,}`),
	regexp.MustCompile(`ghr_[A-Za-z0-9]{30,}`),
	regexp.MustCompile(`github_pat_[A-Za-z0-9_]{30,}`),
	regexp.MustCompile(`AKIA[0-9A-Z]{16}`),
	regexp.MustCompile(`AIza[0-9A-Za-z_-]{35}`),
	regexp.MustCompile(`xox[abprs]-[A-Za-z0-9-]{10,}`),
}

// Redactor returns a function that replaces the given secret values, in raw,
// JSON-escaped, URL-escaped and base64 form, and anything that looks like a
// provider's API key. Values shorter than 8 bytes are left alone: replacing
// them would destroy more than it protects. It may be shared, and should be: it
// takes some KB.
func Redactor(secrets []string) func(string) string {
	// The longest first: of two secrets that begin alike the shorter would
	// leave the rest of the longer one.
	longest := slices.SortedFunc(slices.Values(secrets), func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, secret := range longest {
		if len(secret) < 8 {
			continue
		}
		for _, form := range forms(secret) {
			pairs = append(pairs, form, redacted)
		}
	}
	known := strings.NewReplacer(pairs...)
	return func(s string) string {
		s = known.Replace(s)
		for _, pattern := range patterns {
			if pattern.MatchString(s) {
				s = pattern.ReplaceAllString(s, redacted)
			}
		}
		return s
	}
}

// forms are the ways a secret may be written, the padded before the bare.
func forms(secret string) []string {
	raw := []byte(secret)
	written := []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret),
		base64.StdEncoding.EncodeToString(raw), base64.RawStdEncoding.EncodeToString(raw),
		base64.URLEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw),
	}
	for _, html := range []bool{true, false} { // encoders differ in whether they escape <, > and &
		var quoted strings.Builder
		enc := json.NewEncoder(&quoted)
		enc.SetEscapeHTML(html)
		if enc.Encode(secret) == nil {
			text := strings.TrimSpace(quoted.String())
			written = append(written, text[1:len(text)-1])
		}
	}
	return written
}
