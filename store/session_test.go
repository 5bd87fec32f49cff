package store

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// session is what a worker process of one version says to Postgres while it takes
// two units through their runs: the first succeeds, the second is to run again.
type session struct {
	Process uuid.UUID    `json:"process"`
	Units   [2]uuid.UUID `json:"units"`
	Begin   []said       `json:"begin"` // accept, register, claim, a sign of life, steps
	End     []said       `json:"end"`   // a sign of life, more steps, finish
}

type said struct {
	Query string  `json:"query"`
	Args  []value `json:"args"`
}

type value struct{ any }

func (v value) MarshalJSON() ([]byte, error) {
	if b, ok := v.any.([]byte); ok {
		return json.Marshal(map[string][]byte{"bytes": b})
	}
	return json.Marshal(v.any)
}

func (v *value) UnmarshalJSON(text []byte) error {
	var b struct{ Bytes []byte }
	if strings.HasPrefix(string(text), "{") {
		err := json.Unmarshal(text, &b)
		v.any = b.Bytes
		return err
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if err := decoder.Decode(&v.any); err != nil {
		return err
	}
	if n, ok := v.any.(json.Number); ok {
		v.any = n.String()
	}
	return nil
}

// record takes down the session of this version.
func record(t *testing.T) (s session) {
	t.Helper()
	url := testkit.DB(t, migrate)
	l, tap := newTap(t, url)
	first, second := newUnit(), newUnit()
	s.Units = [2]uuid.UUID{first.ID, second.ID}
	l.process = l.register(time.Hour)
	s.Process = l.process
	var runs []*Claimed
	for _, n := range []NewUnit{first, second} {
		_, _, err := l.Units.Accept(t.Context(), n)
		l.must(err)
		runs = append(runs, l.take(n.ID, l.process))
	}
	l.beat(l.process)
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: runs[0].RunID, LiveStatus: "works", RenderedPrompt: "do it",
		Steps: []transcript.Step{{Number: 1, Rev: 1, Type: transcript.SystemText, Text: "one"}}}))
	s.Begin = noted(tap)
	l.beat(l.process)
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: runs[0].RunID,
		Steps: []transcript.Step{{Number: 2, Rev: 2, Type: transcript.SystemText, Text: "two"}}}))
	cost := 0.25
	blob, err := l.Transcripts.Encode([]transcript.Step{{Number: 1, Rev: 1, Type: transcript.SystemText, Text: "one"}})
	l.must(err)
	l.end(ending(runs[0], work.Succeeded, func(f *Finish) { f.TotalCostUSD, f.Blob, f.Steps, f.Rev = &cost, blob, 1, 2 }), Recorded)
	l.end(ending(runs[1], work.Queued, func(f *Finish) { f.TotalCostUSD, f.Blob = &cost, blob }), Recorded)
	s.End = noted(tap)
	return s
}

func noted(tap *tap) (all []said) {
	for _, s := range tap.hear() {
		one := said{Query: s.query}
		for _, a := range s.args {
			one.Args = append(one.Args, value{a})
		}
		all = append(all, one)
	}
	return all
}

// runThrough runs a statement and reads all its rows.
func runThrough(ctx context.Context, db *sqlx.DB, query string, args []any) error {
	rows, err := db.QueryxContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
	}
	return rows.Err()
}

// replay says it to the newest schema, where processes of this version work too,
// and looks what has become of the units.
func (s session) replay(t *testing.T) {
	t.Helper()
	l := newFixture(t)
	say := func(all []said) {
		t.Helper()
		for _, one := range all {
			args := make([]any, len(one.Args))
			for i, a := range one.Args {
				args[i] = a.any
			}
			if err := runThrough(t.Context(), l.db.DB, one.Query, args); err != nil {
				t.Fatalf("%v\n%s", err, one.Query)
			}
		}
	}
	say(s.Begin)
	if owned := l.beat(s.Process); len(owned) != 2 {
		t.Fatalf("it owns %+v", owned)
	}
	for _, id := range s.Units {
		if u := l.unit(id); u.State != work.Running {
			t.Errorf("a unit is %s", u.State)
		}
	}
	leases, _, err := l.Processes.Leases(t.Context())
	if err != nil || len(leases) != 2 {
		t.Errorf("leases %+v, %v", leases, err)
	}
	if n, err := l.Runs.ExpireLeases(t.Context()); n != 0 || err != nil {
		t.Errorf("%d runs lost, %v", n, err)
	}
	say(s.End)
	first, second := l.unit(s.Units[0]), l.unit(s.Units[1])
	if first.State != work.Succeeded || first.RunCount != 1 || first.FinishedAt == nil || *first.Output != "the answer" {
		t.Errorf("the first: %+v", first)
	}
	var cost float64
	l.must(l.db.Get(&cost, `SELECT cost_usd FROM work_units WHERE id = $1`, first.ID))
	if cost != 0.25 {
		t.Errorf("the first has cost %v", cost)
	}
	if second.State != work.Queued || second.Failures != 1 {
		t.Errorf("the second: %+v", second)
	}
	runs, err := l.Runs.OfUnit(t.Context(), first.ID)
	if err != nil || len(runs) != 1 || runs[0].Status != work.RunSucceeded || !runs[0].HasTranscript {
		t.Errorf("runs %+v, %v", runs, err)
	}
	if c := l.take(second.ID, l.process); c == nil || c.RunCount != 2 {
		t.Errorf("this version goes on with %+v", c)
	}
}

// Worker processes of older versions go on beside the newest schema, with units
// running. testdata/sessions has what they say, by the schema they were built for.
// To keep that of this version, run this test with PIECEWORK_RECORD_SESSION set to
// a file to write.
func TestOlderWorkerProcesses(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/sessions/*.json")
	if err != nil || len(files) < 2 {
		t.Fatalf("sessions %v, error %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s session
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			s.replay(t)
		})
	}
	t.Run("this version", func(t *testing.T) {
		t.Parallel()
		text, err := json.MarshalIndent(record(t), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if path := os.Getenv("PIECEWORK_RECORD_SESSION"); path != "" {
			if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var s session
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		s.replay(t)
	})
}
