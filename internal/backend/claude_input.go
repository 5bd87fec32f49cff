package backend

import (
	"encoding/base64"
	"encoding/json"
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

// claudeMessage is what the client reads: one line with one user message.
type claudeMessage struct {
	line  []byte
	named []string // the files that the message names and does not hold
}

type block struct {
	Type   string  `json:"type"`
	Text   string  `json:"text,omitempty"`
	Source *source `json:"source,omitempty"`
}

type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      string `json:"data"`
}

// claudeInput makes the message: the files first, the prompt last. Files that
// do not fit into it are copied below filesDir.
//
// The client takes the last text for a command of its own when it begins with
// a slash. A space before the prompt makes it text whatever it holds.
func claudeInput(req Request, filesDir string) (claudeMessage, *work.Failure) {
	var message claudeMessage
	var content []block
	room := int64(maxInline)
	prompt := " " + req.Prompt
	for _, file := range req.Files {
		inline, failure := inlineFile(file, room)
		if failure != nil {
			return message, failure
		}
		if inline != nil {
			room -= file.Size
			content = append(content, inline...)
			continue
		}
		path, err := placeFile(file, req.Dir, filesDir)
		if err != nil {
			return message, fileFailure(file, err)
		}
		if len(message.named) == 0 {
			prompt += "\n\nAttached files, to be read with your tools:"
		}
		message.named = append(message.named, path)
		prompt += fmt.Sprintf("\n- %s (%d bytes)", path, file.Size)
	}
	content = append(content, block{Type: "text", Text: prompt})
	line, err := json.Marshal(map[string]any{
		"type": "user", "message": map[string]any{"role": "user", "content": content},
	})
	if err != nil {
		return message, work.Fail(work.ClassInvalidRequest, "the prompt cannot be sent: "+err.Error())
	}
	message.line = append(line, '\n')
	return message, nil
}

// inlineFile returns a file as content of the message, nil when it has to stay
// a file. What it is is read from its first bytes: the API refuses an image
// that is called by a wrong name.
func inlineFile(file File, room int64) ([]block, *work.Failure) {
	if file.Size > room {
		return nil, nil
	}
	kind, err := sniff(file.Path)
	if err != nil {
		return nil, fileFailure(file, err)
	}
	image, pdf := slices.Contains(inlineImages, kind), kind == "application/pdf"
	if image && file.Size > maxInlineImage || !image && !pdf && file.Size > maxInlineText {
		return nil, nil
	}
	data, err := os.ReadFile(file.Path)
	if err != nil {
		return nil, fileFailure(file, err)
	}
	title := block{Type: "text", Text: fmt.Sprintf("File %q:", file.Name)}
	switch {
	case image:
		return []block{title, encoded("image", kind, data)}, nil
	case pdf:
		return []block{title, encoded("document", kind, data)}, nil
	case utf8.Valid(data) && !strings.ContainsRune(string(data), 0):
		return []block{{Type: "text", Text: fmt.Sprintf(
			"<file name=\"%s\">\n%s\n</file>", html.EscapeString(file.Name), data)}}, nil
	}
	return nil, nil
}

func encoded(kind, mediaType string, data []byte) block {
	return block{Type: kind, Source: &source{
		Type: "base64", MediaType: mediaType, Data: base64.StdEncoding.EncodeToString(data),
	}}
}

func sniff(path string) (string, error) {
	file, err := os.Open(path)
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

// placeFile puts a file where the agent may read it, and returns that path.
// A file inside the working directory is there already. Others are copied
// beside it, not into it: it may be a directory of the user's own.
func placeFile(file File, dir, filesDir string) (string, error) {
	if inside, err := filepath.Rel(dir, file.Path); dir != "" && err == nil && filepath.IsLocal(inside) {
		return file.Path, nil
	}
	if err := os.MkdirAll(filesDir, 0o700); err != nil {
		return "", err
	}
	from, err := os.Open(file.Path)
	if err != nil {
		return "", err
	}
	defer func() { _ = from.Close() }()
	path := filepath.Join(filesDir, filepath.Base(file.Name))
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	return path, errors.Join(err, to.Close())
}

func fileFailure(file File, err error) *work.Failure {
	class := work.ClassInfra
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		class = work.ClassInvalidRequest
	}
	return work.Fail(class, fmt.Sprintf("read the attached file %q: %v", file.Name, err))
}
