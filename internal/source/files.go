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

// files walks a directory in the order of the paths' parts, which stays the
// same when files come and go: so the place after a path is where to go on.
func (s Source) files(dir fs.FS, ref string, from Place) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		at := from
		done := errors.New("enough")
		err := fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				if name == "." {
					return err
				}
				return nil // a directory that is not for us, or a file that has gone
			}
			if name == "." {
				return nil
			}
			if !s.Hidden && strings.HasPrefix(entry.Name(), ".") {
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if entry.IsDir() || !s.takes(name) || at.After != "" && compare(name, at.After) <= 0 || !regular(dir, name, entry) {
				return nil
			}
			at = Place{Count: at.Count + 1, Line: at.Count + 1, After: name}
			payload, err := json.Marshal(map[string]string{"file_path": inside(ref, name), "file_name": path.Base(name)})
			if err != nil {
				return err
			}
			if !yield(Item{Line: at.Line, CustomID: name, Payload: payload, Next: at}, nil) {
				return done
			}
			return nil
		})
		if err != nil && !errors.Is(err, done) {
			yield(Item{}, broken("the directory %s: %v", ref, err))
		}
	}
}

func (s Source) takes(name string) bool {
	lower := strings.ToLower(name)
	fits := len(s.Suffix) == 0 || slices.ContainsFunc(s.Suffix, func(suffix string) bool { return strings.HasSuffix(lower, strings.ToLower(suffix)) })
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

// compare puts paths in the order in which fs.WalkDir meets them.
func compare(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) }

// inside is what units call a file of the directory ref.
func inside(ref, name string) string {
	if strings.HasSuffix(ref, ":") || strings.HasSuffix(ref, "/") {
		return ref + name
	}
	return ref + "/" + name
}
