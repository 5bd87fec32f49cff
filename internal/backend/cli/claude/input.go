package claude

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/work"
)

// message is what the client reads: one line with one user message.
type message struct {
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

// newMessage makes the message: the files first, the prompt last. Files that
// do not fit into it are copied below filesDir.
//
// The client takes the last text for a command of its own when it begins with
// a slash. A space before the prompt makes it text whatever it holds.
func newMessage(req backend.Request, filesDir string) (message, *work.Failure) {
	var message message
	var content []block
	var others cli.FileList
	room := int64(backend.MaxInline)
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
		if prompt, failure = others.Add(prompt, file, filesDir); failure != nil {
			return message, failure
		}
	}
	message.named = others.Paths
	content = append(content, block{Type: "text", Text: prompt})
	message.line = messageLine(content)
	return message, nil
}

// messageLine is one message of the user.
func messageLine(content []block) []byte {
	line, _ := json.Marshal(map[string]any{ // texts can always be encoded
		"type": "user", "message": map[string]any{"role": "user", "content": content},
	})
	return append(line, '\n')
}

// inlineFile returns a file as content of the message, nil when it has to stay
// a file.
func inlineFile(file backend.File, room int64) ([]block, *work.Failure) {
	if file.Size > room {
		return nil, nil
	}
	kind, err := backend.DetectType(file)
	if err != nil {
		return nil, backend.FileFailure(file, err)
	}
	image, pdf := slices.Contains(backend.InlineImages, kind), kind == "application/pdf"
	if image && file.Size > backend.MaxInlineImage || !image && !pdf && file.Size > backend.MaxInlineText {
		return nil, nil
	}
	data, err := file.Read()
	if err != nil {
		return nil, backend.FileFailure(file, err)
	}
	title := block{Type: "text", Text: fmt.Sprintf("File %q:", file.Name)}
	switch {
	case image:
		return []block{title, encoded("image", kind, data)}, nil
	case pdf:
		return []block{title, encoded("document", kind, data)}, nil
	}
	if text, ok := backend.AsText(file, data); ok {
		return []block{{Type: "text", Text: text}}, nil
	}
	return nil, nil
}

func encoded(kind, mediaType string, data []byte) block {
	return block{Type: kind, Source: &source{
		Type: "base64", MediaType: mediaType, Data: base64.StdEncoding.EncodeToString(data),
	}}
}
