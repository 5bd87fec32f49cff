package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/klauspost/compress/gzip"

	"piecework/api/query"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

type transcriptInput struct {
	query.ByID
	Format   string `query:"format" enum:"json,jsonl,text" doc:"json when left out"`
	Encoding string `header:"Accept-Encoding" doc:"With gzip, JSON is sent as it is stored"`
}

// getTranscript sends a run's steps: one JSON array, one step a line, or text
// for people. The stored gzip goes out undecoded to whoever takes it. However long
// it is, a piece is read, and sent, before the next.
func (a *API) getTranscript(ctx context.Context, in *transcriptInput) (*huma.StreamResponse, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	stored, err := a.Store.Transcripts.Open(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	switch in.Format {
	case "text":
		return a.sendSteps("text/plain; charset=utf-8", stored, func(out *bufio.Writer, step []byte) error {
			var s transcript.Step
			if err := json.Unmarshal(step, &s); err != nil {
				return err
			}
			s.Plain(out)
			return nil
		}), nil
	case "jsonl":
		return a.sendSteps("application/jsonl", stored, func(out *bufio.Writer, step []byte) error {
			_, _ = out.Write(step) // the next call tells of an error
			return out.WriteByte('\n')
		}), nil
	}
	if takesGzip(in.Encoding) {
		return a.sendTranscript("application/json", "gzip", func(w io.Writer) error {
			_, err := io.Copy(w, stored)
			return err
		}), nil
	}
	zip, err := gzip.NewReader(stored)
	if err != nil {
		return nil, err
	}
	return a.sendTranscript("application/json", "", func(w io.Writer) error {
		_, err := io.Copy(w, io.LimitReader(zip, transcript.MaxInflated))
		return err
	}), nil
}

// takesGzip reads an Accept-Encoding header: gzip or *, and not at q=0.
func takesGzip(accept string) bool {
	any := false
	for part := range strings.SplitSeq(strings.ToLower(accept), ",") {
		coding, params, _ := strings.Cut(part, ";")
		q, given := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q=")
		weight, err := strconv.ParseFloat(q, 64)
		takes := !given || err == nil && weight > 0
		switch strings.TrimSpace(coding) {
		case "gzip":
			return takes
		case "*":
			any = takes
		}
	}
	return any
}

// sendRoom is how much of an answer is gathered before it is sent.
const sendRoom = 64 << 10

func (a *API) sendSteps(kind string, stored io.Reader, write func(out *bufio.Writer, step []byte) error) *huma.StreamResponse {
	return a.sendTranscript(kind, "", func(w io.Writer) error {
		out := bufio.NewWriterSize(w, sendRoom)
		if err := transcript.Scan(stored, func(step []byte) error { return write(out, step) }); err != nil {
			return err
		}
		return out.Flush()
	})
}

func (a *API) sendTranscript(kind, encoding string, write func(io.Writer) error) *huma.StreamResponse {
	stream := a.sendStream(kind, write)
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Vary", "Accept-Encoding")
		if encoding != "" {
			ctx.SetHeader("Content-Encoding", encoding)
		}
		stream.Body(ctx)
	}}
}
