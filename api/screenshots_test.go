package api

import (
	"flag"
	"path/filepath"
	"testing"
)

var screenshots = flag.String("screenshots", "", "write pictures of the pages to this directory")

// pictured are the stories that the pictures show.
var pictured = []string{"list", "unit-running", "unit-done", "unit-failed", "unit-retry", "compare", "list-of-batch", "batches", "batch-awaiting-approval",
	"batch-in-progress", "batch-completed-with-failures", "batch-failed", "batch-approve", "overview", "processes", "unit-told", "webhooks"}

func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("only with -screenshots: for people to look at")
	}
	f := newFront(t)
	w := newTab(t, f.url)
	for _, name := range pictured {
		for _, sight := range sights {
			w.size(sight.width, sight.height)
			w.scheme(sight.scheme)
			w.open("/stories/" + name)
			w.picture(filepath.Join(*screenshots, name+"-"+sight.name+".png"))
		}
	}
}
