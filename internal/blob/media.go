package blob

import (
	"mime"
	"net/http"
	"path"
)

// SniffBytes is how much of a file MediaType looks at.
const SniffBytes = 512

const plainBytes = "application/octet-stream"

// MediaType is what a caller says a file is, unless that says nothing; then
// what its name says, then what its first bytes look like.
func MediaType(given, name string, head []byte) string {
	for _, guess := range []string{given, mime.TypeByExtension(path.Ext(name)), http.DetectContentType(head)} {
		kind, params, err := mime.ParseMediaType(guess)
		if err != nil || kind == plainBytes || len(guess) > 200 {
			continue
		}
		keep := map[string]string{}
		if charset := params["charset"]; charset != "" {
			keep["charset"] = charset
		}
		if text := mime.FormatMediaType(kind, keep); text != "" {
			return text
		}
	}
	return plainBytes
}
