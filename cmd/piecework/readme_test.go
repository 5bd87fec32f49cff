package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"piecework/internal/testkit"
)

const (
	settingsBegin = "<!-- settings: written by the tests -->\n"
	settingsEnd   = "<!-- end of settings -->\n"
)

// The README's table of settings is made from the flags. `make golden` writes
// it anew.
func TestGoldenReadmeSettings(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(readme), settingsBegin)
	_, after, ended := strings.Cut(rest, settingsEnd)
	if !found || !ended {
		t.Fatal("README.md has lost the marks around its settings")
	}
	want := before + settingsBegin + settingsTable(t) + settingsEnd + after
	if want == string(readme) {
		return
	}
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile("../../README.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("README.md's settings are not those of the program; run `make golden`")
}

func settingsTable(t *testing.T) string {
	t.Helper()
	parser, err := newParser(&App{Stdout: os.Stdout, Stderr: os.Stderr, Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| flag | variable | default | |\n|---|---|---|---|\n")
	for _, command := range parser.Model.Children {
		if command.Name != "dev" {
			continue
		}
		for _, f := range command.Flags {
			fallback := f.Default
			if f.Name == "data" {
				fallback = "the user's data directory"
			}
			help := strings.ReplaceAll(f.Help, " ("+f.Default+")", "")
			fmt.Fprintf(&table, "| `--%s` | `%s` | %s | %s |\n", f.Name, strings.Join(f.Envs, "`, `"), fallback, help)
		}
	}
	return table.String()
}

// The help of every command is a golden file: a flag cannot change its words
// unseen.
func TestGoldenHelp(t *testing.T) {
	var all bytes.Buffer
	for _, command := range []string{"", "dev", "api", "worker", "migrate", "submit", "get", "ls", "wait", "cancel", "retry",
		"trigger put", "trigger send", "batch", "batch submit", "batch list", "batch status", "batch results", "batch approve",
		"batch pause", "batch resume", "batch cancel", "batch retry",
		"mcp", "transcript", "doctor", "demo"} {
		var out bytes.Buffer
		app := &App{Ctx: t.Context(), Stdout: &out, Stderr: &out, Version: "v0", Getenv: func(string) string { return "" }}
		if code := run(app, strings.Fields(command+" --help")); code != 0 {
			t.Errorf("%s --help ends with %d", command, code)
		}
		fmt.Fprintf(&all, "$ piecework %s\n%s\n", strings.TrimSpace(command+" --help"), out.String())
	}
	text := strings.ReplaceAll(all.String(), defaultData(func(string) string { return "" }), "DATA")
	testkit.Golden(t, "testdata/help.txt", []byte(text))
}
