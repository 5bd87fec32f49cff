package model

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestModelEvents(t *testing.T) {
	t.Parallel()
	long := `{"long":"` + strings.Repeat("x", 3*lineBuffer) + `"}`
	stream := ": ping\n\nevent: a\r\ndata: {\"n\":1}\r\n\r\ndata:{\"n\":\ndata: 2}\n\nid: 7\n\ndata: " + long + "\n\ndata: {\"n\":3}\n\ndata: {\"not\":\"ended\"}\n"
	want := []string{`{"n":1}`, "{\"n\":\n2}", long, `{"n":3}`}
	for name, body := range map[string]io.Reader{
		"at once": strings.NewReader(stream), "byte by byte": iotest.OneByteReader(strings.NewReader(stream)),
	} {
		var got []string
		err := eachEvent(&http.Response{Body: io.NopCloser(body)}, &Answer{}, func(data []byte) error {
			got = append(got, string(data))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %q", name, err, got)
		}
	}
	endless := io.MultiReader(strings.NewReader("data: "), &io.LimitedReader{R: zeros{}, N: 2 * maxStreamEvent})
	err := eachEvent(&http.Response{Body: io.NopCloser(endless)}, &Answer{}, nil)
	if err == nil || !strings.Contains(err.Error(), "of one event") {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
