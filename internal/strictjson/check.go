// Package strictjson reads JSON that others have sent: it refuses what cannot be kept
// as it was sent, and compares values with the schemas of Go types.
//
//	check.go   what no body may have
//	schema.go  Schemas: the schemas of types, and what a body lacks of them
//	types.go   fields that are kept as they were sent
//	merge.go   objects laid over each other, and fields taken out of them
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"piecework/internal/work"
)

const (
	maxDepth  = 100     // levels a body may be nested
	maxNames  = 100_000 // object members in a body
	maxValues = 250_000 // values in a body, objects and arrays among them
	maxDigits = 1000    // bytes of a number
	// maxNameBytes is how long an object member's name may be as it is written.
	maxNameBytes = 10_000
)

// Check says what is wrong with a body: what encoding/json would quietly mend, such
// as duplicate names, lone surrogates and invalid UTF-8, the NUL character, which
// Postgres cannot hold, and more values than anyone needs. An empty body is left to
// the caller, who knows whether one is needed. Nil when all is well.
func Check(body []byte) *work.Invalid {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body)) // of a Buffer nothing is copied
	values, names := 0, 0
	for {
		wrong, err := readToken(dec)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return SyntaxError(err)
		}
		if kind, length := dec.StackIndex(dec.StackDepth()); kind == '{' && length%2 == 1 {
			names++
		} else {
			values++
		}
		switch {
		case wrong == longName:
			return at("", wrong) // the pointer would have all of it
		case wrong != "":
			return at(string(dec.StackPointer()), wrong)
		case names > maxNames:
			return at("", fmt.Sprintf("there are more than %d names in the body; put large inputs into files", maxNames))
		case values > maxValues:
			return at("", fmt.Sprintf("there are more than %d values in the body; put large inputs into files", maxValues))
		case dec.StackDepth() > maxDepth:
			return at(string(dec.StackPointer()), fmt.Sprintf("nested deeper than %d levels", maxDepth))
		case dec.StackDepth() == 0 && len(bytes.TrimSpace(body[dec.InputOffset():])) > 0:
			return at("", "there is more than one JSON value in the body; send one object")
		}
	}
}

// readToken reads a token and says what is wrong with one that is good JSON
// and yet cannot be kept.
func readToken(dec *jsontext.Decoder) (wrong string, err error) {
	switch dec.PeekKind() {
	case '"':
		name, length := dec.StackIndex(dec.StackDepth())
		text, err := dec.ReadValue()
		switch {
		case err != nil:
			return "", err
		case holdsNUL(text):
			wrong = "text must not contain the NUL character (\\u0000); take it out"
		case name == '{' && length%2 == 0 && len(text) > maxNameBytes:
			wrong = longName
		}
		return wrong, nil
	case '0':
		digits, err := dec.ReadValue()
		if err != nil {
			return "", err
		}
		if len(digits) > maxDigits || !inRange(digits) {
			wrong = "the number is out of range; write it as text"
		}
		return wrong, nil
	}
	_, err = dec.ReadToken()
	return "", err
}

var longName = fmt.Sprintf("a name is longer than %d bytes; put long text into values", maxNameBytes)

// holdsNUL tells whether a JSON string has an escaped NUL character: six
// characters that no backslash of their own stands before.
func holdsNUL(quoted []byte) bool {
	escaped := []byte(`\u0000`)
	for {
		at := bytes.Index(quoted, escaped)
		if at < 0 {
			return false
		}
		before := len(quoted[:at]) - len(bytes.TrimRight(quoted[:at], `\`))
		if before%2 == 0 {
			return true
		}
		quoted = quoted[at+len(escaped):]
	}
}

func inRange(digits []byte) bool {
	n, err := strconv.ParseFloat(string(digits), 64)
	return err == nil && !math.IsInf(n, 0)
}

// SyntaxError says what is wrong with JSON that a decoder of jsontext could not read.
func SyntaxError(err error) *work.Invalid {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return at("", "the body is not JSON: "+err.Error())
	}
	pointer := string(syntax.JSONPointer)
	what := "the body is not JSON"
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		what = "the same name comes twice in one object; keep one of them"
	case strings.Contains(syntax.Err.Error(), "surrogate"):
		what = "half a surrogate pair (\\ud800 to \\udfff) is no character; send it as a pair or take it out"
	case strings.Contains(syntax.Err.Error(), "UTF-8"):
		what = "the body is not valid UTF-8"
	default:
		what = fmt.Sprintf("%s: %v at byte %d", what, syntax.Err, syntax.ByteOffset)
	}
	return at(pointer, what)
}

func at(pointer, detail string) *work.Invalid {
	return &work.Invalid{Pointer: "#" + pointer, Detail: detail}
}
