package examples_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"image/png"
	"io/fs"
	"net/mail"
	"path"
	"regexp"
	"strconv"
	"testing"

	"piecework/examples"
)

func TestDocumentsAreWhatTheirNamesSay(t *testing.T) {
	names := examples.Names()
	if len(names) != 12 {
		t.Fatalf("%d documents, want the twelve that the demo promises: %v", len(names), names)
	}
	for _, name := range names {
		data, err := fs.ReadFile(examples.Documents(), name)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) == 0 {
			t.Errorf("%s is empty", name)
		}
		check(t, name, data)
	}
}

func check(t *testing.T, name string, data []byte) {
	var err error
	switch path.Ext(name) {
	case ".eml":
		_, err = mail.ReadMessage(bytes.NewReader(data))
	case ".csv":
		_, err = csv.NewReader(bytes.NewReader(data)).ReadAll()
	case ".png":
		_, err = png.Decode(bytes.NewReader(data))
	case ".json":
		var any map[string]any
		err = json.Unmarshal(data, &any)
	case ".pdf":
		checkPDF(t, name, data)
	}
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// checkPDF follows startxref to the table and each entry to its object: an
// editor that changes line ends would break all of them.
func checkPDF(t *testing.T, name string, data []byte) {
	m := regexp.MustCompile(`startxref\n(\d+)\n%%EOF\n$`).FindSubmatch(data)
	if m == nil {
		t.Fatalf("%s has no startxref", name)
	}
	table, _ := strconv.Atoi(string(m[1]))
	if table >= len(data) || !bytes.HasPrefix(data[table:], []byte("xref\n")) {
		t.Fatalf("%s: startxref does not point at the table", name)
	}
	entries := regexp.MustCompile(`(\d{10}) 00000 n `).FindAllSubmatch(data[table:], -1)
	for i, entry := range entries {
		at, _ := strconv.Atoi(string(entry[1]))
		if want := strconv.Itoa(i+1) + " 0 obj\n"; !bytes.HasPrefix(data[at:], []byte(want)) {
			t.Errorf("%s: object %d is not at byte %d", name, i+1, at)
		}
	}
}
