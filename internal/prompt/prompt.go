// Package prompt fills a prompt template with the values of a payload.
//
//	prompt.go   Render: templates, placeholders, literal braces
//	payload.go  finding a value in the payload and writing it as text
//
// A placeholder is a name in braces, {key}, that may go on with names and
// indices: {order.items.0.title}, {order.items[0].title}. A name is a letter
// or an underscore followed by letters, digits, underscores and dashes. A
// string is put in as it is, any other value as compact JSON. What was put in
// is never read as a template again.
//
// {payload.key} means the same as {key}, and {payload} alone is the whole
// payload as JSON. Where the payload has a key that is itself called payload,
// that key is tried first: {payload} is its value, and {payload.x} is its x
// if it has one, else the payload's x.
//
// A pair {{ … }} stands for literal braces: it gives { … } and no placeholder
// inside it is filled in. Pairs may be nested. Every other brace stays as it
// is, so JSON, code and format strings can be written into a template.
package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"piecework/internal/work"
)

// MaxRendered is the largest size of a rendered prompt in bytes.
const MaxRendered = 8 << 20

var errNotJSON = errors.New("the payload is not JSON")

// ErrTooLarge means that the rendered prompt would exceed MaxRendered.
var ErrTooLarge = fmt.Errorf("the rendered prompt is larger than %d bytes", MaxRendered)

// Missing says what becomes of a placeholder that the payload has no value for.
type Missing string

// What can become of a placeholder without a value; empty means Fail.
const (
	// Fail makes Render return a MissingKeyError.
	Fail Missing = "fail"
	// Note leaves the placeholder, appends an error note to the prompt and
	// goes on.
	Note Missing = "note"
)

// MissingKeyError means that the payload has no value for a placeholder.
type MissingKeyError struct {
	Key      string   // what stands between the braces
	Position int      // where the placeholder begins in the template, in bytes from 0
	Have     []string // some of the keys that the payload does have
}

func (e *MissingKeyError) Error() string {
	have := "the payload has no keys"
	if len(e.Have) > 0 {
		have = "the payload has " + listed(e.Have)
	}
	return fmt.Sprintf("missing template variable {%s} at position %d: %s; add it to the payload, or write {{%s}} for literal braces",
		e.Key, e.Position, have, e.Key)
}

func listed(keys []string) string {
	const maxKey = 64
	var shown []string
	for _, key := range keys {
		short, cut := work.Cut(key, maxKey)
		if cut {
			short += "…"
		}
		shown = append(shown, strconv.Quote(short))
	}
	return strings.Join(shown, ", ")
}

// Render fills the template with the payload's values.
func Render(template string, payload json.RawMessage, missing Missing) (string, error) {
	values, err := parse(payload)
	if err != nil {
		return "", err
	}
	r := renderer{template: template, paired: pairs(template), values: values, missing: missing}
	return r.render()
}

type renderer struct {
	template string
	paired   []int // where a brace pair's opening or closing half stands
	values   *payload
	missing  Missing

	out   strings.Builder
	depth int // of literal pairs around the current position
	notes strings.Builder
	noted map[string]bool
}

func (r *renderer) render() (string, error) {
	for at := 0; at < len(r.template); {
		next, err := r.step(at)
		if err != nil {
			return "", err
		}
		at = next
	}
	if err := r.write(r.notes.String()); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// step renders what begins at this position and returns where it ends.
func (r *renderer) step(at int) (next int, err error) {
	if len(r.paired) > 0 && r.paired[0] == at {
		return at + 2, r.pairHalf(at)
	}
	if r.template[at] == '{' && r.depth == 0 {
		if path, end, ok := placeholder(r.template, at); ok {
			return end, r.fill(path, at, end)
		}
	}
	next = at + 1
	if more := strings.IndexAny(r.template[next:], "{}"); more >= 0 {
		next += more
	} else {
		next = len(r.template)
	}
	return next, r.write(r.template[at:next])
}

func (r *renderer) pairHalf(at int) error {
	r.paired = r.paired[1:]
	if r.template[at] == '{' {
		r.depth++
	} else {
		r.depth--
	}
	return r.write(r.template[at : at+1])
}

func (r *renderer) fill(path []string, at, end int) error {
	text, ok := r.values.text(path)
	if ok {
		return r.write(text)
	}
	key := r.template[at+1 : end-1]
	if r.missing != Note {
		return &MissingKeyError{Key: key, Position: at, Have: r.values.keys()}
	}
	if r.noted == nil {
		r.noted = map[string]bool{}
	}
	if !r.noted[key] {
		r.noted[key] = true
		r.notes.WriteString("\n\n[ERROR: Missing template variable: '" + key + "']")
	}
	return r.write(r.template[at:end])
}

func (r *renderer) write(text string) error {
	if r.out.Len()+len(text) > MaxRendered {
		return ErrTooLarge
	}
	r.out.WriteString(text)
	return nil
}

// pairs returns, in order, the positions of every {{ that has its }} and of
// every }} that has its {{.
func pairs(template string) []int {
	const unmatched = -1
	var found, open []int
	for at := 0; at+1 < len(template); at++ {
		switch {
		case template[at] == '{' && template[at+1] == '{':
			open = append(open, len(found))
			found = append(found, at)
			at++
		case template[at] == '}' && template[at+1] == '}' && len(open) > 0:
			open = open[:len(open)-1]
			found = append(found, at)
			at++
		}
	}
	for _, i := range open {
		found[i] = unmatched
	}
	matched := found[:0]
	for _, at := range found {
		if at != unmatched {
			matched = append(matched, at)
		}
	}
	return matched
}

// placeholder reads the placeholder that begins at this opening brace.
func placeholder(template string, at int) (path []string, end int, ok bool) {
	name, end := word(template, at+1, isNameStart)
	if name == "" {
		return nil, 0, false
	}
	path = []string{name}
	for end < len(template) {
		var segment string
		switch template[end] {
		case '}':
			return path, end + 1, true
		case '.':
			segment, end = word(template, end+1, isSegmentStart)
		case '[':
			segment, end = index(template, end+1)
		}
		if segment == "" {
			return nil, 0, false
		}
		path = append(path, segment)
	}
	return nil, 0, false
}

// word reads a name, or after a dot a number.
func word(template string, at int, first func(byte) bool) (text string, end int) {
	if at == len(template) || !first(template[at]) {
		return "", at
	}
	if isDigit(template[at]) {
		return digits(template, at)
	}
	end = at
	for end < len(template) && isName(template[end]) {
		end++
	}
	return template[at:end], end
}

func index(template string, at int) (text string, end int) {
	text, end = digits(template, at)
	if end == len(template) || template[end] != ']' {
		return "", end
	}
	return text, end + 1
}

func digits(template string, at int) (text string, end int) {
	end = at
	for end < len(template) && isDigit(template[end]) {
		end++
	}
	return template[at:end], end
}

func isNameStart(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isSegmentStart(c byte) bool { return isNameStart(c) || isDigit(c) }

func isName(c byte) bool { return isNameStart(c) || isDigit(c) || c == '-' }
