package pg

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
)

// Where collects conditions with their arguments; ? becomes $n.
type Where struct {
	Conds []string
	Args  []any
}

// Add adds a condition.
func (w *Where) Add(cond string, arg any) {
	if text, ok := arg.(string); ok {
		arg = work.Clean(text) // Postgres refuses to look for what it cannot hold
	}
	w.Conds = append(w.Conds, strings.Replace(cond, "?", w.Arg(arg), 1))
}

// Arg takes an argument for another part of the statement, and returns how it
// is called there.
func (w *Where) Arg(arg any) string {
	w.Args = append(w.Args, arg)
	return fmt.Sprintf("$%d", len(w.Args))
}

// Text is what stands behind WHERE.
func (w *Where) Text() string { return strings.Join(w.Conds, " AND ") }

// AddIf adds a condition that is wanted.
func (w *Where) AddIf(ok bool, cond string, arg any) {
	if ok {
		w.Add(cond, arg)
	}
}

// DefaultLimit is the length of a page when none is asked for.
const DefaultLimit = 50

// CutPage takes the row away that is one too many, and tells the id to go on after.
func CutPage[T any](items []T, limit int, id func(T) uuid.UUID) ([]T, *uuid.UUID, error) {
	if len(items) <= limit {
		return items, nil, nil
	}
	next := id(items[limit-1])
	return items[:limit], &next, nil
}

// First is the first of items, zero when there is none.
func First[T any](items []T) (zero T) {
	if len(items) == 0 {
		return zero
	}
	return items[0]
}

// TextArray makes an array parameter of texts.
func TextArray[T ~string](items []T) any {
	text := make([]string, len(items))
	for i, item := range items {
		text[i] = string(item)
	}
	return pq.Array(text)
}

// EscapeLike makes a text of a part of a LIKE pattern.
func EscapeLike(s string) string {
	return strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(s)
}

// UUIDs makes an array parameter of ids.
func UUIDs(ids []uuid.UUID) any {
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = id.String()
	}
	return pq.Array(text)
}

// JSONOr is a JSON parameter that is never empty.
func JSONOr(raw json.RawMessage, none string) string { return cmp.Or(string(raw), none) }

// JSONOrNull is a JSON parameter, nil for NULL.
func JSONOrNull(raw json.RawMessage) *string {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil
	}
	text := string(raw)
	return &text
}

// Encode makes a JSON parameter. What callers sent stays as it was: <, > and &
// are not escaped.
func Encode(v any) (string, error) {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", &badRow{fmt.Errorf("encode rows: %w", err)}
	}
	return text.String(), nil
}

// Wrap says what failed, if something did.
func Wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
