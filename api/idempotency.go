package api

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/go-json-experiment/json/jsontext"

	"piecework/api/problem"
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

// keyIn reads the key of a request that huma does not take apart.
func keyIn(h http.Header) (string, error) {
	if err := checkKeys(h); err != nil {
		return "", err
	}
	return idempotencyKey(h.Get("Idempotency-Key"))
}

// checkKeys refuses a header that names nothing, or two units at once: the
// first alone would count, and who sent the other would trust in it.
func checkKeys(h http.Header) error {
	given := h.Values("Idempotency-Key")
	switch {
	case len(given) == 0:
		return nil
	case slices.ContainsFunc(given, func(k string) bool { return k != given[0] }):
		return badKey("is there more than once, with different values: give it once")
	case given[0] == "":
		return badKey("is empty: give it a value or leave it out")
	}
	return nil
}

// checkKey is checkKeys for the operations that take a key.
func (a *API) checkKey(ctx huma.Context, next func(huma.Context)) {
	takes := func(p *huma.Param) bool { return p.In == "header" && p.Name == "Idempotency-Key" }
	if slices.ContainsFunc(ctx.Operation().Parameters, takes) {
		c := humaecho.Unwrap(ctx)
		if err := checkKeys(c.Request().Header); err != nil {
			a.answerError(err, c)
			return
		}
	}
	next(ctx)
}

func badKey(detail string) *problem.Problem {
	return problem.Fields(http.StatusBadRequest, problem.Field{Parameter: "Idempotency-Key", Detail: detail})
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
