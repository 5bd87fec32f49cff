package backend

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"piecework/internal/work"
)

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
	var others named
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
		if prompt, failure = others.add(prompt, file, filesDir); failure != nil {
			return message, failure
		}
	}
	message.named = others.paths
	content = append(content, block{Type: "text", Text: prompt})
	message.line = claudeLine(content)
	return message, nil
}

// claudeLine is one message of the user.
func claudeLine(content []block) []byte {
	line, _ := json.Marshal(map[string]any{ // texts can always be encoded
		"type": "user", "message": map[string]any{"role": "user", "content": content},
	})
	return append(line, '\n')
}

// inlineFile returns a file as content of the message, nil when it has to stay
// a file.
func inlineFile(file File, room int64) ([]block, *work.Failure) {
	if file.Size > room {
		return nil, nil
	}
	kind, err := sniff(file)
	if err != nil {
		return nil, fileFailure(file, err)
	}
	image, pdf := slices.Contains(inlineImages, kind), kind == "application/pdf"
	if image && file.Size > maxInlineImage || !image && !pdf && file.Size > maxInlineText {
		return nil, nil
	}
	data, err := file.read()
	if err != nil {
		return nil, fileFailure(file, err)
	}
	title := block{Type: "text", Text: fmt.Sprintf("File %q:", file.Name)}
	switch {
	case image:
		return []block{title, encoded("image", kind, data)}, nil
	case pdf:
		return []block{title, encoded("document", kind, data)}, nil
	}
	if text, ok := inlineText(file, data); ok {
		return []block{{Type: "text", Text: text}}, nil
	}
	return nil, nil
}

func encoded(kind, mediaType string, data []byte) block {
	return block{Type: kind, Source: &source{
		Type: "base64", MediaType: mediaType, Data: base64.StdEncoding.EncodeToString(data),
	}}
}
