package api

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/api/query"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

type resultsInput struct {
	query.ByID
	Format string `query:"format" enum:"jsonl,csv" doc:"jsonl when left out"`
	Status string `query:"status" doc:"One or more final states, separated by commas; all when left out" example:"succeeded"`
	After  string `query:"after" doc:"Only results that come after this unit's"`
	Limit  int    `query:"limit" doc:"So many at most; all when left out" minimum:"1"`
}

// getResults sends the results that there are, in the order in which the units
// were submitted.
func (a *API) getResults(ctx context.Context, in *resultsInput) (*huma.StreamResponse, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	states, err := query.States(in.Status, work.FinalStates)
	if err != nil {
		return nil, err
	}
	if len(states) == 0 {
		states = work.FinalStates
	}
	after, err := query.After(in.After)
	if err != nil {
		return nil, err
	}
	if _, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id); err != nil {
		return nil, err
	}
	each := func(f func(store.BatchResult) error) error {
		return a.Store.Batches.ResultsAfter(ctx, id, states, after, in.Limit, f)
	}
	if in.Format == "csv" {
		return a.sendStream("text/csv; charset=utf-8", func(w io.Writer) error { return writeTable(w, each) }), nil
	}
	return a.sendStream("application/jsonl", func(w io.Writer) error { return jobs.WriteResults(w, each) }), nil
}

// sendStream sends an answer of any length: each piece may take its time, and one
// that fails in the middle is cut off, so that nobody takes it for the whole.
func (a *API) sendStream(kind string, write func(io.Writer) error) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		c := requestOf(ctx.Context())
		ctx.SetHeader("Content-Type", kind)
		if err := write(patientWriter{c.Response(), a.bodies.Time}); err != nil {
			a.Log.Warn("an answer was cut off", "path", c.Request().URL.Path, "err", err)
			panic(http.ErrAbortHandler)
		}
	}}
}

func writeTable(w io.Writer, each jobs.EachResult) error {
	out := csv.NewWriter(w)
	columns := []string{"custom_id", "id", "status", "output", "error_class", "error_message", "backend", "model", "cost_usd",
		"unpriced_runs", "run_count", "started_at", "finished_at"}
	if err := out.Write(columns); err != nil {
		return err
	}
	err := each(func(r store.BatchResult) error {
		row := []string{r.CustomID, r.ID.String(), string(r.State), "", "", "", r.Backend, r.RunModel,
			"", strconv.FormatInt(r.Unpriced, 10), strconv.Itoa(r.RunCount), timeText(r.StartedAt), timeText(r.FinishedAt)}
		if !r.CostUnknown() {
			row[8] = strconv.FormatFloat(r.Known(), 'f', -1, 64)
		}
		if r.Output != nil {
			row[3] = *r.Output
		}
		if r.Error != nil {
			row[4], row[5] = string(r.Error.Class), r.Error.Message
		}
		return out.Write(row)
	})
	out.Flush()
	if err != nil {
		return err
	}
	return out.Error()
}

func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Manifest is what a batch consists of.
type Manifest struct {
	Batch  uuid.UUID        `json:"batch" format:"uuid"`
	Status work.BatchStatus `json:"status"`
	Counts work.BatchCounts `json:"counts"`
	Input  *work.File       `json:"input" doc:"What was submitted; null for files of a directory"`
	Units  []manifestUnit   `json:"units" nullable:"false" doc:"In the order in which they were submitted"`
}

// manifestUnit is one unit of a manifest.
type manifestUnit struct {
	CustomID     string     `json:"custom_id"`
	ID           uuid.UUID  `json:"id"`
	Status       work.State `json:"status"`
	OutputBytes  int        `json:"output_bytes"`
	OutputSHA256 string     `json:"output_sha256,omitempty"`
}

// getManifest sends every unit of a batch with the hash of its output, and the
// hash of what was submitted: whoever has the results can tell that they are
// whole.
func (a *API) getManifest(ctx context.Context, in *query.ByID) (*huma.StreamResponse, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	head := Manifest{Batch: b.ID, Status: b.Status, Counts: b.Counts, Units: []manifestUnit{}}
	if b.InputFile != nil {
		files, err := a.Store.Files.ByID(ctx, b.Tenant, []uuid.UUID{*b.InputFile})
		if err != nil {
			return nil, err
		}
		if f, ok := files[*b.InputFile]; ok {
			head.Input = &f
		}
	}
	text, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	return a.sendStream("application/json", func(w io.Writer) error {
		if _, err := w.Write(text[:len(text)-len("]}")]); err != nil { // units are the last
			return err
		}
		between := ""
		err := a.Store.Batches.Results(ctx, id, work.States, func(r store.BatchResult) error {
			u := manifestUnit{CustomID: r.CustomID, ID: r.ID, Status: r.State}
			if r.Output != nil {
				sum := sha256.Sum256([]byte(*r.Output))
				u.OutputBytes, u.OutputSHA256 = len(*r.Output), hex.EncodeToString(sum[:])
			}
			line, err := json.Marshal(u)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w, "%s\n%s", between, line)
			between = ","
			return err
		})
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, "\n]}\n")
		return err
	}), nil
}
