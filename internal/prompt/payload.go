package prompt

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxDepth bounds the work a placeholder can ask for: every step into a
	// value reads that value once more.
	maxDepth = 64
	maxHave  = 20
)

// payload is the values of a template; all of it is read only as far as
// placeholders ask for it, and only once.
type payload struct {
	root *node
}

type node struct {
	raw      json.RawMessage
	expanded bool
	fields   map[string]*node // of an object
	items    []*node          // of an array
	text     *string          // as it is written into a prompt
}

func parse(raw json.RawMessage) (*payload, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	root := &node{raw: raw}
	if err := root.expand(); err != nil {
		return nil, errNotJSON
	}
	return &payload{root: root}, nil
}

// text finds the value at path and writes it as text.
func (p *payload) text(path []string) (string, bool) {
	found := p.root.find(path)
	if found == nil && path[0] == "payload" {
		found = p.root.find(path[1:])
	}
	if found == nil {
		return "", false
	}
	return found.write(), true
}

func (p *payload) keys() []string {
	keys := slices.Sorted(maps.Keys(p.root.fields))
	return keys[:min(len(keys), maxHave)]
}

func (n *node) find(path []string) *node {
	if len(path) > maxDepth {
		return nil
	}
	for _, segment := range path {
		if n = n.child(segment); n == nil {
			return nil
		}
	}
	return n
}

func (n *node) child(segment string) *node {
	_ = n.expand() // the payload as a whole was good
	if n.items == nil {
		return n.fields[segment]
	}
	i, err := strconv.Atoi(segment)
	if err != nil || i < 0 || i >= len(n.items) || strconv.Itoa(i) != segment {
		return nil
	}
	return n.items[i]
}

// expand reads one level of an object or an array, and finds whether all of the
// value is JSON.
func (n *node) expand() error {
	if n.expanded {
		return nil
	}
	n.expanded = true
	dec := jsontext.NewDecoder(bytes.NewBuffer(n.raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var err error
	switch n.raw[0] {
	case '{':
		err = n.expandObject(dec)
	case '[':
		err = n.expandArray(dec)
	default:
		err = dec.SkipValue()
	}
	if err == nil && dec.InputOffset() < int64(len(n.raw)) {
		err = errNotJSON
	}
	return err
}

func (n *node) expandObject(dec *jsontext.Decoder) error {
	_, err := dec.ReadToken()
	n.fields = map[string]*node{}
	for err == nil && dec.PeekKind() == '"' {
		var name jsontext.Token
		if name, err = dec.ReadToken(); err == nil {
			key := name.String()
			n.fields[key], err = n.next(dec) // the last of a name counts
		}
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	return err
}

func (n *node) expandArray(dec *jsontext.Decoder) error {
	_, err := dec.ReadToken()
	n.items = []*node{}
	for err == nil && dec.PeekKind() != ']' {
		var item *node
		item, err = n.next(dec)
		n.items = append(n.items, item)
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	return err
}

// next is the next value as a node of its own.
func (n *node) next(dec *jsontext.Decoder) (*node, error) {
	value, err := dec.ReadValue()
	end := dec.InputOffset()
	return &node{raw: n.raw[end-int64(len(value)) : end]}, err
}

func (n *node) write() string {
	if n.text != nil {
		return *n.text
	}
	var text string
	switch inner, err := unquote(n.raw); {
	case err == nil:
		text = string(inner)
	case n.raw[0] == '"':
		_ = json.Unmarshal(n.raw, &text) // mends what is no UTF-8
	default:
		var compact bytes.Buffer
		_ = json.Compact(&compact, n.raw)
		text = compact.String()
	}
	n.text = &text
	return text
}

// unquote is the text of a JSON string. What is no string, or holds what is no
// UTF-8, is an error.
func unquote(raw []byte) ([]byte, error) {
	if raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return raw[1 : len(raw)-1], nil
	}
	return jsontext.AppendUnquote(nil, raw)
}
