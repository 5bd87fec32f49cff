package api

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// idempotencyKey reads the header, quoted (a structured field string) or bare.
func idempotencyKey(header string) (string, error) {
	key := header
	if strings.HasPrefix(header, `"`) {
		var ok bool
		if key, ok = unquoted(header); !ok {
			return "", badKey(`begins with a quote and is no text in quotes: write "…", or leave the quotes out`)
		}
	}
	if len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return "", badKey("has at most 255 printable ASCII characters")
	}
	return key, nil
}

func badKey(detail string) *Problem {
	return newFieldsProblem(http.StatusBadRequest, ProblemError{Parameter: "Idempotency-Key", Detail: detail})
}

// unquoted reads a string of RFC 9651 that is not empty.
func unquoted(quoted string) (string, bool) {
	inside, ok := strings.CutSuffix(quoted[1:], `"`)
	if !ok || inside == "" {
		return "", false
	}
	var text strings.Builder
	for i := 0; i < len(inside); i++ {
		switch inside[i] {
		case '"':
			return "", false
		case '\\':
			if i++; i == len(inside) || inside[i] != '"' && inside[i] != '\\' {
				return "", false
			}
		}
		text.WriteByte(inside[i])
	}
	return text.String(), true
}

// fingerprint is the same for bodies that mean the same. Numbers count as they
// are written: large ones would be rounded, and prompts show them as they are.
func fingerprint(body []byte) []byte {
	canonical := jsontext.Value(slices.Clone(body))
	if canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		canonical = body
	}
	sum := sha256.Sum256(canonical)
	return sum[:]
}
