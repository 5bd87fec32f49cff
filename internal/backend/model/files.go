package model

import (
	"encoding/base64"
	"fmt"
	"slices"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// The kinds of a part.
const (
	textPart  = "text"
	ImagePart = "image"
	PDFPart   = "pdf"
)

// Part is one piece of the unit's message.
type Part struct {
	Kind      string
	Name      string // of a file
	Text      string // of a text
	MediaType string
	data      []byte // of anything else
}

// DataURL is the part as one string.
func (p Part) DataURL() string { return "data:" + p.MediaType + ";base64," + p.Base64() }

func (p Part) Base64() string { return base64.StdEncoding.EncodeToString(p.data) }

// FileLimits are what an API takes in one request, in bytes before base64.
type FileLimits struct{ Image, Total int64 }

// readParts makes the parts of a message of the files. A model API has no
// tools to read files with: what it cannot be sent fails the unit by name.
func readParts(name string, files []backend.File, limits FileLimits) ([]Part, *work.Failure) {
	var parts []Part
	room := limits.Total
	for _, file := range files {
		if room -= file.Size; room < 0 {
			return nil, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
				"the attached files are too large together: with %q they pass the %d MiB that %s takes in one request",
				file.Name, limits.Total>>20, name))
		}
		p, failure := readPart(name, file, limits)
		if failure != nil {
			return nil, failure
		}
		parts = append(parts, p...)
	}
	return parts, nil
}

func readPart(name string, file backend.File, limits FileLimits) ([]Part, *work.Failure) {
	kind, err := backend.DetectType(file)
	if err != nil {
		return nil, backend.FileFailure(file, err)
	}
	image := slices.Contains(backend.InlineImages, kind)
	if image && file.Size > limits.Image {
		return nil, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"the image %q is %d bytes large; %s takes at most %d", file.Name, file.Size, name, limits.Image))
	}
	data, err := file.Read()
	if err != nil {
		return nil, backend.FileFailure(file, err)
	}
	title := Part{Kind: textPart, Text: fmt.Sprintf("File %q:", file.Name)}
	switch {
	case image:
		return []Part{title, {Kind: ImagePart, Name: file.Name, MediaType: kind, data: data}}, nil
	case kind == "application/pdf":
		return []Part{title, {Kind: PDFPart, Name: file.Name, MediaType: kind, data: data}}, nil
	}
	if text, ok := backend.AsText(file, data); ok {
		return []Part{{Kind: textPart, Name: file.Name, Text: text}}, nil
	}
	return nil, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
		"the file %q cannot be sent: %s takes images (PNG, JPEG, GIF, WebP), PDF and UTF-8 text, and this is %s",
		file.Name, name, kind))
}
