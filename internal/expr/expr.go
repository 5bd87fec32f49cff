// Package expr evaluates small expressions over JSON, written in CEL (the
// Common Expression Language of Kubernetes and Tekton). It has no loops without
// end, no clock, no files and no network. What an expression may cost is
// bounded: people write expressions, and strangers the values they meet.
//
//	expr.go      compile and evaluate
//	function.go  our functions on texts and lists, with bounds
//	value.go     values as JSON: read, cleaned, cut off at a size
package expr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Bounds of one expression.
const (
	MaxSource = 4096                   // characters of it
	maxDepth  = 100                    // levels of it
	maxLoops  = 2                      // map, filter, exists and the like inside each other
	maxCost   = 1_000_000              // steps, about; texts cost by their length
	maxTime   = 500 * time.Millisecond // for what is not counted as a step
	askEvery  = 100                    // rounds of a loop between two looks at the clock
)

// ErrMissing: an expression names a key or an index that is not there.
var ErrMissing = errors.New("is not there")

// Language compiles expressions. It is made once.
type Language struct{ env *cel.Env }

// New makes the language of triggers: body is any JSON value, headers, event and
// delivery are texts.
func New() *Language {
	return language(cel.Variable("body", cel.DynType), cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("event", cel.StringType), cel.Variable("delivery", cel.StringType))
}

// NewForOutput makes the language of acceptance checks: output is a text, and
// json the value that it says, null when it is no JSON.
func NewForOutput() *Language {
	return language(cel.Variable("output", cel.StringType), cel.Variable("json", cel.DynType))
}

func language(variables ...cel.EnvOption) *Language {
	options := append(variables,
		cel.StdLib(cel.StdLibSubset(&env.LibrarySubset{ExcludeFunctions: []*env.Function{{Name: "matches"}}})), // ours has a bound
		cel.CrossTypeNumericComparisons(true),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(maxLoops), cel.ValidateRegexLiterals()),
		cel.ParserExpressionSizeLimit(MaxSource), cel.ParserRecursionLimit(maxDepth),
	)
	environment, err := cel.NewCustomEnv(append(options, functions()...)...)
	if err != nil {
		panic(fmt.Sprintf("make the expression language: %v", err)) // it is made of constants
	}
	return &Language{environment}
}

// Vars is what an expression sees.
type Vars struct {
	Body     any // as Read returns it
	Headers  map[string]string
	Event    string
	Delivery string
	Output   string
	JSON     any // as Read returns it
}

// Program is a compiled expression, safe for use by many at once.
type Program struct{ program cel.Program }

// Compile compiles an expression, or says what is wrong with it.
func (l *Language) Compile(source string) (*Program, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("is empty")
	}
	ast, issues := l.env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, errors.New(firstIssue(err))
	}
	program, err := l.env.Program(ast, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(askEvery))
	if err != nil {
		return nil, errors.New(firstIssue(err))
	}
	return &Program{program}, nil
}

// CompileCondition compiles an expression that must be true or false.
func (l *Language) CompileCondition(source string) (*Program, error) {
	p, err := l.Compile(source)
	if err != nil {
		return nil, err
	}
	ast, _ := l.env.Compile(source)
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("is a %s: write a condition, such as body.action == \"opened\"", t)
	}
	return p, nil
}

// firstIssue is the first line of a complaint, without the name of a file.
func firstIssue(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	line = strings.TrimPrefix(line, "ERROR: ")
	return strings.TrimPrefix(line, "<input>:")
}

func (p *Program) eval(ctx context.Context, v Vars) (ref.Val, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	out, _, err := p.program.ContextEval(ctx, map[string]any{
		"body": v.Body, "headers": v.Headers, "event": v.Event, "delivery": v.Delivery, "output": v.Output, "json": v.JSON,
	})
	switch {
	case err == nil:
		return out, nil
	case missing(err):
		return nil, fmt.Errorf("%w: %.200s", ErrMissing, detail(err))
	}
	return nil, fmt.Errorf("%.200s", detail(err))
}

// missing tells of the library's errors that say: there is no such thing.
func missing(err error) bool {
	text := err.Error()
	return strings.Contains(text, "no such key") || strings.Contains(text, "no such attribute") || strings.Contains(text, "index out of bounds")
}

func detail(err error) string { return strings.TrimPrefix(err.Error(), "no such key: ") }

// Bool evaluates a condition.
func (p *Program) Bool(ctx context.Context, v Vars) (bool, error) {
	out, err := p.eval(ctx, v)
	if err != nil {
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, fmt.Errorf("came to a %s, neither true nor false", out.Type().TypeName())
	}
	return bool(b), nil
}

// Text evaluates an expression that names something. Numbers are written as
// texts; null is none.
func (p *Program) Text(ctx context.Context, v Vars) (string, error) {
	out, err := p.eval(ctx, v)
	if err != nil {
		return "", err
	}
	switch out := out.(type) {
	case types.String:
		return string(out), nil
	case types.Int, types.Uint, types.Double, types.Bool:
		text, ok := out.ConvertToType(types.StringType).(types.String)
		if ok {
			return string(text), nil
		}
	case types.Null:
		return "", nil
	}
	return "", fmt.Errorf("came to a %s; a text is needed", out.Type().TypeName())
}

// JSON evaluates an expression and writes what it came to, in at most limit
// bytes.
func (p *Program) JSON(ctx context.Context, v Vars, limit int) ([]byte, error) {
	out, err := p.eval(ctx, v)
	if err != nil {
		return nil, err
	}
	w := writer{limit: limit}
	if err := w.value(out, 0); err != nil {
		return nil, err
	}
	return w.text, nil
}
