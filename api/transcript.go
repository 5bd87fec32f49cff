package api

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/klauspost/compress/gzip"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

type transcriptInput struct {
	ByID
	Format   string `query:"format" enum:"json,jsonl,text" doc:"json when left out"`
	Encoding string `header:"Accept-Encoding" doc:"With gzip, JSON is sent as it is stored"`
}

// getTranscript sends a run's steps: one JSON array, one step a line, or text
// for people. The stored gzip goes out undecoded to whoever takes it.
func (a *API) getTranscript(ctx context.Context, in *transcriptInput) (*huma.StreamResponse, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	blob, err := a.Store.Transcript(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	if in.Format == "" || in.Format == "json" {
		return sendJSON(blob, takesGzip(in.Encoding))
	}
	steps, err := transcript.Decode(blob)
	if err != nil {
		return nil, err
	}
	if in.Format == "text" {
		return send("text/plain; charset=utf-8", func(w io.Writer) error { return transcript.Plain(w, steps) }), nil
	}
	lines, err := transcript.EncodeLines(steps)
	if err != nil {
		return nil, err
	}
	return send("application/jsonl", func(w io.Writer) error { _, err := w.Write(lines); return err }), nil
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

func sendJSON(blob []byte, asStored bool) (*huma.StreamResponse, error) {
	if asStored {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			ctx.SetHeader("Content-Type", "application/json")
			ctx.SetHeader("Content-Encoding", "gzip")
			ctx.SetHeader("Vary", "Accept-Encoding")
			_, _ = ctx.BodyWriter().Write(blob) // the reader has gone away
		}}, nil
	}
	zip, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		return nil, err
	}
	return send("application/json", func(w io.Writer) error {
		_, err := io.Copy(w, io.LimitReader(zip, transcript.MaxInflated))
		return err
	}), nil
}

func send(kind string, write func(io.Writer) error) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", kind)
		ctx.SetHeader("Vary", "Accept-Encoding")
		_ = write(ctx.BodyWriter()) // the answer has begun: there is nobody to tell
	}}
}
