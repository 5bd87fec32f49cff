package jobs

import (
	"hash/maphash"

	"piecework/store"
)

const (
	// prefixBytes of a prompt decide whether two begin alike: about the 1,024
	// tokens from which on providers keep a prompt in their cache.
	prefixBytes = 4096
	// maxTurns is how many beginnings are remembered.
	maxTurns = 100_000
)

// turns are the lines at which a batch's prompts first began so, by the hash of
// the beginning. Units that begin alike get the same turn, and so are let go one
// after another: the provider's prompt cache still has the beginning. One that
// begins as no other keeps its place. After a death they are forgotten, which
// costs no more than some hits.
type turns struct {
	seed  maphash.Seed
	first map[uint64]int
}

func newTurns() turns { return turns{maphash.MakeSeed(), map[uint64]int{}} }

func (t turns) of(n *store.NewUnit, line int) int {
	h := prefixHash{left: prefixBytes}
	h.SetSeed(t.seed)
	h.unit(n)
	hash := h.Sum64()
	if turn, ok := t.first[hash]; ok {
		return turn
	}
	if len(t.first) < maxTurns {
		t.first[hash] = line
	}
	return line
}

// prefixHash is a hash of what the model is sent first.
type prefixHash struct {
	maphash.Hash
	left int // bytes that still count
}

// unit takes the system prompt, the files, and the prompt as far as it is the
// same for all who use the template.
func (h *prefixHash) unit(n *store.NewUnit) {
	for _, name := range []string{n.Backend, n.Worker, n.Model} {
		_, _ = h.WriteString(name + "\x00")
	}
	if len(n.Request) > 0 {
		_, _ = h.Write(n.Request[:min(len(n.Request), h.left)]) // as it is: to take it apart would cost more than it gains
		return
	}
	h.add(n.SystemPrompt)
	h.add(string(n.OutputSchema[:min(len(n.OutputSchema), h.left)]))
	for _, file := range n.Files {
		h.add(file)
	}
	if len(n.Files) == 0 { // else they are long enough to decide
		h.add(n.Prompt)
	}
}

func (h *prefixHash) add(text string) {
	text = text[:min(len(text), h.left)]
	h.left -= len(text)
	_, _ = h.WriteString(text)
	_ = h.WriteByte(0)
}
