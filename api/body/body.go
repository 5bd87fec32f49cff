// Package body reads the bodies of requests, and bounds how long a caller waits for
// the answer once they are there.
//
//	body.go      Reader: JSON, raw bytes, bodies that come slowly
//	budget.go    how many bytes of bodies may be in memory at once
//	pieces.go    a body in pieces of that budget
//	patience.go  no caller waits for an answer for ever
package body

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/internal/strictjson"
	"piecework/internal/work"
)

// Drained is how much of a body over the cap is read and thrown away: most
// callers look for an answer only when they have sent everything.
const Drained = 64 << 20

func (a *Reader) Read(w http.ResponseWriter, r *http.Request) ([]byte, *problem.Problem) {
	if problem := CheckHeaders(r.Header); problem != nil {
		return nil, problem
	}
	body, problem := a.readRaw(w, r, a.Max, "; put large inputs into files and name them in file_path")
	if problem != nil {
		return nil, problem
	}
	return body, CheckJSON(body)
}

// Hold lets what is read of a body count against the budget of all, until
// release is called.
func (a *Reader) Hold(r *http.Request) (release func()) {
	h := &held{ReadCloser: r.Body, budget: a.Budget}
	r.Body = h
	return h.release
}

// readRaw reads a body of any kind, of so many bytes at most; hint follows when
// it is too large.
func (a *Reader) readRaw(w http.ResponseWriter, r *http.Request, most int64, hint string) ([]byte, *problem.Problem) {
	tooBig := problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes%s", most, hint))
	if r.ContentLength > most {
		if r.Header.Get("Expect") == "" { // who asks first has not begun
			_, _ = io.CopyN(io.Discard, uncounted(r.Body), Drained)
		}
		return nil, tooBig
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if TooLarge(err) {
		_, _ = io.CopyN(io.Discard, uncounted(r.Body), Drained)
		return nil, tooBig
	}
	return body, a.Unread(err)
}

// TooLarge reports whether a body was larger than it may be.
func TooLarge(err error) bool {
	var over *http.MaxBytesError
	return errors.As(err, &over)
}

// Unread says why a body could not be read, nil when it could.
func (a *Reader) Unread(err error) *problem.Problem {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoRoom):
		return ErrNoRoom.Again()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem.New(http.StatusRequestTimeout, fmt.Sprintf("the body did not arrive within %s", a.Time))
	}
	return problem.New(http.StatusBadRequest, "the body could not be read to its end: it is shorter than announced, or cut off")
}

// CheckHeaders refuses what is said to be anything but JSON.
func CheckHeaders(h http.Header) *problem.Problem {
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return problem.New(http.StatusUnsupportedMediaType, "send the body without Content-Encoding")
	}
	given := h.Get("Content-Type")
	if given == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") && kind != "application/x-www-form-urlencoded" {
		return problem.New(http.StatusUnsupportedMediaType, "the body must be JSON: send Content-Type: application/json")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return problem.New(http.StatusUnsupportedMediaType, "the body must be UTF-8: JSON has no other character set")
	}
	return nil
}

// CheckJSON returns a Problem that points at what is wrong with body.
func CheckJSON(body []byte) *problem.Problem {
	if wrong := strictjson.Check(body); wrong != nil {
		return NotJSON(wrong)
	}
	return nil
}

// Bad is what is wrong at a pointer into a body.
func Bad(pointer, detail string) *problem.Problem {
	return NotJSON(&work.Invalid{Pointer: "#" + pointer, Detail: detail})
}

// NotJSON is what is wrong with a body that should be JSON.
func NotJSON(wrong *work.Invalid) *problem.Problem {
	return problem.Fields(http.StatusBadRequest, fault(*wrong))
}

func fault(wrong work.Invalid) problem.Field {
	return problem.Field{Pointer: wrong.Pointer, Detail: wrong.Detail}
}

// ManyFields is a problem about count fields, some of which are shown.
func ManyFields(status int, shown []problem.Field, count int) *problem.Problem {
	slices.SortStableFunc(shown, func(a, b problem.Field) int { return cmp.Compare(a.Pointer, b.Pointer) })
	p := problem.Fields(status, shown...)
	if count > len(shown) {
		p.Detail += fmt.Sprintf(" (the first %d of %d errors are shown)", len(shown), count)
	}
	return p
}

// UploadTime is how long an upload may take, however steadily it comes.
const UploadTime = time.Hour

// Patient reads a body for as long as something comes: each piece may take
// what a whole JSON body may.
func (a *Reader) Patient(c echo.Context) io.Reader {
	HoldAnswer(c.Request().Context())
	control, end := http.NewResponseController(c.Response()), time.Now().Add(UploadTime)
	return readerFunc(func(p []byte) (int, error) {
		next := time.Now().Add(a.Time)
		if next.After(end) {
			next = end
		}
		_ = control.SetReadDeadline(next) // a test's recorder has none
		return c.Request().Body.Read(p)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Reader reads the bodies of requests: not more of each than it may have, and not
// more of all at once than there is room for.
type Reader struct {
	Max    int64         // bytes of a JSON body
	Time   time.Duration // that a body may take to arrive
	Budget *Budget
}

// New reads JSON bodies of so many bytes at most.
func New(maxBody int64, arrive time.Duration) *Reader {
	return &Reader{Max: maxBody, Time: arrive, Budget: NewBudget(max(bodiesInFlight*maxBody, leastInFlight))}
}
