package jobs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"piecework/internal/work"
	"piecework/store"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	long, other := strings.Repeat("long ", 1000), strings.Repeat("other ", 1000)
	prompt := func(s work.Spec) store.NewUnit { return store.NewUnit{Unit: work.Unit{Spec: s}} }
	call := func(body string) store.NewUnit {
		request, err := json.Marshal(work.Call{Endpoint: work.EndpointChat, Body: json.RawMessage(body)})
		if err != nil {
			t.Fatal(err)
		}
		return prompt(work.Spec{Request: request, Model: "m"})
	}
	chat := func(system, user string) store.NewUnit {
		return call(fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`, system, user))
	}
	for name, units := range map[string]struct {
		list []store.NewUnit
		want []int
	}{
		"prompts": {[]store.NewUnit{prompt(work.Spec{Prompt: long + "a"}), prompt(work.Spec{Prompt: other + "b"}),
			prompt(work.Spec{Prompt: long + "c"})}, []int{1, 2, 1}},
		"short prompts": {[]store.NewUnit{prompt(work.Spec{Prompt: "a"}), prompt(work.Spec{Prompt: "b"}),
			prompt(work.Spec{Prompt: "a"})}, []int{1, 2, 1}},
		"system prompts": {[]store.NewUnit{prompt(work.Spec{SystemPrompt: long, Prompt: "a"}),
			prompt(work.Spec{SystemPrompt: other, Prompt: "a"}), prompt(work.Spec{SystemPrompt: long, Prompt: "b"})}, []int{1, 2, 1}},
		"models": {[]store.NewUnit{prompt(work.Spec{Model: "a", Prompt: long}), prompt(work.Spec{Model: "b", Prompt: long}),
			prompt(work.Spec{Backend: "a", Prompt: long})}, []int{1, 2, 3}},
		"files": {[]store.NewUnit{prompt(work.Spec{Files: work.Refs{"a"}, Prompt: "x"}),
			prompt(work.Spec{Files: work.Refs{"b"}, Prompt: "x"}), prompt(work.Spec{Files: work.Refs{"a"}, Prompt: "y"})}, []int{1, 2, 1}},
		"calls": {[]store.NewUnit{chat(long, "a"), chat(other, "b"), chat(long, "c"), chat("short", "a")}, []int{1, 2, 1, 4}},
	} {
		turns, got := newTurns(), []int{}
		for i := range units.list {
			got = append(got, turns.of(&units.list[i], i+1))
		}
		if !slices.Equal(got, units.want) {
			t.Errorf("%s: %v, want %v", name, got, units.want)
		}
	}
}

func BenchmarkTurns(b *testing.B) {
	request, err := json.Marshal(work.Call{Endpoint: work.EndpointChat, Body: json.RawMessage(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 800) + `"}]}`)})
	if err != nil {
		b.Fatal(err)
	}
	n, turns := store.NewUnit{Unit: work.Unit{Spec: work.Spec{Request: request}}}, newTurns()
	for b.Loop() {
		turns.of(&n, 1)
	}
}
