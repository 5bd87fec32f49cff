package mock

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"image"
	_ "image/gif"  // dimensions of GIF files
	_ "image/jpeg" // dimensions of JPEG files
	_ "image/png"  // dimensions of PNG files
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// sight is what can truly be said of one thing without understanding it.
type sight struct{ name, facts string }

// maxLook bounds what is read of one file.
const maxLook = 32 << 20

// look examines the attached files and the payload's values, save for those
// that only say where the files are.
func look(req backend.Request, values map[string]json.RawMessage) ([]sight, error) {
	var seen []sight
	for _, file := range req.Files {
		data, err := readSome(file)
		if err != nil {
			return nil, fmt.Errorf("read the attached file %q: %w", file.Name, err)
		}
		facts := factsOfFile(file.Name, data)
		if len(data) == maxLook {
			facts += fmt.Sprintf(" (of the first %d bytes)", maxLook)
		}
		seen = append(seen, sight{name: file.Name, facts: facts})
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if key != "file_path" && key != "file_paths" && key != "working_directory" {
			seen = append(seen, sight{name: "payload." + key, facts: factsOfValue(values[key])})
		}
	}
	if len(seen) == 0 && req.Prompt != "" {
		seen = append(seen, sight{name: "the prompt", facts: factsOfText(req.Prompt)})
	}
	return seen, nil
}

func summary(seen []sight) string {
	if len(seen) == 0 {
		return "there was nothing to look at."
	}
	lines := make([]string, len(seen))
	for i, s := range seen {
		lines[i] = s.name + ": " + s.facts
	}
	return strings.Join(lines, "\n")
}

func readSome(f backend.File) ([]byte, error) {
	file, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxLook))
}

func factsOfValue(raw json.RawMessage) string {
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return "not JSON"
	}
	switch v := value.(type) {
	case string:
		return factsOfText(v)
	case map[string]any:
		return fmt.Sprintf("an object with %s: %s", count(len(v), "key"), list(slices.Sorted(maps.Keys(v))))
	case []any:
		return fmt.Sprintf("a list of %s", count(len(v), "item"))
	}
	return "the value " + string(raw)
}

func factsOfText(text string) string {
	facts := fmt.Sprintf("%s, %s, %s", count(len(strings.Fields(text)), "word"),
		count(lines(text), "line"), count(utf8.RuneCountInString(text), "character"))
	if first := firstSentence(text); first != "" {
		facts += fmt.Sprintf(", begins %q", first)
	}
	return facts
}

func factsOfFile(name string, data []byte) string {
	kind := strings.ToLower(filepath.Ext(name))
	switch {
	case bytes.HasPrefix(data, []byte("%PDF-")):
		return factsOfPDF(data)
	case kind == ".csv" || kind == ".tsv":
		return factsOfTable(kind, data)
	case kind == ".json":
		return "JSON, " + factsOfValue(data)
	case functions[kind] != nil:
		return fmt.Sprintf("source code, %s, %s", count(lines(string(data)), "line"),
			count(len(functions[kind].FindAllIndex(data, -1)), "function"))
	}
	if config, format, err := image.DecodeConfig(bytes.NewReader(data)); err == nil {
		return fmt.Sprintf("%s image, %d × %d pixels, %s", strings.ToUpper(format),
			config.Width, config.Height, count(len(data), "byte"))
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return "binary, " + count(len(data), "byte")
	}
	return factsOfText(string(data))
}

var (
	pdfPage   = regexp.MustCompile(`/Type\s*/Page[^s\w]`)
	functions = map[string]*regexp.Regexp{
		".go": regexp.MustCompile(`(?m)^func `),
		".py": regexp.MustCompile(`(?m)^\s*(async )?def `),
		".js": regexp.MustCompile(`\bfunction\b|=>`),
		".ts": regexp.MustCompile(`\bfunction\b|=>`),
		".rs": regexp.MustCompile(`(?m)^\s*(pub(\([a-z]+\))? )?(async )?fn `),
		".rb": regexp.MustCompile(`(?m)^\s*def `),
		".sh": regexp.MustCompile(`(?m)^\s*(function )?[\w-]+ ?\(\)`),
		".c":  regexp.MustCompile(`(?m)^\w[\w\s*]*\([^;]*\)\s*\{`),
	}
)

func factsOfPDF(data []byte) string {
	version, _, _ := bytes.Cut(data[len("%PDF-"):min(len(data), 16)], []byte("\n"))
	pages := len(pdfPage.FindAllIndex(data, -1))
	if pages == 0 {
		return fmt.Sprintf("PDF %s, its pages are compressed, %s", bytes.TrimSpace(version), count(len(data), "byte"))
	}
	return fmt.Sprintf("PDF %s, %s, %s", bytes.TrimSpace(version), count(pages, "page"), count(len(data), "byte"))
}

func factsOfTable(kind string, data []byte) string {
	reader := csv.NewReader(bytes.NewReader(data))
	reader.FieldsPerRecord, reader.LazyQuotes = -1, true
	if kind == ".tsv" {
		reader.Comma = '\t'
	}
	records, err := reader.ReadAll()
	if err != nil || len(records) == 0 {
		return factsOfText(string(data))
	}
	return fmt.Sprintf("table, %s below the header, %s: %s",
		count(len(records)-1, "row"), count(len(records[0]), "column"), list(records[0]))
}

// firstSentence is the text up to its first full stop, or as much as fits.
func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for i := range text {
		if strings.ContainsRune(".!?", rune(text[i])) && (i+1 == len(text) || text[i+1] == ' ') {
			text = text[:i+1]
			break
		}
	}
	if cut, shortened := work.Cut(text, 160); shortened {
		return cut + "…"
	}
	return text
}

func lines(text string) int {
	n := strings.Count(text, "\n")
	if text != "" && !strings.HasSuffix(text, "\n") {
		n++
	}
	return n
}

func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func list(names []string) string {
	const shown = 20
	if more := len(names) - shown; more > 0 {
		return strings.Join(names[:shown], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}
