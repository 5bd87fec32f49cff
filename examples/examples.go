// Package examples holds sample documents that the demo submits and the tests
// read. They are embedded, so the binary needs no other files. Beside them are
// whole uses, a directory each, whose README's commands the tests run.
package examples

import (
	"embed"
	"fmt"
	"io/fs"
)

//go:embed documents
var files embed.FS

//go:embed contracts images invoices review
var uses embed.FS

// Uses returns the examples that are whole uses, one directory each with a
// README.md.
func Uses() fs.FS { return uses }

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
