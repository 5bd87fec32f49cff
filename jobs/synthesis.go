package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"

	"github.com/google/uuid"

	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// synthesis is the unit that sums a batch up.
type synthesis struct {
	Unit            strictjson.Object `json:"unit" doc:"As POST /work-units takes it; what the batch's unit says counts where it says nothing, but for the prompt and the payload. The results are attached as results.jsonl, and the payload has total, succeeded and failed"`
	DespiteFailures bool              `json:"despite_failures,omitempty" doc:"Also when units failed, if any succeeded"`
}

// checkSynthesis looks at the unit that sums the batch up, as it will be.
func (s *Submitter) checkSynthesis(ctx context.Context, n *store.NewBatch) error {
	if len(n.Synthesis) == 0 {
		return nil
	}
	var sum synthesis
	if err := json.Unmarshal(n.Synthesis, &sum); err != nil {
		return err
	}
	body, err := sum.body(n.Unit, work.BatchCounts{})
	if err != nil {
		return err
	}
	_, wrong, err := s.unitFrom(ctx, body)
	if len(wrong) > 0 {
		return work.Within("#/synthesis/unit", &work.InvalidFields{Fields: wrong})
	}
	return err
}

// body is the body of the synthesis: what the batch's unit says about where and
// how it runs counts for it too.
func (s synthesis) body(unit json.RawMessage, c work.BatchCounts) (json.RawMessage, error) {
	own := map[string]json.RawMessage{}
	if err := json.Unmarshal(strictjson.OrEmpty(json.RawMessage(s.Unit)), &own); err != nil {
		return nil, work.Invalidf("#/synthesis/unit", "must be an object")
	}
	under := map[string]json.RawMessage{}
	if err := json.Unmarshal(strictjson.OrEmpty(unit), &under); err != nil {
		return nil, work.Invalidf("#/unit", "must be an object")
	}
	for _, name := range []string{"prompt", "payload", "files", "output_schema", "accept", "custom_id"} {
		delete(under, name)
	}
	if own["backend"] != nil || own["worker"] != nil {
		delete(under, "backend")
		delete(under, "worker")
		delete(under, "model")
	}
	figures, err := json.Marshal(map[string]int{"total": c.Total, "succeeded": c.Succeeded, "failed": c.Total - c.Succeeded})
	if err != nil {
		return nil, err
	}
	switch given := own["payload"]; {
	case len(given) == 0:
		own["payload"] = figures
	case given[0] == '{':
		if own["payload"], err = strictjson.Overlay(figures, given); err != nil {
			return nil, err
		}
	}
	base, err := json.Marshal(under)
	if err != nil {
		return nil, err
	}
	return strictjson.Merge(base, own)
}

// synthesize makes the unit that sums a batch up and is given its results as a
// file. File and unit are named after the batch, so whoever does it again after
// a death makes nothing twice.
func (e *Enumerator) synthesize(ctx context.Context, process uuid.UUID, f *store.Enumeration) error {
	var s synthesis
	if err := json.Unmarshal(f.Synthesis, &s); err != nil {
		return fmt.Errorf("read the synthesis of batch %s: %w", f.ID, err)
	}
	name := fmt.Sprintf("synthesis %s %d", f.ID, f.Round)
	file := work.File{ID: uuid.NewSHA1(f.ID, []byte(name)), Tenant: f.Tenant, Name: "results.jsonl", MediaType: "application/jsonl"}
	if _, err := e.Store.Files.Get(ctx, f.Tenant, file.ID); err != nil {
		if err := e.Store.Files.ExpectBlobs(ctx, []uuid.UUID{file.ID}); err != nil {
			return err
		}
		stored, err := e.spool(ctx, file.ID, false, func(w io.Writer) error {
			return WriteResults(w, func(g func(store.BatchResult) error) error {
				return e.Store.Batches.Results(ctx, f.ID, work.FinalStates, g)
			})
		})
		if err != nil {
			return err
		}
		file.Size, file.SHA256 = stored.Size, stored.SHA256
		if _, err := e.Store.Files.Add(ctx, file); err != nil {
			return err
		}
	}
	body, err := s.body(f.Unit, f.Counts)
	if err != nil {
		return err
	}
	n, wrong, err := e.unitFrom(ctx, body)
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("the synthesis of batch %s: %s %s", f.ID, wrong[0].Pointer, wrong[0].Detail)
	}
	if err != nil {
		return err
	}
	hash := sha256.Sum256([]byte(name))
	n.IdempotencyKey, n.BodyHash, n.Files = name, hash[:], append(n.Files, file.ID.String())
	u, err := e.Store.Batches.Synthesize(ctx, f.ID, process, n)
	if err != nil {
		return err
	}
	e.Submitted(ctx, u)
	return nil
}
