package roots_test

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"piecework/internal/roots"
)

// tree makes a root with files, links and worse, beside a secret directory
// that no reference may reach.
func tree(t *testing.T) (dir, secret string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, secret = filepath.Join(base, "root"), filepath.Join(base, "secret")
	for _, d := range []string{dir, secret, filepath.Join(dir, "sub", "deep"), filepath.Join(dir, "..dots")} {
		must(t, os.MkdirAll(d, 0o755))
	}
	for _, f := range []string{
		filepath.Join(secret, "key"), filepath.Join(dir, "a.txt"), filepath.Join(dir, "sub", "b c.txt"), filepath.Join(dir, "sub", "deep", "d"),
		filepath.Join(dir, "x:y.txt"), filepath.Join(dir, "C:z"), filepath.Join(dir, "..dots", "...f"), filepath.Join(dir, "schön.txt"),
	} {
		must(t, os.WriteFile(f, []byte("content"), 0o644))
	}
	for link, target := range map[string]string{
		"inside": "sub/b c.txt", "insidedir": "sub", "chain": "inside", "sub/up": "../a.txt",
		"relout": "../secret/key", "relnone": "../secret/nothing", "absout": filepath.Join(secret, "key"), "absnone": filepath.Join(secret, "nothing"),
		"dirout": "../secret", "absdirout": secret, "outandback": "../root/a.txt", "loop": "loop", "dangling": "nowhere",
		"zero": "/dev/zero", "environ": "/proc/self/environ",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(t, os.Symlink("fifo", filepath.Join(dir, "tofifo")))
	return dir, secret
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func parse(t *testing.T, text string) roots.Roots {
	t.Helper()
	r, err := roots.Parse(text)
	must(t, err)
	return r
}

func TestParse(t *testing.T) {
	dir, _ := tree(t)
	r := parse(t, " one="+dir+", two-2_x="+dir+"/sub,,")
	if got := r.Names(); !slices.Equal(got, []string{"one", "two-2_x"}) {
		t.Errorf("names %v", got)
	}
	if got := parse(t, "").Names(); len(got) != 0 {
		t.Errorf("names %v", got)
	}
	t.Chdir(dir)
	if got, err := parse(t, "here=sub").File("here:b c.txt"); err != nil || got != filepath.Join(dir, "sub", "b c.txt") {
		t.Errorf("relative root: %q, %v", got, err)
	}
	for text, want := range map[string]string{
		dir:                        "want name=DIR",
		"a=":                       "has no directory",
		"A=" + dir:                 "only a-z",
		"=" + dir:                  "only a-z",
		"a=" + dir + ",a=" + dir:   "named twice",
		"a=" + dir + "/nothing":    "no such file",
		"a=" + dir + "/a.txt":      "is no directory",
		"a b=" + dir:               "only a-z",
		"a=" + dir + ",a.b=" + dir: "only a-z",
	} {
		if _, err := roots.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q): %v, want %q", text, err, want)
		}
	}
}

func TestWithLeavesTheOriginal(t *testing.T) {
	dir, _ := tree(t)
	base := parse(t, "a="+dir)
	one, err := base.With("b", dir)
	must(t, err)
	two, err := base.With("c", dir)
	must(t, err)
	if got := slices.Concat(base.Names(), one.Names(), two.Names()); !slices.Equal(got, []string{"a", "a", "b", "a", "c"}) {
		t.Errorf("names %v", got)
	}
}

func TestFile(t *testing.T) {
	dir, _ := tree(t)
	one := parse(t, "docs="+dir)
	two := parse(t, "docs="+dir+",deep="+dir+"/sub/deep")
	linked := filepath.Join(t.TempDir(), "linked")
	must(t, os.Symlink(dir, linked))
	viaLink := parse(t, "docs="+linked)
	for _, c := range []struct {
		roots     roots.Roots
		ref, want string
	}{
		{one, "docs:a.txt", "a.txt"},
		{one, "docs:/a.txt", "a.txt"},
		{one, "docs:./sub//b c.txt", "sub/b c.txt"},
		{one, "docs:x:y.txt", "x:y.txt"},
		{one, "C:z", "C:z"},
		{one, "a.txt", "a.txt"},
		{one, "schön.txt", "schön.txt"},
		{one, "..dots/...f", "..dots/...f"},
		{one, dir + "/a.txt", "a.txt"},
		{one, dir + "//sub/./deep/d", "sub/deep/d"},
		{one, "docs:inside", "sub/b c.txt"},
		{one, "docs:chain", "sub/b c.txt"},
		{one, "docs:insidedir/up", "a.txt"},
		{two, "deep:d", "sub/deep/d"},
		{two, "docs:sub/deep/d", "sub/deep/d"},
		{two, dir + "/sub/deep/d", "sub/deep/d"},
		{viaLink, linked + "/inside", "sub/b c.txt"},
		{viaLink, dir + "/inside", "sub/b c.txt"},
		{viaLink, "docs:a.txt", "a.txt"},
	} {
		if got, err := c.roots.File(c.ref); err != nil || got != filepath.Join(dir, c.want) {
			t.Errorf("File(%q) = %q, %v; want %q in the root", c.ref, got, err, c.want)
		}
	}
}

