package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestBodyIsMissing(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", "").refused(400, "#", "there is no body")
	f.do("POST", "/work-units", "").refused(400, "#", "there is no body")
	f.post("/work-units", " \n").refused(400, "#", "there is no body")
}

func TestBodyIsNotJSON(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, body := range []string{"hello", "{", `{"prompt":}`, `{'prompt':1}`, "\xff\xfe", `{"prompt":"x"`, `backend=mock&prompt=x`} {
		f.post("/work-units", body).refused(400, pointerOf(body), "")
	}
	f.post("/work-units", mock("")+"{}").refused(400, "#", "more than one JSON value")
}

// Where a syntax error lies inside a field, the problem says which.
func pointerOf(body string) string {
	if strings.HasPrefix(body, `{"prompt":`) && !strings.Contains(body, "x") {
		return "#/prompt"
	}
	return "#"
}

func TestBodyIsJSONButNoObject(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, body := range []string{"[]", "null", "7", `"text"`, "[" + mock("") + "]"} {
		f.post("/work-units", body).refused(422, "#", "expected object")
	}
}

func TestDuplicateKey(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(`,"prompt":"again"`)).refused(400, "#/prompt", "comes twice")
	f.post("/work-units", mock(`,"payload":{"a":{"b":1,"b":2}}`)).refused(400, "#/payload/a/b", "comes twice")
	f.post("/work-units", mock(`,"payload":{"a":1,"\u0061":2}`)).refused(400, "#/payload/a", "comes twice")
	f.submit(mock(`,"payload":{"a":1,"A":2}`)) // two keys of the caller's own
}

func TestKeysOfAnotherCase(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(`,"Queue":"a","queue":"b"`)).refused(422, "#/Queue", "no field")
	f.post("/work-units", `{"backend":"mock","Prompt":"x"}`).refused(422, "#/Prompt", "no field")
}

func TestNULCharacters(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", `{"backend":"mock","prompt":"a\u0000b"}`).refused(400, "#/prompt", "NUL")
	f.post("/work-units", mock(`,"payload":{"list":["ok","\u0000"]}`)).refused(400, "#/payload/list/1", "NUL")
	f.post("/work-units", mock(`,"labels":{"a\u0000":"b"}`)).refused(400, "#/labels/a\x00", "NUL")
	f.post("/work-units", "{\"backend\":\"mock\",\"prompt\":\"a\x00b\"}").refused(400, "#/prompt", "not JSON")
}

func TestLoneSurrogates(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, half := range []string{`\ud800`, `\udfff`, `\ud800x`, `\ude00\ud83d`} {
		f.post("/work-units", mock(`,"payload":{"text":"`+half+`"}`)).refused(400, "#/payload/text", "surrogate")
	}
	f.submit(mock(`,"payload":{"text":"\ud83d\ude00"}`))
}

func TestInvalidUTF8(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(`,"payload":{"text":"`+"\xff"+`"}`)).refused(400, "#/payload/text", "UTF-8")
}

func TestBodyIsTooDeepOrHasTooManyNames(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	if p := f.post("/work-units", mock(`,"payload":{"a":`+deep+`}`)).is(400); !bytes.Contains(p.body, []byte("nested deeper")) {
		t.Errorf("%.300s", p.body)
	}
	var names strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&names, `,"%x":1`, i)
	}
	f.MaxBody = 10 << 20
	f.post("/work-units", mock(`,"payload":{`+names.String()[1:]+`}`)).refused(400, "#", "names")
}

func TestNumbersThatNoProgramCanHold(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(`,"payload":{"n":1e400}`)).refused(400, "#/payload/n", "out of range")
	f.submit(mock(`,"payload":{"n":12345678901234567890}`))
}

func TestBodyOverTheCap(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	body := mock(`,"payload":{"text":"` + strings.Repeat("x", int(f.MaxBody)) + `"}`)
	f.post("/work-units", body).refused(413, "", "larger than 1048576 bytes")
	// Most callers send everything before they look for an answer.
	f.raw(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, 40<<20, strings.Repeat(" ", 40<<20)), false).refused(413, "", "larger than")
	f.raw(head+"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", false).refused(413, "", "larger than")
	fits := mock(`,"payload":{"text":"` + strings.Repeat("x", int(f.MaxBody)-200) + `"}`)
	f.submit(fits)
}

func TestBodyWithoutEnd(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	r, w := io.Pipe()
	defer r.Close()
	go func() {
		for {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
				return
			}
		}
	}()
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.url+"/work-units", r)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	(&answer{t, resp.StatusCode, resp.Header, text}).refused(413, "", "larger than")
}

// raw sends bytes as they are and returns the answer's status.
func (f *front) raw(text string, closeAfter bool) *answer {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		f.t.Fatal(err)
	}
	if closeAfter {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			f.t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return &answer{f.t, resp.StatusCode, resp.Header, body}
}

const head = "POST /work-units HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"

func TestContentLengthLies(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.raw(head+"Content-Length: 900\r\n\r\n"+mock(""), true).refused(400, "", "shorter than announced")
	f.raw(head+"Content-Length: 99999999999\r\n\r\n"+mock(""), true).refused(413, "", "larger than")
	f.raw(head+"Content-Length: 10\r\n\r\n"+mock(""), true).refused(400, "#/backend", "not JSON")
	f.raw(head+"Transfer-Encoding: chunked\r\n\r\nffff\r\n"+mock(""), true).refused(400, "", "cut off")
}

func TestSlowBodyIsBounded(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.bodies.Time = 100 * time.Millisecond
	f.raw(head+"Content-Length: 900\r\n\r\n"+mock(""), false).refused(408, "", "did not arrive")
}

func TestCompressedBody(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	var body bytes.Buffer
	zip := gzip.NewWriter(&body)
	_, _ = io.WriteString(zip, mock(""))
	_ = zip.Close()
	f.post("/work-units", body.String(), "Content-Encoding", "gzip").refused(415, "", "Content-Encoding")
	f.submit(mock(""), "Content-Encoding", "identity")
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, kind := range []string{"text/plain", "multipart/form-data; boundary=x", "application/xml", "application/json; charset=latin1", ";"} {
		f.do("POST", "/work-units", mock(""), "Content-Type", kind).refused(415, "", "body must be")
	}
	for _, kind := range []string{
		"", "application/json", "application/json; charset=UTF-8", "application/vnd.x+json", "application/x-www-form-urlencoded",
	} {
		f.do("POST", "/work-units", mock(""), "Content-Type", kind).is(202)
	}
}
