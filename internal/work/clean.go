package work

import "strings"

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
