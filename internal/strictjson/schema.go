package strictjson

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
	"github.com/go-json-experiment/json/jsontext"

	"piecework/internal/work"
)

// MaxShown is how many faults of a body are told; the others are counted.
const MaxShown = 100

// validator compares a body with its schema while it reads it once. Huma's own
// builds the whole body and every error in memory and gives paths in which a
// dot may be a part of a name; the decoder knows each place exactly. Single
// values are left to huma.
type validator struct {
	ctx      context.Context
	registry huma.Registry
	dec      *jsontext.Decoder
	errors   []work.Invalid
	count    int // of errors, also of those that are not shown
	read     int
	scratch  huma.ValidateResult
	path     *huma.PathBuffer
}

// Validate compares a body, which Check must have passed, with a schema. It tells how
// many faults there are, and the first MaxShown of them. The error is that ctx has
// ended, with which it stops.
func Validate(ctx context.Context, registry huma.Registry, schema *huma.Schema, body []byte) (shown []work.Invalid, count int, err error) {
	v := validator{ctx: ctx, registry: registry, path: huma.NewPathBuffer(nil, 0)}
	v.dec = jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true)) // there are none
	if err := v.value(schema); err != nil {
		return nil, 0, err
	}
	return v.errors, v.count, nil
}

func (v *validator) fail(name, detail string) {
	v.count++
	if len(v.errors) >= MaxShown {
		return
	}
	pointer := "#" + string(v.dec.StackPointer())
	if name != "" {
		pointer += "/" + Escape(name)
	}
	v.errors = append(v.errors, work.Invalid{Pointer: pointer, Detail: detail})
}

// value reads the next value.
func (v *validator) value(s *huma.Schema) error {
	if v.read++; v.read%1024 == 0 && v.ctx.Err() != nil {
		return v.ctx.Err()
	}
	for s != nil && s.Ref != "" {
		s = v.registry.SchemaFromRef(s.Ref)
	}
	kind := v.dec.PeekKind()
	switch {
	case s == nil || s.Nullable && kind == 'n':
		return v.dec.SkipValue()
	case kind == '{' && s.Type == huma.TypeObject:
		return v.object(s)
	case kind == '[' && s.Type == huma.TypeArray:
		return v.array(s)
	}
	return v.single(s, kind)
}

// single reads a value that is whole for the schema.
func (v *validator) single(s *huma.Schema, kind jsontext.Kind) error {
	plain := s.MinLength == nil && s.MaxLength == nil && s.Pattern == "" && s.Format == "" && len(s.Enum) == 0 && s.ContentEncoding == ""
	if s.Type == "" && len(s.Enum) == 0 || s.Type == huma.TypeString && kind == '"' && plain {
		return v.dec.SkipValue()
	}
	var value any
	switch kind {
	case '{':
		value = map[string]any{}
	case '[':
		value = []any{}
	case '"', '0', 't', 'f':
		token, err := v.dec.ReadToken()
		if err != nil {
			return err
		}
		switch kind {
		case '"':
			value = token.String()
		case '0':
			value, _ = strconv.ParseFloat(token.String(), 64) // Check has seen that it can be
		default:
			value = token.Bool()
		}
		return v.compare(s, value)
	}
	if err := v.dec.SkipValue(); err != nil {
		return err
	}
	return v.compare(s, value)
}

func (v *validator) compare(s *huma.Schema, value any) error {
	v.scratch.Reset()
	huma.Validate(v.registry, s, v.path, huma.ModeWriteToServer, value, &v.scratch)
	for _, err := range v.scratch.Errors {
		v.fail("", err.(*huma.ErrorDetail).Message) //nolint:errorlint // huma makes no others
	}
	return nil
}

func (v *validator) object(s *huma.Schema) error {
	if _, err := v.dec.ReadToken(); err != nil {
		return err
	}
	seen, count := map[string]bool{}, 0
	for v.dec.PeekKind() != '}' {
		token, err := v.dec.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		count++
		schema, known := s.Properties[name]
		if known {
			seen[name] = true
		} else if allowed, ok := s.AdditionalProperties.(bool); ok && !allowed {
			v.fail("", UnknownField(name))
		} else {
			schema, _ = s.AdditionalProperties.(*huma.Schema) // nil takes anything
		}
		if known && v.dec.PeekKind() == 'n' && !slices.Contains(s.Required, name) {
			schema = nil
		}
		if err := v.value(schema); err != nil {
			return err
		}
	}
	if _, err := v.dec.ReadToken(); err != nil {
		return err
	}
	for _, name := range s.Required {
		if !seen[name] {
			v.fail(name, "is missing; it must be there")
		}
	}
	v.within(count, s.MinProperties, s.MaxProperties, validation.MsgExpectedMinProperties, validation.MsgExpectedMaxProperties)
	return nil
}

func (v *validator) array(s *huma.Schema) error {
	if _, err := v.dec.ReadToken(); err != nil {
		return err
	}
	count := 0
	for ; v.dec.PeekKind() != ']'; count++ {
		if err := v.value(s.Items); err != nil {
			return err
		}
	}
	if _, err := v.dec.ReadToken(); err != nil {
		return err
	}
	v.within(count, s.MinItems, s.MaxItems, validation.MsgExpectedMinItems, validation.MsgExpectedMaxItems)
	return nil
}

func (v *validator) within(count int, least, most *int, tooFew, tooMany string) {
	if least != nil && count < *least {
		v.fail("", fmt.Sprintf(tooFew, *least))
	}
	if most != nil && count > *most {
		v.fail("", fmt.Sprintf(tooMany, *most))
	}
}

// Schemas are the schemas of Go types.
type Schemas struct {
	registry huma.Registry
	roots    map[reflect.Type]*huma.Schema
}

// NewSchemas makes the schemas of types.
func NewSchemas(types ...reflect.Type) Schemas {
	s := Schemas{huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer), map[reflect.Type]*huma.Schema{}}
	for _, t := range types {
		s.roots[t] = s.registry.Schema(t, true, "")
	}
	return s
}

// Parse reads an object into a struct of one of the types as strictly as if it had
// come as a body of its own. checked: Check has passed it. What is wrong is returned.
func (s Schemas) Parse(body []byte, into any, checked bool) []work.Invalid {
	if !checked {
		if wrong := Check(body); wrong != nil {
			return []work.Invalid{*wrong}
		}
	}
	// To its end: a caller who goes away does not make an item wrong.
	if shown, _, _ := Validate(context.Background(), s.registry, s.roots[reflect.TypeOf(into).Elem()], body); len(shown) > 0 {
		slices.SortStableFunc(shown, func(a, b work.Invalid) int { return cmp.Compare(a.Pointer, b.Pointer) })
		return shown
	}
	if err := json.Unmarshal(body, into); err != nil {
		return []work.Invalid{{Pointer: "#", Detail: err.Error()}}
	}
	return nil
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Escape writes a name as a part of a JSON pointer (RFC 6901).
func Escape(name string) string { return pointerEscapes.Replace(name) }

// elsewhere are fields that belong to something else.
var elsewhere = map[string]string{
	"batch_id": "a unit does not name its batch: POST /batches makes batches of units",
}

// UnknownField is what is wrong with a field that there is not.
func UnknownField(name string) string {
	if why, ok := elsewhere[name]; ok {
		return why
	}
	return fmt.Sprintf("there is no field %.100q; check its spelling against /docs", name)
}
