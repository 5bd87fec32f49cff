package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is whom a child runs as; the zero account is ourselves.
type account struct {
	name string
	cred *syscall.Credential
}

// unprivileged chooses the account for a server that refuses to be root: the
// owner of the cluster there is, else the person behind sudo, else postgres,
// else nobody.
func unprivileged(data, sudoUser string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if owner, ok := ownerOf(data); ok {
		return owner, nil
	}
	for _, name := range []string{sudoUser, "postgres", "nobody"} {
		if acct, err := lookUp(user.Lookup(name)); err == nil {
			return acct, nil
		}
	}
	return account{}, errors.New("postgres does not run as root, and there is neither a user postgres nor nobody to run it as: create one or run as an ordinary user")
}

// ownerOf returns the owner of path unless that is root.
func ownerOf(path string) (account, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return account{}, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 {
		return account{}, false
	}
	id := strconv.FormatUint(uint64(stat.Uid), 10)
	if acct, err := lookUp(user.LookupId(id)); err == nil {
		return acct, true
	}
	return account{name: id, cred: &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}}, true
}

func lookUp(u *user.User, err error) (account, error) {
	if err != nil {
		return account{}, fmt.Errorf("look up user: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("read user id: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("read group id: %w", err)
	}
	if uid == 0 {
		return account{}, errors.New("user is root")
	}
	return account{name: u.Username, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// as describes the account for people; empty when it is ourselves.
func (a account) as() string {
	if a.cred == nil {
		return ""
	}
	return ", as user " + a.name
}

// own gives path to the account.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Lchown(path, int(a.cred.Uid), int(a.cred.Gid))
}

// ownAll gives the tree at path to the account.
func (a account) ownAll(path string) error {
	return filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return a.own(path)
	})
}

// run puts cmd under the account. The child sees none of our environment: it
// may hold keys, and PG… variables would lead Postgres astray.
func (a account) run(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C", "TZ=UTC"}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.cred}
	return cmd
}

// enter tells whether the account can enter dir, by doing it: modes alone do
// not know of access lists and read-only mounts.
func (a account) enter(dir string) error {
	if a.cred == nil {
		return nil
	}
	cmd := exec.Command("/bin/sh", "-c", ":")
	cmd.Dir = dir
	if err := a.run(cmd).Run(); err != nil {
		return fmt.Errorf("enter %s as user %s: %w", dir, a.name, err)
	}
	return nil
}

// reach is enter with advice that names the directory that is closed.
func (a account) reach(dir string) error {
	err := a.enter(dir)
	if err == nil {
		return nil
	}
	if err := a.enter("/"); err != nil {
		return fmt.Errorf("postgres does not run as root, and this process may not become user %s: run it as an ordinary user: %w", a.name, err)
	}
	closed := dir
	for parent := filepath.Dir(closed); a.enter(parent) != nil && parent != closed; parent = filepath.Dir(parent) {
		closed = parent
	}
	return fmt.Errorf("postgres runs as user %s here, who cannot enter %s: choose a data directory elsewhere, such as /var/lib/piecework, or run as an ordinary user: %w",
		a.name, closed, err)
}

// newDirMode lets the account of a root's server pass through; what is
// inside is closed by itself.
func newDirMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}
