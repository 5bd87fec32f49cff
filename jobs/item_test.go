package jobs

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/store"
)

// A file of units that wait to be made may have been begun by a process of an
// earlier version, and may be read by one: both read what both write.
func TestUnitsOfTwoVersionsAreRead(t *testing.T) {
	t.Parallel()
	batch, id := uuid.New(), uuid.Must(uuid.NewV7())
	n := store.NewUnit{Unit: work.Unit{ID: id, Tenant: work.DefaultTenant, Title: "a title", BatchID: &batch, CustomID: "new",
		Spec: work.Spec{Backend: "mock", Prompt: "do {it}", Payload: json.RawMessage(`{"it":"so"}`), Labels: json.RawMessage(`{}`), Timeout: 60}}}
	row, err := n.Encoded()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := writeRow(&file, 7, row); err != nil {
		t.Fatal(err)
	}
	var earlier filledUnit
	if err := json.Unmarshal(file.Bytes(), &earlier); err != nil {
		t.Fatal(err)
	}
	if earlier.Line != 7 || earlier.CustomID != "new" || earlier.Title != "a title" || earlier.Prompt != "do {it}" ||
		string(earlier.Payload) != `{"it":"so"}` || earlier.Timeout != 60 {
		t.Errorf("an earlier version reads %+v", earlier)
	}
	earlier.Line, earlier.CustomID = 8, "old"
	old, err := json.Marshal(earlier)
	if err != nil {
		t.Fatal(err)
	}
	file.Write(append(old, '\n'))
	var items []item
	for it, err := range filledUnits(bytes.NewReader(file.Bytes()), source.Place{}) {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, it)
	}
	if len(items) != 2 {
		t.Fatalf("%d units", len(items))
	}
	if it := items[0]; it.line != 7 || it.customID != "new" || it.unit.ID != id || it.unit.Row == nil {
		t.Errorf("a row: %+v", it)
	}
	if it := items[1]; it.line != 8 || it.customID != "old" || it.unit.Row != nil || it.unit.Title != "a title" || it.unit.Prompt != "do {it}" {
		t.Errorf("a unit of an earlier version: %+v", it)
	}
}
