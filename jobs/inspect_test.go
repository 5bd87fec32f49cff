package jobs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/work"
)

// Lines are looked at in blocks, on several processors: what is found, and what
// is written, stands in the order of the lines.
func TestLinesAreLookedAtInTheirOrder(t *testing.T) {
	t.Parallel()
	s := newSubmitter(t, "")
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		var lines []string
		var good, wrong []int
		for i := range 1 + r.IntN(5*lookAtOnce) {
			id, text := fmt.Sprint("c", i), strings.Repeat("x", r.IntN(100))
			switch r.IntN(40) {
			case 0:
				text = strings.Repeat("long ", lookAtBytes/5) // a block of its own
			case 1, 2, 3:
				id = fmt.Sprint("c", r.IntN(i+1)) // mostly there already
			case 4:
				id = ""
			}
			lines = append(lines, fmt.Sprintf(`{"custom_id":%q,"backend":"mock","prompt":%q}`, id, "Do "+text))
		}
		seen := map[string]bool{}
		for i, line := range lines {
			var u struct {
				CustomID string `json:"custom_id"`
			}
			if err := json.Unmarshal([]byte(line), &u); err != nil {
				t.Fatal(err)
			}
			if u.CustomID == "" || seen[u.CustomID] {
				wrong = append(wrong, i+1)
				continue
			}
			seen[u.CustomID] = true
			good = append(good, i+1)
		}
		look := inspection{s: s.Submitter, ctx: t.Context(), batch: work.Batch{ID: uuid.New(), Tenant: work.DefaultTenant}, skip: true,
			seen: map[uint64]bool{}}
		var out bytes.Buffer
		var buffer []byte // of the reader, which uses it again
		if err := look.all(&out, nil, func(yield func(source.Line, error) bool) {
			for i, line := range lines {
				if buffer = append(buffer[:0], line...); !yield(source.Line{Text: buffer, Next: source.Place{Line: i + 1}}, nil) {
					return
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		var written, refused []int
		last := ""
		for _, p := range look.problems {
			refused = append(refused, p.Line)
		}
		rows := bufio.NewScanner(&out)
		rows.Buffer(nil, 1<<20)
		for rows.Scan() {
			var row struct {
				filledUnit
				ID string
			}
			if err := json.Unmarshal(rows.Bytes(), &row); err != nil {
				t.Fatal(err)
			}
			var given struct{ Prompt string }
			if err := json.Unmarshal([]byte(lines[row.Line-1]), &given); err != nil || given.Prompt != row.Prompt {
				t.Fatalf("line %d has become %.100q", row.Line, row.Prompt)
			}
			if row.ID <= last { // units are let go in the order of their ids
				t.Fatalf("line %d has the id %s, after %s", row.Line, row.ID, last)
			}
			written, last = append(written, row.Line), row.ID
		}
		wrong = wrong[:min(len(wrong), work.MaxBatchProblems)]
		if look.count != len(good) || !slices.Equal(written, good) || !slices.Equal(refused, wrong) {
			t.Fatalf("seed %d, %d lines: written %v, want %v; refused %v, want %v", seed, len(lines), written, good, refused, wrong)
		}
	}
}
