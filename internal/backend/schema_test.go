package backend

import (
	"testing"
)

func TestUnfenced(t *testing.T) {
	for text, want := range map[string]string{
		" {} \n": "{}", "```json\n{}\n```": "{}", "```\n[1]\n```\n": "[1]", "```{\"a\":1}```": `{"a":1}`,
		"here: ```{}```": "here: ```{}```", "```json": "```json",
	} {
		if got := Unfence(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
