package chaos

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each promise is written where the table says, and a planted bug breaks it.
func TestPromises(t *testing.T) {
	texts := map[string]string{}
	for _, p := range Promises {
		if texts[p.File] == "" {
			text, err := os.ReadFile(filepath.Join("../..", p.File))
			if err != nil {
				t.Fatal(err)
			}
			texts[p.File] = strings.Join(strings.Fields(string(text)), " ")
		}
		if !strings.Contains(texts[p.File], p.Text) {
			t.Errorf("%s: %s does not say %q", p.Name, p.File, p.Text)
		}
		broken := slices.ContainsFunc(plants, func(b plant) bool { return slices.Contains(b.promises, p.Name) })
		if p.Test != "" {
			broken = slices.ContainsFunc(slips, func(b slip) bool { return p.Test == b.where+" "+b.test })
		}
		if !broken {
			t.Errorf("no planted bug breaks the promise %q", p.Name)
		}
	}
}

// What the README promises in its own chapter has a line in the table.
func TestPromisesOfTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(text), "## What is promised\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	for i, point := range strings.Split(chapter, "\n- ") {
		point = strings.Join(strings.Fields(point), " ")
		if i > 0 && !slices.ContainsFunc(Promises, func(p Promise) bool { return strings.Contains(point, p.Text) }) {
			t.Errorf("no line of the table is about: %s", point)
		}
	}
}
