package backend

import (
	"encoding/base64"
	"fmt"
	"slices"

	"piecework/internal/work"
)

// The kinds of a part.
const (
	textPart  = "text"
	imagePart = "image"
	pdfPart   = "pdf"
)

// part is one piece of the unit's message.
type part struct {
	kind      string
	name      string // of a file
	text      string // of a text
	mediaType string
	data      []byte // of anything else
}

// dataURL is the part as one string.
func (p part) dataURL() string { return "data:" + p.mediaType + ";base64," + p.base64() }

func (p part) base64() string { return base64.StdEncoding.EncodeToString(p.data) }

// fileLimits are what an API takes in one request, in bytes before base64.
type fileLimits struct{ image, total int64 }

// readParts makes the parts of a message of the files. A model API has no
// tools to read files with: what it cannot be sent fails the unit by name.
func readParts(name string, files []File, limits fileLimits) ([]part, *work.Failure) {
	var parts []part
	room := limits.total
	for _, file := range files {
		if room -= file.Size; room < 0 {
			return nil, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
				"the attached files are too large together: with %q they pass the %d MiB that %s takes in one request",
				file.Name, limits.total>>20, name))
		}
		p, failure := readPart(name, file, limits)
		if failure != nil {
			return nil, failure
		}
		parts = append(parts, p...)
	}
	return parts, nil
}

func readPart(name string, file File, limits fileLimits) ([]part, *work.Failure) {
	kind, err := sniff(file)
	if err != nil {
		return nil, fileFailure(file, err)
	}
	image := slices.Contains(inlineImages, kind)
	if image && file.Size > limits.image {
		return nil, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"the image %q is %d bytes large; %s takes at most %d", file.Name, file.Size, name, limits.image))
	}
	data, err := file.read()
	if err != nil {
		return nil, fileFailure(file, err)
	}
	title := part{kind: textPart, text: fmt.Sprintf("File %q:", file.Name)}
	switch {
	case image:
		return []part{title, {kind: imagePart, name: file.Name, mediaType: kind, data: data}}, nil
	case kind == "application/pdf":
		return []part{title, {kind: pdfPart, name: file.Name, mediaType: kind, data: data}}, nil
	}
	if text, ok := inlineText(file, data); ok {
		return []part{{kind: textPart, name: file.Name, text: text}}, nil
	}
	return nil, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
		"the file %q cannot be sent: %s takes images (PNG, JPEG, GIF, WebP), PDF and UTF-8 text, and this is %s",
		file.Name, name, kind))
}
