package api

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
	"github.com/go-json-experiment/json/jsontext"
)

// maxShown is how many errors an answer tells of; the others are counted.
const maxShown = 100

// validator compares a body with its schema while it reads it once. Huma's own
// builds the whole body and every error in memory and gives paths in which a
// dot may be a part of a name; the decoder knows each place exactly. Single
// values are left to huma.
type validator struct {
	ctx      context.Context
	registry huma.Registry
	dec      *jsontext.Decoder
	errors   []ProblemError
	count    int // of errors, also of those that are not shown
	read     int
	scratch  huma.ValidateResult
	path     *huma.PathBuffer
}

// validate compares body, which checkJSON must have passed, with a schema. It
// returns nil when all is well, and stops when ctx ends.
func validate(ctx context.Context, registry huma.Registry, schema *huma.Schema, body []byte) *Problem {
	v := validator{ctx: ctx, registry: registry, path: huma.NewPathBuffer(nil, 0)}
	v.dec = jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true)) // there are none
	if err := v.value(schema); err != nil {
		return newProblem(statusClientGone, "the body was not read to its end: "+err.Error())
	}
	if v.count == 0 {
		return nil
	}
	return manyFields(422, v.errors, v.count)
}

// manyFields is a problem about count fields, some of which are shown.
func manyFields(status int, shown []ProblemError, count int) *Problem {
	slices.SortStableFunc(shown, func(a, b ProblemError) int { return cmp.Compare(a.Pointer, b.Pointer) })
	p := newFieldsProblem(status, shown...)
	if count > len(shown) {
		p.Detail += fmt.Sprintf(" (the first %d of %d errors are shown)", len(shown), count)
	}
	return p
}

func (v *validator) fail(name, detail string) {
	v.count++
	if len(v.errors) >= maxShown {
		return
	}
	pointer := "#" + string(v.dec.StackPointer())
	if name != "" {
		pointer += "/" + escapePointer(name)
	}
	v.errors = append(v.errors, ProblemError{Pointer: pointer, Detail: detail})
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
			value, _ = strconv.ParseFloat(token.String(), 64) // checkJSON has seen that it can be
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
			v.fail("", unknownField(name))
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
