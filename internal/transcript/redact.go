package transcript

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
)

const redacted = "[redacted]"

// minPart is the shortest part of a secret that is taken for it where a text
// ends or begins in the middle of one, in bytes.
const minPart = 8

// Redactor returns a function that replaces the given secret values, however
// they are written (see forms), and whatever looks like a credential of a known
// kind. A text that was cut in the middle of a secret, as streams and steps are,
// loses what it has of it. Values shorter than 8 bytes are left alone: replacing
// them would destroy more than it protects. It may be shared, and should be: it
// takes some KB.
func Redactor(secrets []string) func(string) string {
	// The longest first: of two secrets that begin alike the shorter would
	// leave the rest of the longer one.
	longest := slices.SortedFunc(slices.Values(secrets), func(a, b string) int { return len(b) - len(a) })
	var pairs, written []string
	for _, secret := range longest {
		if len(secret) < minPart {
			continue
		}
		for _, form := range forms(secret) {
			pairs = append(pairs, form, redacted)
			written = append(written, form)
		}
	}
	known := strings.NewReplacer(pairs...)
	return func(s string) string {
		return keyed.redact(cutEnds(known.Replace(s), written), math.MaxInt)
	}
}

// RedactStart is the first most bytes, or more, of what Redactor(nil) makes of a
// text. It looks no further than it must.
func RedactStart(text string, most int) string { return keyed.redact(text, most) }

// cutEnds replaces the first part of a secret at the end of a text, and the last
// part of one at its beginning.
func cutEnds(s string, written []string) string {
	head, tail := 0, 0
	for _, form := range written {
		for n := min(len(form)-1, len(s)); n >= max(minPart, head+1); n-- {
			if s[n-1] == form[len(form)-1] && strings.HasPrefix(s, form[len(form)-n:]) {
				head = n
			}
		}
		for n := min(len(form)-1, len(s)); n >= max(minPart, tail+1); n-- {
			if s[len(s)-n] == form[0] && strings.HasSuffix(s, form[:n]) {
				tail = n
			}
		}
	}
	if head+tail >= len(s) && head+tail > 0 {
		return redacted
	}
	if head > 0 {
		s = redacted + s[head:]
	}
	if tail > 0 {
		s = s[:len(s)-tail] + redacted
	}
	return s
}

// forms are the ways a secret may be written, the whole before parts of them.
func forms(secret string) []string {
	raw := []byte(secret)
	written := []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret),
		base64.StdEncoding.EncodeToString(raw), base64.RawStdEncoding.EncodeToString(raw),
		base64.URLEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw),
		lowerEscapes(url.QueryEscape(secret)), lowerEscapes(url.PathEscape(secret)),
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
	for _, format := range []string{"%02x", "%02X", "%%%02X", "%%%02x", `\x%02x`, `\x%02X`} {
		var text strings.Builder
		for _, c := range raw {
			fmt.Fprintf(&text, format, c)
		}
		written = append(written, text.String())
	}
	for _, format := range []string{`\u%04x`, `\u%04X`} {
		var text strings.Builder
		for _, unit := range utf16.Encode([]rune(secret)) {
			fmt.Fprintf(&text, format, unit)
		}
		written = append(written, text.String())
	}
	// Within a longer text in base64 a secret begins at one of three places of a
	// group. Characters that it shares with what stands beside it are not its.
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			text := encoding.EncodeToString(append(make([]byte, before), raw...))
			if inner := text[(before*8+5)/6 : (before+len(raw))*8/6]; len(inner) >= minPart {
				written = append(written, inner)
			}
		}
	}
	return slices.Compact(written)
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			out.WriteString(strings.ToLower(text[i : i+3]))
			i += 2
			continue
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
