package backend

import (
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"piecework/internal/roots"
	"piecework/internal/work"
)

// What goes to the model itself; what is larger is a file for its tools. The
// API takes 5 MB per image, in base64, and 32 MB per request.
const (
	maxInlineText  = 256 << 10
	maxInlineImage = 5 << 20 / 4 * 3
	maxInline      = 20 << 20
)

var inlineImages = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// sniff tells what a file is by its first bytes: an API refuses an image that
// is called by a wrong name.
func sniff(f File) (string, error) {
	file, err := f.Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, 512)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return http.DetectContentType(head[:n]), nil
}

// inlineText shows a text file to the model as it is, if data is one.
func inlineText(file File, data []byte) (string, bool) {
	if !utf8.Valid(data) || strings.ContainsRune(string(data), 0) {
		return "", false
	}
	return fmt.Sprintf("<file name=\"%s\">\n%s\n</file>", html.EscapeString(file.Name), data), true
}

// named adds to a prompt the files that the model has to open by itself.
type named struct{ paths []string }

func (n *named) add(prompt string, file File, filesDir string) (string, *work.Failure) {
	path, err := placeFile(file, filesDir)
	if err != nil {
		return prompt, fileFailure(file, err)
	}
	if len(n.paths) == 0 {
		prompt += "\n\nAttached files, to be read with your tools:"
	}
	n.paths = append(n.paths, path)
	return prompt + fmt.Sprintf("\n- %s (%d bytes)", path, file.Size), nil
}

// plainPrompt is a prompt with its files for an agent that reads plain text:
// small texts first, the prompt, then the names of the rest. Images are for
// the agent to attach; an agent that cannot gets them by name as well.
func plainPrompt(req Request, filesDir string, attaches bool) (prompt string, images []string, failure *work.Failure) {
	var texts []string
	var others named
	prompt = req.Prompt
	room := int64(maxInline)
	for _, file := range req.Files {
		kind, err := sniff(file)
		if err != nil {
			return "", nil, fileFailure(file, err)
		}
		if attaches && slices.Contains(inlineImages, kind) && file.Size <= maxInlineImage {
			path, err := placeFile(file, filesDir)
			if err != nil {
				return "", nil, fileFailure(file, err)
			}
			images = append(images, path)
			continue
		}
		if text, ok, failure := readText(file, kind, room); failure != nil {
			return "", nil, failure
		} else if ok {
			room -= file.Size
			texts = append(texts, text)
			continue
		}
		if prompt, failure = others.add(prompt, file, filesDir); failure != nil {
			return "", nil, failure
		}
	}
	return strings.Join(append(texts, prompt), "\n\n"), images, nil
}

func readText(file File, kind string, room int64) (string, bool, *work.Failure) {
	if kind == "application/pdf" || file.Size > min(room, maxInlineText) { // a PDF's source may be text, and says nothing
		return "", false, nil
	}
	data, err := file.read()
	if err != nil {
		return "", false, fileFailure(file, err)
	}
	text, ok := inlineText(file, data)
	return text, ok, nil
}

// placeFile puts a file where the agent may read it, and returns that path. It
// is a copy of what was looked at, also of a file in the working directory:
// another may lie at its path by now. It lies beside the working directory, not
// in it, which may be a directory of the user's own.
func placeFile(file File, filesDir string) (string, error) {
	from, err := file.Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = from.Close() }()
	path := filepath.Join(filesDir, filepath.Base(file.Name))
	to, err := create(filepath.Dir(filesDir), filepath.Join(filepath.Base(filesDir), filepath.Base(file.Name)))
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	return path, errors.Join(err, to.Close())
}

// create makes a file below a directory in which an agent has perhaps worked:
// what lies at its place is removed, and neither followed nor waited for.
func create(dir, name string) (*os.File, error) {
	root, err := roots.OpenOwn(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	if err := root.RemoveAll(name); err != nil {
		return nil, err
	}
	return root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func fileFailure(file File, err error) *work.Failure {
	class := work.ClassInfra
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		class = work.ClassInvalidRequest
	}
	return work.Fail(class, fmt.Sprintf("read the attached file %q: %v", file.Name, err))
}
