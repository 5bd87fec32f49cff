package expr

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxText bounds what our functions make, in bytes or items. The library's own
// string functions have no such bound.
const maxText = 1 << 20

func functions() []cel.EnvOption {
	return []cel.EnvOption{
		cel.Function("lower", cel.MemberOverload("string_lower", []*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(onText(strings.ToLower)))),
		cel.Function("upper", cel.MemberOverload("string_upper", []*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(onText(strings.ToUpper)))),
		cel.Function("trim", cel.MemberOverload("string_trim", []*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(onText(strings.TrimSpace)))),
		cel.Function("split", cel.MemberOverload("string_split", []*cel.Type{cel.StringType, cel.StringType}, cel.ListType(cel.StringType),
			cel.BinaryBinding(split))),
		cel.Function("join", cel.MemberOverload("list_join", []*cel.Type{cel.ListType(cel.DynType), cel.StringType}, cel.StringType,
			cel.BinaryBinding(join))),
		cel.Function("matches", cel.MemberOverload("text_matches", []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType,
			cel.BinaryBinding(matches))),
		cel.Function("cut", cel.MemberOverload("string_cut", []*cel.Type{cel.StringType, cel.IntType}, cel.StringType,
			cel.BinaryBinding(cut))),
	}
}

func onText(f func(string) string) func(ref.Val) ref.Val {
	return func(v ref.Val) ref.Val {
		text, ok := v.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(v)
		}
		if len(text) > maxText {
			return tooLarge()
		}
		return types.String(f(string(text)))
	}
}

func tooLarge() ref.Val { return types.NewErr("a text of more than %d bytes", maxText) }

func split(v, separator ref.Val) ref.Val {
	text, ok := v.(types.String)
	at, ok2 := separator.(types.String)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	if len(text) > maxText {
		return tooLarge()
	}
	return types.DefaultTypeAdapter.NativeToValue(strings.Split(string(text), string(at)))
}

func join(v, separator ref.Val) ref.Val {
	list, ok := v.(traits.Lister)
	between, ok2 := separator.(types.String)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	var text strings.Builder
	for it, first := list.Iterator(), true; it.HasNext() == types.True; first = false {
		if !first {
			text.WriteString(string(between))
		}
		item, ok := it.Next().(types.String)
		if !ok {
			return types.NewErr("join takes a list of texts")
		}
		text.WriteString(string(item))
		if text.Len() > maxText {
			return tooLarge()
		}
	}
	return types.String(text.String())
}

// maxMatch bounds what a pattern may cost: instructions of its program for each
// byte of the text. It is some tenths of a second.
const maxMatch = 16 << 20

// matches stands in for the library's own, which nothing interrupts.
func matches(v, pattern ref.Val) ref.Val {
	text, ok := v.(types.String)
	source, ok2 := pattern.(types.String)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	tree, err := syntax.Parse(string(source), syntax.Perl)
	if err != nil {
		return types.WrapErr(err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return types.WrapErr(err)
	}
	if len(program.Inst)*len(text) > maxMatch {
		return types.NewErr("a text of %d bytes is too long for this pattern", len(text))
	}
	found, err := regexp.MatchString(string(source), string(text))
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Bool(found)
}

// cut is the first n characters of a text.
func cut(v, count ref.Val) ref.Val {
	text, ok := v.(types.String)
	n, ok2 := count.(types.Int)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	if n < 0 {
		return types.WrapErr(fmt.Errorf("cut takes a length of 0 or more"))
	}
	for i := range string(text) {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}
