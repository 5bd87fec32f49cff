package main

import (
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// How large things may be. What is larger is split.
const (
	maxFiles   = 25  // of a package, tests left out
	maxMethods = 40  // of one receiver
	maxLines   = 400 // of a file
	maxColumns = 140 // of a line, a tab counted as four, its longest string not at all
	maxPrefix  = 2   // files of a package that begin alike: more are a folder
)

// larger are what is over a limit all the same, each with its reason. One that is
// not over its limit any more fails.
var larger = map[string]string{
	"cmd/piecework":                     "a file for each command; all are in one binary",
	"cmd/piecework/batch_":              "they share the client of the others",
	"api.API":                           "the compatible and the native routes are still on one type",
	"internal/testkit/fakemodel.Server": "one server speaks all protocols",
}

func TestLayout(t *testing.T) {
	found := map[string]string{}
	for _, p := range listPackages(t) {
		files := p.files()
		if len(files) > maxFiles {
			found[p.room()] = fmt.Sprintf("%d files; at most %d are in a package", len(files), maxFiles)
		}
		for prefix, n := range prefixes(files) {
			if n > maxPrefix {
				found[p.room()+"/"+prefix+"_"] = fmt.Sprintf("%d files begin so: make a folder of them", n)
			}
		}
		for receiver, n := range methods(t, files) {
			if n > maxMethods {
				found[p.room()+"."+receiver] = fmt.Sprintf("%d methods; at most %d are on one receiver", n, maxMethods)
			}
		}
		for _, name := range files {
			if n := lines(t, name); n > maxLines {
				found[rel(name)] = fmt.Sprintf("%d lines; at most %d are in a file", n, maxLines)
			}
		}
	}
	for what, why := range found {
		if larger[what] == "" {
			t.Errorf("%s: %s", what, why)
		}
	}
	for what := range larger {
		if found[what] == "" {
			t.Errorf("%s is no larger than others: take it out of the exceptions", what)
		}
	}
}

// prefixes counts the files that begin with the same word. Variants of a file for
// one platform are the same file.
func prefixes(files []string) map[string]int {
	platform := regexp.MustCompile(`_(linux|darwin|unix|windows|other)$`)
	seen := map[string]bool{}
	count := map[string]int{}
	for _, name := range files {
		name = platform.ReplaceAllString(strings.TrimSuffix(filepath.Base(name), ".go"), "")
		if seen[name] {
			continue
		}
		seen[name] = true
		prefix, _, _ := strings.Cut(name, "_")
		count[prefix]++
	}
	return count
}

func methods(t *testing.T, files []string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, name := range files {
		for _, decl := range parse(t, name).Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			receiver := f.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}
			if generic, ok := receiver.(*ast.IndexExpr); ok {
				receiver = generic.X
			}
			if ident, ok := receiver.(*ast.Ident); ok {
				count[ident.Name]++
			}
		}
	}
	return count
}

func lines(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

func TestLinesAreNotTooLong(t *testing.T) {
	for _, p := range listPackages(t) {
		names := p.files()
		for _, test := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names = append(names, filepath.Join(p.Dir, test))
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range longLines(text) {
				t.Errorf("%s:%d is longer than %d columns", rel(name), line, maxColumns)
			}
		}
	}
}

// longLines lists the lines of a Go file that are too long without their strings,
// which cannot be broken.
func longLines(text []byte) (long []int) {
	width := map[int]int{}
	for i, line := range strings.Split(string(text), "\n") {
		if n := len([]rune(strings.ReplaceAll(line, "\t", "    "))); n > maxColumns {
			width[i+1] = n
		}
	}
	if len(width) == 0 {
		return nil
	}
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	longest := map[int]int{} // string of a line
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			break
		}
		if kind != token.STRING {
			continue
		}
		at := file.Line(pos)
		for i, part := range strings.Split(literal, "\n") {
			longest[at+i] = max(longest[at+i], len([]rune(part)))
		}
	}
	for line, n := range width {
		if n-longest[line] > maxColumns {
			long = append(long, line)
		}
	}
	slices.Sort(long)
	return long
}
