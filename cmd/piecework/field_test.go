package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"piecework/jobs"
)

// Every field of a unit has a flag of submit.
func TestEveryFieldHasAFlag(t *testing.T) {
	parser, err := newParser(newStage(t).App)
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]bool{}
	for _, command := range parser.Model.Children {
		if command.Name != "submit" {
			continue
		}
		for _, flag := range command.Flags {
			flags[flag.Name] = true
		}
	}
	other := map[string]string{ // flags of another name, and fields without one
		"files": "file", "accept": "accept-command", "mcp_servers": "mcp-server", "labels": "label", "cache_ttl": "cache",
		"worker": "backend", "request": "prompt", // definitions, and calls that programs make
	}
	for f := range reflect.TypeFor[jobs.UnitBody]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		flag := strings.ReplaceAll(name, "_", "-")
		if given := other[name]; given != "" {
			flag = given
		}
		if !flags[flag] {
			t.Errorf("the field %s has no flag --%s of submit", name, flag)
		}
	}
}

// What CONTRIBUTING names is there: paths, identifiers of Go, and tests.
func TestContributingNamesWhatIsThere(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, p := range listPackages(t) {
		for _, file := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	for _, m := range regexp.MustCompile("`([^` ]+)`").FindAllStringSubmatch(string(page), -1) {
		name := strings.TrimSuffix(m[1], "/")
		switch {
		case strings.Contains(name, "/"):
			if !exists(name) {
				t.Errorf("there is no %s", name)
			}
		case strings.HasPrefix(name, "Test"):
			if !strings.Contains(code.String(), "func "+name+"(") {
				t.Errorf("there is no test %s", name)
			}
		case !strings.Contains(code.String(), name):
			t.Errorf("nothing is called %s", name)
		}
	}
}
