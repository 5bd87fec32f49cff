package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	downloadVersion = embeddedpostgres.V18
	downloadMajor   = 18
	mavenCentral    = "https://repo1.maven.org/maven2"
)

// download returns the directory of PostgreSQL's programs below cache, fetched
// from the repository at url if they are not there yet.
func download(ctx context.Context, cache, url string) (string, error) {
	kept := filepath.Join(cache, "postgres-"+string(downloadVersion))
	bin := filepath.Join(kept, "bin")
	if hasPrograms(bin) {
		return bin, nil
	}
	if err := os.MkdirAll(cache, newDirMode()); err != nil {
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	tmp, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		err := fetchInto(tmp, kept, url)
		_ = os.RemoveAll(tmp)
		done <- err
	}()
	// The library cannot be cancelled; left alone it ends and tidies up.
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("download PostgreSQL %s from %s: %w", downloadVersion, url, err)
	}
	return bin, nil
}

// fetchInto extracts the programs inside tmp and moves them to kept. The
// library would also start a server, on TCP, and it wipes the directories it
// is given: so it gets throw-away ones and an encoding that initdb refuses,
// and all of its work that is kept are the programs.
func fetchInto(tmp, kept, url string) error {
	extracted := filepath.Join(tmp, "postgres")
	err := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		BinaryRepositoryURL(url).
		CachePath(filepath.Join(tmp, "archive")).
		BinariesPath(extracted).
		RuntimePath(filepath.Join(tmp, "runtime")).
		DataPath(filepath.Join(tmp, "data")).
		Port(0).
		Encoding("none-for-we-only-download").
		Logger(io.Discard)).Start()
	if err != nil && !strings.HasPrefix(err.Error(), "unable to init database") {
		return err
	}
	if !hasPrograms(filepath.Join(extracted, "bin")) {
		return errors.New("the archive lacks postgres or initdb")
	}
	if err := os.Rename(extracted, kept); err != nil && !hasPrograms(filepath.Join(kept, "bin")) {
		return fmt.Errorf("keep programs: %w", err)
	}
	return nil
}
