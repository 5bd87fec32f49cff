package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"piecework/internal/backend"
	"piecework/internal/roots"
	"piecework/internal/work"
)

// FileList adds to a prompt the files that the model has to open by itself.
type FileList struct{ Paths []string }

func (n *FileList) Add(prompt string, file backend.File, filesDir string) (string, *work.Failure) {
	path, err := copyFile(file, filesDir)
	if err != nil {
		return prompt, backend.FileFailure(file, err)
	}
	if len(n.Paths) == 0 {
		prompt += "\n\nAttached files, to be read with your tools:"
	}
	n.Paths = append(n.Paths, path)
	return prompt + fmt.Sprintf("\n- %s (%d bytes)", path, file.Size), nil
}

// PlainPrompt is a prompt with its files for an agent that reads plain text:
// small texts first, the prompt, then the names of the rest. Images are for
// the agent to attach; an agent that cannot gets them by name as well.
func PlainPrompt(req backend.Request, filesDir string, attaches bool) (prompt string, images []string, failure *work.Failure) {
	var texts []string
	var others FileList
	prompt = req.Prompt
	room := int64(backend.MaxInline)
	for _, file := range req.Files {
		kind, err := backend.DetectType(file)
		if err != nil {
			return "", nil, backend.FileFailure(file, err)
		}
		if attaches && slices.Contains(backend.InlineImages, kind) && file.Size <= backend.MaxInlineImage {
			path, err := copyFile(file, filesDir)
			if err != nil {
				return "", nil, backend.FileFailure(file, err)
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
		if prompt, failure = others.Add(prompt, file, filesDir); failure != nil {
			return "", nil, failure
		}
	}
	return strings.Join(append(texts, prompt), "\n\n"), images, nil
}

func readText(file backend.File, kind string, room int64) (string, bool, *work.Failure) {
	if kind == "application/pdf" || file.Size > min(room, backend.MaxInlineText) { // a PDF's source may be text, and says nothing
		return "", false, nil
	}
	data, err := file.Read()
	if err != nil {
		return "", false, backend.FileFailure(file, err)
	}
	text, ok := backend.AsText(file, data)
	return text, ok, nil
}

// copyFile puts a file where the agent may read it, and returns that path. It
// is a copy of what was looked at, also of a file in the working directory:
// another may lie at its path by now. It lies beside the working directory, not
// in it, which may be a directory of the user's own.
func copyFile(file backend.File, filesDir string) (string, error) {
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
