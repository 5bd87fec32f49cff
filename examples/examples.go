// Package examples holds sample documents that the demo submits and the tests
// read. They are embedded, so the binary needs no other files.
package examples

import (
	"embed"
	"fmt"
	"io/fs"
)

//go:embed documents
var files embed.FS

// Documents returns the sample documents as one flat directory.
func Documents() fs.FS {
	documents, err := fs.Sub(files, "documents")
	if err != nil {
		panic(fmt.Sprintf("embedded documents: %v", err)) // only if the directive above is wrong
	}
	return documents
}

// Names lists the sample documents in alphabetical order.
func Names() []string {
	entries, err := fs.ReadDir(files, "documents")
	if err != nil {
		panic(fmt.Sprintf("embedded documents: %v", err))
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
