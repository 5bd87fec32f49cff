package source

import (
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
)

// walk names the files of a directory in the order of the paths' parts, which
// stays the same when files come and go.
func (s Source) walk(dir fs.FS, ref string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		done := errors.New("enough")
		err := fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil && name == ".":
				return err
			case err != nil || name == ".": // a directory that is not for us, or a file that has gone
				return nil
			case entry.IsDir() && !s.Hidden && strings.HasPrefix(entry.Name(), "."):
				return fs.SkipDir
			case entry.IsDir() || !s.takes(name) || !regular(dir, name, entry):
				return nil
			case !yield(name, nil):
				return done
			}
			return nil
		})
		if err != nil && !errors.Is(err, done) {
			yield("", broken("the directory %s: %v", ref, err))
		}
	}
}

// files makes items of names that come in an order of which compare knows: the
// place after a name is where to go on.
func (s Source) files(names iter.Seq2[string, error], compare func(a, b string) int, ref string, from Place) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		at := from
		for name, err := range names {
			if err != nil {
				yield(Item{}, err)
				return
			}
			if !s.takes(name) || at.After != "" && compare(name, at.After) <= 0 {
				continue
			}
			at = Place{Count: at.Count + 1, Line: at.Count + 1, After: name}
			payload, err := json.Marshal(map[string]string{"file_path": inside(ref, name), "file_name": path.Base(name)})
			if !yield(Item{Line: at.Line, CustomID: name, Payload: payload, Next: at}, err) || err != nil {
				return
			}
		}
	}
}

func (s Source) takes(name string) bool {
	hidden := func(part string) bool { return strings.HasPrefix(part, ".") }
	if !s.Hidden && slices.ContainsFunc(strings.Split(name, "/"), hidden) {
		return false
	}
	lower := strings.ToLower(name)
	fits := len(s.Suffix) == 0 || slices.ContainsFunc(s.Suffix,
		func(suffix string) bool { return strings.HasSuffix(lower, strings.ToLower(suffix)) })
	return fits && (len(s.Glob) == 0 || names(s.Glob, name)) && !names(s.Exclude, name)
}

// regular tells whether name is a file that can be read, also through a link.
func regular(dir fs.FS, name string, entry fs.DirEntry) bool {
	if entry.Type().IsRegular() {
		return true
	}
	if entry.Type()&fs.ModeSymlink == 0 {
		return false
	}
	info, err := fs.Stat(dir, name)
	return err == nil && info.Mode().IsRegular()
}

// byParts puts paths in the order in which fs.WalkDir meets them.
func byParts(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) }

// inside is what units call a file of the directory ref.
func inside(ref, name string) string {
	if strings.HasSuffix(ref, ":") || strings.HasSuffix(ref, "/") {
		return ref + name
	}
	return ref + "/" + name
}
