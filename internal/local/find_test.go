package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	paths := []string{"/opt/postgresql/bin", "/usr/lib/postgresql/9.6/bin", "/usr/lib/postgresql/15/bin", "/opt/postgresql@17/bin"}
	slices.SortStableFunc(paths, newestFirst)
	want := []string{"/opt/postgresql@17/bin", "/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/9.6/bin", "/opt/postgresql/bin"}
	if !slices.Equal(paths, want) {
		t.Errorf("got %v", paths)
	}
}

func TestFindPrograms(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	fake := func(name, version string) string {
		bin := filepath.Join(dir, name)
		writeScript(t, filepath.Join(bin, "postgres"), "echo 'postgres (PostgreSQL) "+version+"'")
		writeScript(t, filepath.Join(bin, "initdb"), "exit 1")
		return bin
	}
	broken := fake("broken", "?")
	v17, v16 := fake("17", "17.5 (Debian 17.5-1)"), fake("16", "16beta1")
	for _, test := range []struct {
		name   string
		dirs   []string
		wanted int
		dir    string
		others []int
	}{
		{"the first", []string{v17, v16}, 0, v17, nil},
		{"past a broken one", []string{broken, v16}, 0, v16, nil},
		{"the cluster's", []string{v17, v16}, 16, v16, []int{17}},
		{"none of that version", []string{v17, v16}, 15, "", []int{17, 16}},
		{"none", []string{broken}, 0, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, others, _ := findPrograms(t.Context(), test.dirs, test.wanted, account{})
			if found.dir != test.dir || !slices.Equal(others, test.others) {
				t.Errorf("got %+v, %v", found, others)
			}
		})
	}
}

func writeScript(t *testing.T, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	writeProgram(t, path, strings.NewReader("#!/bin/sh\n"+body+"\n"))
}
