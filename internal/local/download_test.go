package local

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// jar is what the repository serves: programs that hand over to real ones.
func jar(t *testing.T, bin string) []byte {
	t.Helper()
	var archive bytes.Buffer
	files := tar.NewWriter(&archive)
	for _, name := range []string{"postgres", "initdb"} {
		script := "#!/bin/sh\nexec " + filepath.Join(bin, name) + " \"$@\"\n"
		if err := files.WriteHeader(&tar.Header{Name: "bin/" + name, Mode: 0o755, Size: int64(len(script))}); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write([]byte(script)); err != nil {
			t.Fatal(err)
		}
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	xz := exec.Command("xz", "--stdout")
	xz.Stdin = &archive
	packed, err := xz.Output()
	if err != nil {
		t.Fatalf("this test packs an archive with xz: %v", err)
	}
	var out bytes.Buffer
	zipped := zip.NewWriter(&out)
	file, err := zipped.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(packed); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// serveJar is a repository with one jar; sum is what it says the jar's
// checksum is.
func serveJar(t *testing.T, jar []byte, sum string) (url string, fetched *atomic.Int32) {
	t.Helper()
	fetched = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/"+string(downloadVersion)+"/") {
			http.NotFound(w, r)
			return
		}
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(sum))
			return
		}
		fetched.Add(1)
		_, _ = w.Write(jar)
	}))
	t.Cleanup(server.Close)
	return server.URL, fetched
}

func TestDownload(t *testing.T) {
	t.Parallel()
	real, _, err := findPrograms(t.Context(), usualPlaces(), 0, account{})
	if err != nil {
		t.Fatal(err)
	}
	packed := jar(t, real.dir)
	sum := sha256.Sum256(packed)
	url, fetched := serveJar(t, packed, hex.EncodeToString(sum[:]))
	o := PostgresOptions{Dir: dataDir(t), CacheDir: dataDir(t), Download: true, repository: url, places: nowhere}
	for range 2 {
		// A data directory of its own: the programs in the jar are not of
		// the major version that their name promises.
		o.Dir = dataDir(t)
		pg := startPostgres(t, o)
		if want := filepath.Join(o.CacheDir, "postgres-"+string(downloadVersion), "bin"); !strings.Contains(pg.Description, want) {
			t.Errorf("description %q lacks %q", pg.Description, want)
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	if left, err := os.ReadDir(o.CacheDir); err != nil || len(left) != 1 {
		t.Errorf("cache holds %v, %v", left, err)
	}
}

func TestDownloadFails(t *testing.T) {
	t.Parallel()
	wrong, _ := serveJar(t, jar(t, "/nowhere"), strings.Repeat("0", 64))
	nothing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nothing.Close)
	for name, url := range map[string]string{"checksums do not match": wrong, "no version found": nothing.URL} {
		dir := dataDir(t)
		_, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir, Download: true, repository: url, places: nowhere})
		wantText(t, err, "apt install", "download PostgreSQL", url, name)
		if hasPrograms(filepath.Join(dir, "postgres-"+string(downloadVersion), "bin")) {
			t.Errorf("%s: programs were kept", name)
		}
	}
}

func TestDownloadCancelled(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-hang
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err := download(ctx, dataDir(t), server.URL)
	wantText(t, err, "download PostgreSQL", context.Canceled.Error())
}
