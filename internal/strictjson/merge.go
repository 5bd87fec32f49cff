package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"piecework/internal/work"
)

// Merge lays fields over an object; payload and labels are merged themselves.
func Merge(under json.RawMessage, over map[string]json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if len(under) > 0 {
		if err := json.Unmarshal(under, &fields); err != nil {
			return nil, err
		}
	}
	for name, value := range over {
		below := fields[name]
		if (name == "payload" || name == "labels") && len(below) > 0 && below[0] == '{' && len(value) > 0 && value[0] == '{' {
			var err error
			if value, err = Overlay(below, value); err != nil {
				return nil, err
			}
		}
		fields[name] = value
	}
	return json.Marshal(fields)
}

// Overlay puts the fields of one object over those of another.
func Overlay(below, above json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	for _, object := range []json.RawMessage{below, above} { // the second replaces what the first has set
		if err := json.Unmarshal(object, &fields); err != nil {
			return nil, err
		}
	}
	return json.Marshal(fields)
}

// CutField takes a field out of an object that Check has passed. The value
// is nil when there is none.
func CutField(object []byte, name string) (value, rest []byte, err error) {
	if bytes.HasPrefix(object, []byte("{")) && !work.MayName(object, name) {
		return nil, object, nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true)) // there are none
	switch token, err := dec.ReadToken(); {
	case err == nil && token.Kind() == 'n':
		return nil, []byte("{}"), nil // it says nothing of its own
	case err != nil || token.Kind() != '{':
		return nil, nil, errors.New("it is no object")
	}
	for first := true; dec.PeekKind() == '"'; first = false {
		begin := dec.InputOffset()
		token, err := dec.ReadToken()
		if err != nil {
			return nil, nil, err
		}
		if token.String() != name {
			if err := dec.SkipValue(); err != nil {
				return nil, nil, err
			}
			continue
		}
		if value, err = dec.ReadValue(); err != nil {
			return nil, nil, err
		}
		value = bytes.Clone(value)
		after := object[dec.InputOffset():]
		if first {
			after = bytes.TrimPrefix(bytes.TrimLeft(after, " \t\r\n"), []byte(","))
		}
		return value, slices.Concat(object[:begin], after), nil
	}
	return nil, object, nil
}

// OrEmpty is an object, {} for none.
func OrEmpty(object json.RawMessage) json.RawMessage {
	if len(object) == 0 {
		return json.RawMessage("{}")
	}
	return object
}