func TestDir(t *testing.T) {
	dir, _ := tree(t)
	r := parse(t, "docs="+dir)
	for ref, want := range map[string]string{
		"docs:": "", "docs:.": "", "docs:/": "", dir: "", dir + "/": "", ".": "", "sub": "sub", "docs:sub/": "sub", "docs:insidedir": "sub",
		"docs:insidedir/deep": "sub/deep", dir + "/sub/deep": "sub/deep",
	} {
		if got, err := r.Dir(ref); err != nil || got != filepath.Join(dir, want) {
			t.Errorf("Dir(%q) = %q, %v; want %q in the root", ref, got, err, want)
		}
	}
	for ref, want := range map[string]string{
		"docs:a.txt": "is no directory", "docs:fifo": "is no directory", "docs:dirout": "leads out of root docs", "docs:absdirout": "leads out of root docs",
		"docs:none": "does not exist in root docs", "/": "outside", filepath.Dir(dir): "outside", dir + "/../root": "has a ..", "": "empty",
		"docs:..": "has a ..", "docs:../secret": "has a ..",
	} {
		if got, err := r.Dir(ref); err == nil || got != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("Dir(%q) = %q, %v; want %q", ref, got, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	dir, secret := tree(t)
	one := parse(t, "docs="+dir)
	two := parse(t, "docs="+dir+",deep="+dir+"/sub/deep")
	long := strings.Repeat("n", 5000)
	for _, c := range []struct {
		roots     roots.Roots
		ref, want string
	}{
		{roots.Roots{}, "docs:a.txt", "PIECEWORK_ROOTS"},
		{one, "", "the path is empty"},
		{one, "docs:", "is no regular file"},
		{one, "docs:sub", "is no regular file"},
		{one, "docs:fifo", "is no regular file"},
		{one, "docs:tofifo", "is no regular file"},
		{one, "docs:none", "does not exist in root docs"},
		{one, "docs:a.txt/x", "does not exist in root docs"},
		{one, "docs:dangling", "does not exist in root docs"},
		{one, "docs:loop", "leads nowhere"},
		{one, "docs:relout", "leads out of root docs"},
		{one, "docs:absout", "leads out of root docs"},
		{one, "docs:dirout/key", "leads out of root docs"},
		{one, "docs:absdirout/key", "leads out of root docs"},
		{one, "docs:outandback", "leads out of root docs"},
		{one, "docs:zero", "leads out of root docs"},
		{one, "docs:environ", "leads out of root docs"},
		{one, "/dev/zero", "outside the directories that units may use: docs"},
		{one, "/dev/stdin", "outside the directories"},
		{one, "/proc/self/environ", "outside the directories"},
		{one, "/proc/1/root" + dir + "/a.txt", "outside the directories"},
		{one, secret + "/key", "outside the directories"},
		{one, dir + "-more/key", "outside the directories"},
		{one, "../../etc/passwd", "has a .."},
		{one, "docs:../secret/key", "has a .."},
		{one, "docs:sub/../a.txt", "has a .."},
		{one, dir + "/../secret/key", "has a .."},
		{one, "docs:a\x00b", "control character"},
		{one, "docs:a\nb", "control character"},
		{one, "docs:\xff", "not UTF-8"},
		{one, long, "longer than 4096 bytes"},
		{one, "docs:" + long, "longer than 4096 bytes"},
		{one, "docs:" + strings.Repeat("n", 255), "does not exist"},
		{one, "docs:sub/" + strings.Repeat("n", 256), "a name longer than 255 bytes"},
		{one, "docs:" + strings.Repeat("a/", 300) + "x", "does not exist in root docs"},
		{one, "other:a.txt", `there is no root "other"; there is docs`},
		{two, "a.txt", "names no root: write name:path with one of docs, deep"},
		{two, "C:z", "names no root"},
	} {
		if got, err := c.roots.File(c.ref); err == nil || got != "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("File(%.60q) = %q, %v; want %q", c.ref, got, err, c.want)
		}
	}
}

func TestDevices(t *testing.T) {
	r := parse(t, "dev=/dev")
	if _, err := r.File("dev:zero"); err == nil || !strings.Contains(err.Error(), "is no regular file") {
		t.Errorf("got %v", err)
	}
	if _, err := r.File("/dev/null"); err == nil || !strings.Contains(err.Error(), "is no regular file") {
		t.Errorf("got %v", err)
	}
}

func TestErrorsTellNothingAboutTheOutside(t *testing.T) {
	dir, secret := tree(t)
	r := parse(t, "docs="+dir)
	for there, notThere := range map[string]string{
		secret + "/key": secret + "/not", "docs:relout": "docs:relnone", "docs:absout": "docs:absnone", "docs:dirout/key": "docs:dirout/not",
		dir + "/../secret/key": dir + "/../secret/not", "docs:absdirout/key": "docs:absdirout/not",
	} {
		_, errThere := r.File(there)
		_, errNotThere := r.File(notThere)
		if errThere == nil || errNotThere == nil {
			t.Fatalf("%q: %v, %q: %v", there, errThere, notThere, errNotThere)
		}
		same := strings.ReplaceAll(errThere.Error(), there, "") == strings.ReplaceAll(errNotThere.Error(), notThere, "")
		if !same {
			t.Errorf("told apart: %v | %v", errThere, errNotThere)
		}
	}
}

func TestErrorsHideTheRootsPlace(t *testing.T) {
	dir, _ := tree(t)
	r := parse(t, "docs="+dir)
	for _, ref := range []string{"docs:none", "docs:absout", "docs:fifo", "docs:loop", "/etc/passwd", "nobody:x"} {
		if _, err := r.File(ref); err == nil || strings.Contains(err.Error(), dir) {
			t.Errorf("File(%q): %v", ref, err)
		}
	}
	must(t, os.RemoveAll(dir))
	if _, err := r.File("docs:a.txt"); err == nil || strings.Contains(err.Error(), dir) {
		t.Errorf("a root that is gone: %v", err)
	}
}

func TestUnreadableFile(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	dir, _ := tree(t)
	must(t, os.Chmod(filepath.Join(dir, "a.txt"), 0))
	if _, err := parse(t, "docs="+dir).File("a.txt"); err == nil || !strings.Contains(err.Error(), "may not be read") {
		t.Errorf("got %v", err)
	}
}

// What is read comes from the file that was looked at, whatever takes its place
// meanwhile, and no pipe keeps anybody waiting.
func TestOpenHoldsWhatItSaw(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Parse("r=" + dir)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "f")
	place := []func() error{
		func() error { return os.WriteFile(name, []byte("inside"), 0o600) },
		func() error { return os.Symlink(outside, name) },
		func() error { return syscall.Mkfifo(name, 0o600) },
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Remove(name)
			if err := place[i%len(place)](); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 3000 {
		file, _, err := set.Open("r:f")
		if err != nil {
			continue
		}
		text, err := io.ReadAll(file)
		_ = file.Close()
		if err != nil || string(text) != "inside" && len(text) > 0 {
			t.Fatalf("read %q, %v", text, err)
		}
	}
	close(stop)
	swapping.Wait()
}

func TestOpenDirHoldsWhatItSaw(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "d", "f"), []byte("inside"), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Parse("r=" + dir)
	if err != nil {
		t.Fatal(err)
	}
	open, _, err := set.OpenDir("r:d")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.TempDir(), filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	if text, err := open.ReadFile("f"); err != nil || string(text) != "inside" {
		t.Errorf("%q %v", text, err)
	}
	if _, _, err := set.OpenDir("r:old/f"); err == nil || !strings.Contains(err.Error(), "is no directory") {
		t.Errorf("%v", err)
	}
	if _, err := roots.OpenRegular(filepath.Join(dir, "d")); err == nil {
		t.Error("a link was followed")
	}
}

// Files that units name, and files where agents write, are opened by this
// package alone: it hands out what it has looked at.
func TestOnlyRootsOpensPathsOfUnits(t *testing.T) {
	t.Parallel()
	opens := regexp.MustCompile(`\bos\.(Open|OpenFile|Create|ReadFile|WriteFile)\(|\.OpenRoot\(|\.FS\(\)`)
	allowed := map[string]bool{"handlers/spool.go": true, "internal/backend/mcp_server.go": true} // the worker process's and the operator's own
	for _, dir := range []string{"api", "handlers", "internal/accept", "internal/backend", "internal/source", "internal/prompt"} {
		names, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, name := range names {
			at := dir + "/" + filepath.Base(name)
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if found := opens.FindString(string(text)); (found != "") != allowed[at] {
				t.Errorf("%s: %q; open it with one of the functions of roots", at, found)
			}
		}
	}
}
