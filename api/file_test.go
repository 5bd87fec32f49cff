package api

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/internal/blob"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

const boundary = "cut-here"

// form is a multipart body with one file.
func form(disposition, content string, headers ...string) string {
	return "--" + boundary + "\r\nContent-Disposition: " + disposition + "\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n" +
		content + "\r\n--" + boundary + "--\r\n"
}

func named(name string) string { return fmt.Sprintf(`form-data; name="file"; filename="%s"`, name) }

func (f *front) sendForm(body string) *answer {
	f.t.Helper()
	return f.do("POST", "/files", body, "Content-Type", "multipart/form-data; boundary="+boundary)
}

func (f *front) upload(name, content string) work.File {
	f.t.Helper()
	var file work.File
	f.sendForm(form(named(name), content)).is(201).into(&file)
	return file
}

// filed opens a door over a store in a directory of its own.
func filed(t *testing.T, change func(*Options)) (*front, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "files")
	files, err := blob.Open(t.Context(), blob.Local(dir))
	if err != nil {
		t.Fatal(err)
	}
	return openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) {
		o.Files = files
		if change != nil {
			change(o)
		}
	}), dir
}

// blobs counts what a store in dir holds, whole or in part.
func blobs(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUploadReadDownloadDelete(t *testing.T) {
	t.Parallel()
	f, dir := filed(t, nil)
	a := f.sendForm(form(named("report.txt"), "hello, world", "Content-Type: text/plain; charset=utf-8")).is(201)
	var file work.File
	a.into(&file)
	path := "/files/" + file.ID.String()
	if a.header.Get("Location") != path || file.Name != "report.txt" || file.Size != 12 || file.MediaType != "text/plain; charset=utf-8" ||
		file.SHA256 != "09ca7e4eaa6e8ae9c7d261167129184883644d07dfba7cbfbc4c8a2e08360d5b" || file.CreatedAt.IsZero() || file.RunID != nil {
		t.Errorf("%s: %+v", a.header.Get("Location"), file)
	}
	for page, schema := range map[string]string{path: "File", "/files": "FileList"} {
		if err := f.misfit(schema, f.get(page).is(200).body); err != nil {
			t.Error(err)
		}
	}
	whole := f.get(path + "/content").is(200)
	for name, want := range map[string]string{
		"Content-Type": "text/plain; charset=utf-8", "Content-Disposition": `attachment; filename="report.txt"`, "Content-Length": "12",
		"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox", "Accept-Ranges": "bytes",
	} {
		if got := whole.header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if string(whole.body) != "hello, world" {
		t.Errorf("body %q", whole.body)
	}
	if part := f.get(path+"/content", "Range", "bytes=7-11").is(206); string(part.body) != "world" || part.header.Get("Content-Range") != "bytes 7-11/12" {
		t.Errorf("part %q, %s", part.body, part.header.Get("Content-Range"))
	}
	f.get(path+"/content", "Range", "bytes=50-").is(416)
	f.get(path+"/content", "If-None-Match", whole.header.Get("ETag")).is(304)
	if head := f.do("HEAD", path+"/content", "").is(200); len(head.body) > 0 {
		t.Errorf("HEAD has a body: %q", head.body)
	}
	f.do("DELETE", path, "").is(204)
	f.do("DELETE", path, "").refused(404, "", "")
	f.get(path).refused(404, "", "")
	f.get(path+"/content").refused(404, "", "")
	f.get("/files/nope/content").refused(404, "", "")
	if n := blobs(t, dir); n > 0 {
		t.Errorf("%d blobs are left", n)
	}
}

func TestFileListPages(t *testing.T) {
	t.Parallel()
	f, _ := filed(t, nil)
	var want []uuid.UUID
	for i := range 3 {
		want = append(want, f.upload(fmt.Sprintf("%d.txt", i), "").ID)
	}
	var first, second struct {
		Items []work.File
		Next  *uuid.UUID
	}
	f.get("/files?limit=2").is(200).into(&first)
	f.get("/files?limit=2&after=" + first.Next.String()).is(200).into(&second)
	if len(first.Items) != 2 || first.Items[0].ID != want[2] || len(second.Items) != 1 || second.Items[0].ID != want[0] ||
		second.Next != nil {
		t.Errorf("pages %+v, %+v", first, second)
	}
	f.get("/files?after=x").refused(422, "after", "")
	f.get("/files?run=x").refused(422, "run", "")
}

func TestFileNames(t *testing.T) {
	t.Parallel()
	f, _ := filed(t, nil)
	for given, want := range map[string]string{
		"../../x":                    "x",
		`..\\..\\x.txt`:              "x.txt",
		"/etc/passwd":                "passwd",
		"-rf":                        "-rf",
		"Übersicht 漢字 \u202efdp.exe": "Übersicht 漢字 \u202efdp.exe",
		`a\"b.txt`:                   `a"b.txt`,
		".env":                       ".env",
	} {
		if file := f.upload(given, ""); file.Name != want || file.Size != 0 {
			t.Errorf("%q: %+v", given, file)
		}
	}
	for given, why := range map[string]string{
		"": "a name", "..": "a name", "/": "a name", strings.Repeat("x", 256): "255 bytes", "a\tb": "control character", "a\xff": "UTF-8",
	} {
		f.sendForm(form(named(given), "x")).refused(422, "#/file", why)
	}
	// A raw NUL never gets past the reader of headers, an encoded one does.
	f.sendForm(form(named("a\x00b"), "x")).refused(400, "", "form")
	f.sendForm(form(`form-data; name="file"; filename*=UTF-8''a%00b`, "x")).refused(422, "#/file", "NUL")
}

func TestDispositionOfAnyName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"plain name.txt": `attachment; filename="plain name.txt"`,
		`a"b\c%d.txt`:    `attachment; filename="a_b_c_d.txt"; filename*=UTF-8''a%22b%5Cc%25d.txt`,
		"ü漢.pdf":         `attachment; filename="__.pdf"; filename*=UTF-8''%C3%BC%E6%BC%A2.pdf`,
		"x\r\nSet-A: b":  `attachment; filename="x__Set-A: b"; filename*=UTF-8''x%0D%0ASet-A%3A%20b`,
	} {
		if got := disposition(name); got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

func TestActiveContentIsNeverServedAsSuch(t *testing.T) {
	t.Parallel()
	f, _ := filed(t, nil)
	for _, kind := range []string{"text/html", "image/svg+xml", "application/xhtml+xml", "text/javascript"} {
		var file work.File
		f.sendForm(form(named("x"), "<script>alert(1)</script>", "Content-Type: "+kind)).is(201).into(&file)
		got := f.get("/files/" + file.ID.String() + "/content").is(200).header.Get("Content-Type")
		if file.MediaType != kind || got != "application/octet-stream" {
			t.Errorf("%s is known as %s and served as %s", kind, file.MediaType, got)
		}
	}
}

func TestBadFormsLeaveNothing(t *testing.T) {
	t.Parallel()
	f, dir := filed(t, func(o *Options) {
		o.FilePolicy = work.FilePolicy{MaxFiles: 4, MaxBytes: 100, Suffixes: []string{".txt", ".pdf"}}
	})
	good := form(named("a.txt"), "hello")
	for name, c := range map[string]struct {
		body, place, detail string
		status              int
	}{
		"no part":       {"--" + boundary + "--\r\n", "#/file", "no file", 422},
		"empty":         {"", "", "cut off", 400},
		"other field":   {form(`form-data; name="purpose"`, "batch"), "#/file", `"purpose"`, 422},
		"no filename":   {form(`form-data; name="file"`, "x"), "#/file", "name", 422},
		"two files":     {strings.TrimSuffix(good, "--"+boundary+"--\r\n") + good, "#/file", "more than one", 422},
		"suffix":        {form(named("a.exe"), "x"), "#/file", ".txt, .pdf", 422},
		"no suffix":     {form(named("a"), "x"), "#/file", ".txt, .pdf", 422},
		"too large":     {form(named("a.txt"), strings.Repeat("x", 101)), "", "100 bytes", 413},
		"50 MB":         {form(named("a.txt"), strings.Repeat("x", 50<<20)), "", "100 bytes", 413},
		"cut in a part": {good[:len(good)-20], "", "cut off", 400},
		"cut at an end": {good[:len(good)-4], "", "cut off", 400},
		"no form":       {"just text", "", "cut off", 400},
	} {
		t.Run(name, func(t *testing.T) {
			a := f.sendForm(c.body)
			a.t = t
			a.refused(c.status, c.place, c.detail)
		})
	}
	f.do("POST", "/files", "{}", "Content-Type", "application/json").refused(415, "", "multipart/form-data")
	f.do("POST", "/files?x=1", good, "Content-Type", "multipart/form-data; boundary="+boundary).refused(422, "x", "")
	if n := blobs(t, dir); n > 0 {
		t.Errorf("%d blobs are left", n)
	}
	f.get("/files").is(200)
	if strays, err := f.Store.Files.StrayBlobs(t.Context(), 10); err != nil || len(strays) > 0 {
		t.Errorf("strays %v, %v", strays, err)
	}
	f.upload("UPPER.TXT", "x")
	f.upload("just.txt", strings.Repeat("x", 100))
}

// A caller who hangs up in the middle of a file leaves nothing behind.
func TestCutUploadLeavesNothing(t *testing.T) {
	t.Parallel()
	f, dir := filed(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	body := form(named("a.txt"), strings.Repeat("x", 1<<20))
	fmt.Fprintf(conn, "POST /files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=%s\r\nContent-Length: %d\r\n\r\n%s",
		boundary, len(body), body[:len(body)/2])
	testkit.Eventually(t, "something was written", func() bool { return blobs(t, dir) > 0 })
	conn.Close()
	testkit.Eventually(t, "nothing is left", func() bool { return blobs(t, dir) == 0 })
	if list := string(f.get("/files").is(200).body); !strings.Contains(list, `"items":[]`) {
		t.Error(list)
	}
}

func TestTwoUploadsAtOnce(t *testing.T) {
	t.Parallel()
	f, _ := filed(t, nil)
	var uploads sync.WaitGroup
	files := make([]work.File, 8)
	for i := range files {
		uploads.Go(func() { files[i] = f.upload("same.txt", strings.Repeat(fmt.Sprint(i), 1<<20)) })
	}
	uploads.Wait()
	for i, file := range files {
		if got := f.get("/files/" + file.ID.String() + "/content").is(200).body; !bytes.Equal(got, bytes.Repeat([]byte(fmt.Sprint(i)), 1<<20)) {
			t.Errorf("file %d has %d bytes of another", i, len(got))
		}
	}
}

func TestFileStoreAway(t *testing.T) {
	t.Parallel()
	f, dir := filed(t, nil)
	kept := f.upload("a.txt", "x")
	lost := f.upload("b.txt", "x")
	if err := os.RemoveAll(filepath.Join(dir, lost.ID.String()[34:], lost.ID.String())); err != nil {
		t.Fatal(err)
	}
	f.get("/files/"+lost.ID.String()+"/content").refused(503, "", "PIECEWORK_FILES")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := f.sendForm(form(named("c.txt"), "x"))
	a.refused(503, "", "the file store file://")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	f.get("/files/"+kept.ID.String()+"/content").refused(503, "", "")
	f.do("DELETE", "/files/"+kept.ID.String(), "").is(204) // the bytes follow when they can
	if strays, err := f.Store.Files.StrayBlobs(t.Context(), 10); err != nil || len(strays) != 1 || strays[0] != kept.ID {
		t.Errorf("strays %v, %v", strays, err)
	}
}

func TestFullFileStoreIs507(t *testing.T) {
	t.Parallel()
	if p := problem.Of(fmt.Errorf("put: %w", blob.ErrFull)); p.Status != 507 || !strings.Contains(p.Detail, "no room") {
		t.Errorf("%+v", p)
	}
}

func TestUnitsWithUploadedFiles(t *testing.T) {
	t.Parallel()
	f, _ := filed(t, func(o *Options) {
		o.FilePolicy = work.FilePolicy{MaxFiles: 3, MaxBytes: 100, Suffixes: []string{".txt"}}
	})
	file := f.upload("a.txt", "hello")
	id := file.ID.String()
	unit := f.submit(mock(`,"files":["` + id + `"],"payload":{"file_path":"` + id + `","file_paths":["` + id + `"]}`))
	if got := f.get("/work-units/" + unit.String()).is(200).fields()["files"].([]any); len(got) != 1 || got[0] != id {
		t.Errorf("files %v", got)
	}
	f.do("DELETE", "/files/"+id, "").refused(409, "", unit.String())
	f.post("/work-units/"+unit.String()+"/cancel", "").is(202)
	nobody := uuid.NewString()
	four := strings.TrimSuffix(strings.Repeat(`"`+id+`",`, 4), ",")
	for body, place := range map[string]string{
		`,"files":["` + nobody + `"]`:                                      "#/files/0",
		`,"files":["` + id + `","` + nobody + `"]`:                         "#/files/1",
		`,"payload":{"file_path":"` + nobody + `"}`:                        "#/payload/file_path",
		`,"payload":{"file_paths":["` + id + `","` + nobody + `"]}`:        "#/payload/file_paths/1",
		`,"files":["` + id + `"],"payload":{"file_path":"` + nobody + `"}`: "#/payload/file_path",
		`,"files":[` + four + `]`:                                          "#/files",
		`,"payload":{"file_paths":[` + four + `]}`:                         "#/payload/file_paths",
		`,"files":["docs:a.txt"]`:                                          "#/files/0",
		`,"files":[""]`:                                                    "#/files/0",
	} {
		f.post("/work-units", mock(body)).refused(422, place, "")
	}
	f.post("/work-units", mock(`,"files":"`+id+`"`)).is(422)
	f.do("DELETE", "/files/"+id, "").is(204)
	f.post("/work-units", mock(`,"files":["`+id+`"]`)).refused(422, "#/files/0", "POST /files")
}

func TestPolicyHoldsForFilesInRootsToo(t *testing.T) {
	t.Parallel()
	f, _ := rooted(t, map[string]string{"a.txt": "a", "b.exe": "b"})
	f.FilePolicy.Suffixes = []string{".txt"}
	f.post("/work-units", mock(`,"payload":{"file_path":"docs:b.exe"}`)).refused(422, "#/payload/file_path", ".txt")
	f.post("/work-units", mock(`,"files":["docs:b.exe"]`)).refused(422, "#/files/0", ".txt")
	f.submit(mock(`,"files":["docs:a.txt"]`))
}
