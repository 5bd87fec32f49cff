package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// newestCluster returns the highest major version with a cluster in dir, or 0.
func newestCluster(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("read data directory: %w", err)
	}
	newest := 0
	for _, entry := range entries {
		digits, ok := strings.CutPrefix(entry.Name(), "pg")
		if !ok {
			continue
		}
		if major, err := strconv.Atoi(digits); err == nil && major > newest && isCluster(clusterDir(dir, major)) {
			newest = major
		}
	}
	return newest, nil
}

func clusterDir(dir string, major int) string {
	return filepath.Join(dir, "pg"+strconv.Itoa(major))
}

// isCluster errs on the side of yes: what it may not look into is not taken
// for free room.
func isCluster(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "PG_VERSION"))
	return !errors.Is(err, fs.ErrNotExist)
}

// makeCluster runs initdb beside data and renames the outcome, so that a half
// made cluster is never taken for a whole one.
func makeCluster(ctx context.Context, p programs, data string, acct account, durable bool) error {
	tmp, err := os.MkdirTemp(filepath.Dir(data), filepath.Base(data)+".tmp-")
	if err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // gone already when all went well
	if err := acct.own(tmp); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	if err := runInitdb(ctx, p, tmp, acct, durable); err != nil {
		return err
	}
	if err := os.Rename(tmp, data); err != nil {
		return fmt.Errorf("make cluster: %s is in the way and is not a PostgreSQL data directory: move it: %w", data, err)
	}
	if !durable {
		return nil
	}
	return syncDir(filepath.Dir(data))
}

func runInitdb(ctx context.Context, p programs, data string, acct account, durable bool) error {
	args := []string{"-D", data, "-U", superuser, "-A", "trust", "-E", "UTF8", "--no-locale"}
	if !durable {
		args = append(args, "--no-sync")
	}
	var out bytes.Buffer
	cmd := acct.run(exec.CommandContext(ctx, filepath.Join(p.dir, "initdb"), args...))
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// dropHalfMade removes what interrupted runs of initdb left in dir. No server
// ever ran there, so no data is lost; a run that is still alive is spared.
func dropHalfMade(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, "pg*.tmp-*"))
	for _, tmp := range left {
		if info, err := os.Stat(tmp); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(tmp)
		}
	}
}

func syncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Sync(); err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	return nil
}
