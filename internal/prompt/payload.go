package prompt

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
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
	if !json.Valid(raw) {
		return nil, errNotJSON
	}
	return &payload{root: &node{raw: raw}}, nil
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
	p.root.expand()
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
	n.expand()
	if n.items == nil {
		return n.fields[segment]
	}
	i, err := strconv.Atoi(segment)
	if err != nil || i < 0 || i >= len(n.items) || strconv.Itoa(i) != segment {
		return nil
	}
	return n.items[i]
}

// expand reads one level of an object or an array; its errors cannot happen,
// since the payload as a whole is valid.
func (n *node) expand() {
	if n.expanded {
		return
	}
	n.expanded = true
	switch n.raw[0] {
	case '{':
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(n.raw, &fields)
		n.fields = make(map[string]*node, len(fields))
		for key, raw := range fields {
			n.fields[key] = &node{raw: bytes.TrimSpace(raw)}
		}
	case '[':
		var items []json.RawMessage
		_ = json.Unmarshal(n.raw, &items)
		n.items = make([]*node, len(items))
		for i, raw := range items {
			n.items[i] = &node{raw: bytes.TrimSpace(raw)}
		}
	}
}

func (n *node) write() string {
	if n.text != nil {
		return *n.text
	}
	var text string
	if n.raw[0] == '"' {
		_ = json.Unmarshal(n.raw, &text)
	} else {
		var compact bytes.Buffer
		_ = json.Compact(&compact, n.raw)
		text = compact.String()
	}
	n.text = &text
	return text
}
