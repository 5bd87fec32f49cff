package expr

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"piecework/internal/work"
)

// Read reads JSON for expressions. Whole numbers of up to 64 bits stay exact.
func Read(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return plain(v), nil
}

// plain puts numbers that the language knows into a value.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64() // of what is too large it is infinite, which no comparison takes for a number
		return f
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = plain(v[name])
		}
	}
	return v
}

// maxNesting is how deep a value may be that is written.
const maxNesting = 100

// writer writes a value as JSON until it is too much. A small value can be made
// of one part many times over, so it must not be written and then measured.
type writer struct {
	text  []byte
	limit int
}

func (w *writer) add(text string) error {
	if len(w.text)+len(text) > w.limit {
		return fmt.Errorf("came to more than %d bytes", w.limit)
	}
	w.text = append(w.text, text...)
	return nil
}

func (w *writer) value(v ref.Val, depth int) error {
	if depth > maxNesting {
		return errors.New("came to a value that is nested too deep")
	}
	switch v := v.(type) {
	case types.String:
		return w.plain(work.Clean(string(v)))
	case types.Null:
		return w.add("null")
	case types.Bool:
		return w.plain(bool(v))
	case types.Int:
		return w.plain(int64(v))
	case types.Uint:
		return w.plain(uint64(v))
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return errors.New("came to a number that is not finite")
		}
		return w.plain(float64(v))
	case types.Timestamp, types.Duration:
		return w.value(v.ConvertToType(types.StringType), depth)
	case traits.Mapper:
		return w.object(v, depth)
	case traits.Lister:
		return w.list(v, depth)
	}
	return fmt.Errorf("came to a %s, which JSON does not know", v.Type().TypeName())
}

func (w *writer) plain(v any) error {
	if text, ok := v.(string); ok && len(w.text)+len(text) > w.limit {
		return w.add(text)
	}
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return w.add(strings.TrimSuffix(out.String(), "\n"))
}

func (w *writer) list(v traits.Lister, depth int) error {
	if err := w.add("["); err != nil {
		return err
	}
	for it, first := v.Iterator(), true; it.HasNext() == types.True; first = false {
		if err := w.item(first, it.Next(), depth); err != nil {
			return err
		}
	}
	return w.add("]")
}

func (w *writer) item(first bool, v ref.Val, depth int) error {
	if !first {
		if err := w.add(","); err != nil {
			return err
		}
	}
	return w.value(v, depth+1)
}

func (w *writer) object(v traits.Mapper, depth int) error {
	var names []string
	for it := v.Iterator(); it.HasNext() == types.True; {
		name, ok := it.Next().(types.String)
		if !ok {
			return errors.New("came to an object with a key that is no text")
		}
		names = append(names, string(name))
	}
	slices.Sort(names)
	if err := w.add("{"); err != nil {
		return err
	}
	for i, name := range names {
		if err := w.item(i == 0, types.String(name), depth); err != nil {
			return err
		}
		if err := w.add(":"); err != nil {
			return err
		}
		if err := w.value(v.Get(types.String(name)), depth+1); err != nil {
			return err
		}
	}
	return w.add("}")
}
