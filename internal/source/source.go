// Package source reads the items that a batch makes units of: files of a
// directory, rows of a CSV file, values of a JSON document, lines of a JSONL
// file. It holds one item at a time, and goes on from any place it has been at.
//
//	source.go  what a source is; its items and places
//	files.go   files of a directory
//	csv.go     rows
//	json.go    values of an array, lines
package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// The types of sources.
const (
	TypeFiles = "files"
	TypeCSV   = "csv"
	TypeJSON  = "json"
	TypeJSONL = "jsonl"
)

// Source says what a source is and which of its items count.
type Source struct {
	Type string `json:"type" enum:"files,csv,json,jsonl" doc:"files of a directory, rows of a CSV file, values of an array in a JSON document, lines of a JSONL file"`
	Path string `json:"path" minLength:"1" doc:"Where it is: for files a directory, name:path in a root or in a bucket that the server names; otherwise a file, the id of an upload or name:path" example:"docs:contracts"`

	Glob    []string `json:"glob,omitempty" nullable:"false" doc:"Of files: patterns of paths inside the directory, ** for any depth; one must fit. All files when left out" example:"**/*.pdf"`
	Exclude []string `json:"exclude,omitempty" nullable:"false" doc:"Of files: patterns of those to leave out"`
	Suffix  []string `json:"suffix,omitempty" nullable:"false" doc:"Of files: ends of names, in any case; one must fit" example:".pdf"`
	Hidden  bool     `json:"hidden,omitempty" doc:"Of files: take those whose path has a part that begins with a dot as well"`

	Delimiter string `json:"delimiter,omitempty" maxLength:"1" doc:"Of CSV: what is between two fields; a comma when left out"`
	Items     string `json:"items,omitempty" doc:"Of JSON: where the array is, as a JSON pointer; the document itself when left out" example:"/data/rows"`

	CustomID string `json:"custom_id,omitempty" doc:"The column or field that names an item; when left out the path of a file, else the number of the item"`
	Limit    int    `json:"limit,omitempty" minimum:"1" doc:"Takes so many of the first items; files are in the order of their paths, all else as it is written"`
}

// Place is where reading goes on.
type Place struct {
	Count  int    `json:"count"`            // items so far
	Line   int    `json:"line,omitempty"`   // where the last one ended
	Offset int64  `json:"offset,omitempty"` // bytes read
	After  string `json:"after,omitempty"`  // the path of the last file
}

// Item is one item.
type Item struct {
	Line     int // where it begins; of files and values their number
	CustomID string
	Payload  json.RawMessage // an object
	Next     Place           // behind it
	Wrong    string          // what is wrong with it; nothing when it is good
}

// ErrBroken is a source that cannot be read to its end.
var ErrBroken = errors.New("the source cannot be read")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// Check tells what is wrong with a source whatever is in it, as the field and
// what to do.
func (s Source) Check() (field, detail string) {
	for _, patterns := range []struct {
		name string
		list []string
	}{{"glob", s.Glob}, {"exclude", s.Exclude}} {
		for i, pattern := range patterns.list {
			if !doublestar.ValidatePattern(pattern) {
				return fmt.Sprintf("%s/%d", patterns.name, i), fmt.Sprintf("%q is no pattern; write such as **/*.pdf", pattern)
			}
		}
	}
	for _, f := range []struct {
		name, of string
		given    bool
	}{
		{"glob", TypeFiles, len(s.Glob) > 0}, {"exclude", TypeFiles, len(s.Exclude) > 0}, {"suffix", TypeFiles, len(s.Suffix) > 0},
		{"hidden", TypeFiles, s.Hidden}, {"delimiter", TypeCSV, s.Delimiter != ""}, {"items", TypeJSON, s.Items != ""},
	} {
		if f.given && f.of != s.Type {
			return f.name, fmt.Sprintf("belongs to sources of the type %s; leave it out", f.of)
		}
	}
	if s.Type == TypeFiles && s.CustomID != "" {
		return "custom_id", "files are named by their paths; leave it out"
	}
	if s.Items != "" && !strings.HasPrefix(s.Items, "/") {
		return "items", "is no JSON pointer: begin with a slash, such as /data/rows"
	}
	if strings.ContainsAny(s.Delimiter, "\r\n\"\uFFFD") {
		return "delimiter", "a line break or a quote cannot be between fields"
	}
	return "", ""
}

// Read reads the items of a file from a place on.
func (s Source) Read(file io.ReadSeeker, from Place) iter.Seq2[Item, error] {
	switch s.Type {
	case TypeCSV:
		return s.limited(s.rows(file, from), from)
	case TypeJSON:
		return s.limited(s.values(file, from), from)
	case TypeJSONL:
		return s.limited(s.lines(file, from), from)
	}
	return func(yield func(Item, error) bool) { yield(Item{}, broken("there is no type %q", s.Type)) }
}

// ReadDir reads the files of a directory from a place on; ref is what units
// call the directory.
func (s Source) ReadDir(dir fs.FS, ref string, from Place) iter.Seq2[Item, error] {
	return s.limited(s.files(s.walk(dir, ref), byParts, ref, from), from)
}

// ReadNames reads the objects of a bucket, whose names come in the order of
// their bytes, from a place on.
func (s Source) ReadNames(names iter.Seq2[string, error], ref string, from Place) iter.Seq2[Item, error] {
	return s.limited(s.files(names, strings.Compare, ref, from), from)
}

func (s Source) limited(items iter.Seq2[Item, error], from Place) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		left := s.Limit - from.Count
		if s.Limit > 0 && left <= 0 {
			return
		}
		for item, err := range items {
			if !yield(item, err) || err != nil {
				return
			}
			if left--; left == 0 {
				return
			}
		}
	}
}

// names reports whether the pattern list has one for name; an empty list has
// one for each.
func names(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := doublestar.Match(path.Clean(p), name)
		return ok && err == nil
	})
}
