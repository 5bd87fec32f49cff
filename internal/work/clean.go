package work

import (
	"strings"
	"unicode"
)

// Clean removes what Postgres text cannot hold: NUL characters and bytes that
// are not UTF-8.
func Clean(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}

// Cut shortens s to at most limit bytes on a character boundary, and tells
// whether it had to.
func Cut(s string, limit int) (string, bool) {
	if len(s) <= limit {
		return s, false
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit], true
}

// Visible shows control characters, and characters that reorder or hide text,
// as harmless ones, so that no model's words can steer the reader's terminal.
// Line ends and tabs stay, and the joiner that emoji are made with.
func Visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\u200d':
			return r
		case r < 0x20:
			return '\u2400' + r // the control pictures
		case r == '\u2028', r == '\u2029', unicode.In(r, unicode.Cc, unicode.Cf):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
