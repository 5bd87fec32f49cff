package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// conformance is one case that every backend is put through: what the unit
// asks, what the model does, and what must come of it.
type conformance struct {
	name   string
	prompt string
	asks   func(t *testing.T, req *backend.Request)
	does   []action
	stops  error // the caller ends the run at the first words, for this reason
	// needs is what a backend must be able to do; one that cannot ends as
	// without says.
	needs         work.Capability
	want, without outcome
	// hides names a backend whose program says nothing of it: the run succeeds.
	hides string
	// byHand: only a fake can be made to do it.
	byHand bool
	check  func(t *testing.T, s stage, req backend.Request, got backendtest.Run)
}

// outcome is what a run comes to.
type outcome struct {
	class  work.Class            // "": success, or a run that the caller ended
	on     map[string]work.Class // where it is another, by kind of stage
	words  string
	output string
	kept   bool // the output begins as half does
}

// quiet is how long an agent may be silent in the case about silence, once it
// has said a word; real ones take their time between words.
const quiet, realQuiet = 3 * time.Second, 15 * time.Second

// half is what a model says before something happens to it: enough to be shown
// while it comes.
var half = counting(900)

// counting is a text of about that length that repeats nothing: some clients
// stop a model that does.
func counting(size int) string {
	var text strings.Builder
	for n := 0; text.Len() < size; n++ {
		fmt.Fprintf(&text, "this is %d, ", n*n)
	}
	return text.String() + "the end"
}

func conformances() []conformance {
	fails := func(status int, words string) []action { return []action{{status: status, words: words}} }
	failed := func(class work.Class) outcome { return outcome{class: class} }
	done := outcome{output: "done"}
	denied := outcome{class: work.ClassToolDenied, on: map[string]work.Class{asMock: ""}}
	call := func(says string, words ...string) action { return action{says: says, echoes: words} }
	city := func(req *backend.Request) { req.OutputSchema = json.RawMessage(backendtest.CitySchema) }
	noSchema := outcome{class: work.ClassInvalidRequest, words: "output_schema"}
	long := counting(1 << 20)
	plain := func(name, prompt string) conformance {
		return conformance{name: "a prompt that " + name, prompt: prompt, check: promptIsPlain}
	}
	return []conformance{
		{name: "an answer", does: []action{{thinks: "let me see", says: "done"}}, want: done, check: wantReasoning},
		{name: "a long line", does: []action{{says: long}}, want: outcome{output: long}},
		{name: "a tool call", does: []action{call("I look", "one"), {says: "done"}}, want: done, needs: work.CanTools, without: denied, check: wantResults("one")},
		{name: "tool calls one after the other", does: []action{call("I look", "one"), call("and again", "two"), {says: "done"}},
			want: done, needs: work.CanTools, without: denied, check: wantResults("one", "two")},
		{name: "parallel tool calls", does: []action{call("I look", "one", "two"), {says: "done"}},
			want: done, needs: work.CanTools, without: denied, check: wantResults("one", "two")},

		{name: "a cut stream", does: []action{{says: half, ends: endsEarly}}, want: outcome{class: work.ClassInfra, kept: true}},
		{name: "silence", does: []action{{says: half, ends: silent}}, want: outcome{class: work.ClassHang, kept: true},
			asks: func(_ *testing.T, req *backend.Request) {
				req.StartupTimeout, req.IdleTimeout = backendtest.RunLimit, quiet
			}},
		{name: "rubbish", does: []action{{ends: garbled}}, want: outcome{class: work.ClassInfra, on: map[string]work.Class{asAgent: work.ClassCrash}}},
		{name: "death in the middle", does: []action{{says: half, ends: breaks}}, byHand: true,
			want: outcome{class: work.ClassInfra, on: map[string]work.Class{asAgent: work.ClassCrash, asMock: work.ClassCrash}, kept: true}},
		{name: "401", does: fails(401, "invalid x-api-key"), want: failed(work.ClassAuth)},
		{name: "402", does: fails(402, "Your credit balance is too low"), want: failed(work.ClassBilling)},
		{name: "404, an unknown model", does: fails(404, "model: no-such-model was not found"), want: failed(work.ClassInvalidRequest)},
		{name: "413, too long a prompt", does: fails(413, "prompt is too long: 250000 tokens > 200000 maximum"), want: failed(work.ClassContextTooLong)},
		{name: "429", does: []action{{status: 429, words: "too many requests", resets: 600 * time.Second}}, want: failed(work.ClassRateLimit), check: wantReset},
		{name: "500", does: fails(500, "oh"), want: failed(work.ClassInfra)},
		{name: "529", does: fails(529, "Overloaded"), want: failed(work.ClassRateLimit)},
		{name: "a refusal", does: []action{{ends: declines}}, want: failed(work.ClassRefusal)},
		{name: "an answer of the longest length", does: []action{{says: half, ends: tooLong}}, want: outcome{class: work.ClassInvalidRequest, kept: true}, hides: "gemini"},

		{name: "cancel", does: []action{{says: half, ends: silent}}, stops: work.ErrCancelled, want: outcome{kept: true}},
		{name: "timeout", does: []action{{says: half, ends: silent}}, stops: work.ErrTimeout, want: outcome{class: work.ClassTimeout, kept: true}},
		{name: "shutdown", does: []action{{says: half, ends: silent}}, stops: work.ErrShutdown, want: outcome{kept: true}},
		{name: "a lost lease", does: []action{{says: half, ends: silent}}, stops: work.ErrFenced, want: outcome{kept: true}},
		{name: "resume", does: []action{{says: half, ends: silent}}, stops: work.ErrShutdown, want: outcome{kept: true},
			needs: work.CanResume, without: outcome{kept: true}, check: goesOn},

		plain("names a file", "@/etc/hostname"),
		plain("names a file in the middle", "look at @/etc/hostname now"),
		plain("begins with a slash", "/cost"),
		plain("begins with a dash", "-p --help"),
		plain("is 720 kB long", strings.Repeat("word ", 144_000)+"end"),

		{name: "a text file", asks: attaches("note.txt", []byte("the word is heliotrope")), needs: work.CanFiles,
			check: func(t *testing.T, s stage, _ backend.Request, got backendtest.Run) {
				if !strings.Contains(s.heard(got), "heliotrope") {
					t.Errorf("the model heard %.300q", s.heard(got))
				}
			}},
		{name: "an image", asks: attaches("dot.png", pixel()), needs: work.CanImages, check: fileIsGiven("image", work.CanImages, "dot.png")},
		{name: "a PDF", asks: attaches("paper.pdf", []byte("%PDF-1.4\n1 0 obj\n<< >>\nendobj\n%%EOF\n")), needs: work.CanPDFs,
			check: fileIsGiven("document", work.CanPDFs, "paper.pdf")},

		{name: "an answer that fits output_schema", asks: func(_ *testing.T, r *backend.Request) { city(r) }, does: []action{{fits: goodCity}},
			want: outcome{output: goodCity}, needs: work.CanSchema, without: noSchema},
		{name: "an answer that fits when asked again", asks: func(_ *testing.T, r *backend.Request) { city(r) }, does: []action{{fits: `{"city":"Ulm"}`}, {fits: goodCity}},
			want: outcome{output: goodCity}, needs: work.CanSchema, without: noSchema},
		{name: "an answer that never fits", asks: func(_ *testing.T, r *backend.Request) { city(r) }, does: []action{{fits: `{"city":"Ulm"}`}, {fits: `{"town":"Ulm"}`}},
			want: failed(work.ClassSchemaInvalid), needs: work.CanSchema, without: noSchema},

		{name: "an answer that is asked for once more", does: []action{{says: "first answer"}}, want: outcome{output: "first answer"}, check: mends},

		{name: "fewer turns than max_turns", asks: func(_ *testing.T, r *backend.Request) { r.MaxTurns = 3 }, does: []action{{says: "done"}}, want: done, needs: work.CanTurns},
		{name: "max_turns", asks: func(_ *testing.T, r *backend.Request) { r.MaxTurns = 2 }, needs: work.CanTools,
			does: []action{call("one", "1"), call("two", "2"), call("three", "3"), call("four", "4"), {says: "done"}},
			want: outcome{class: work.ClassMaxTurns, words: "max_turns (2)"}, without: outcome{class: work.ClassToolDenied, on: map[string]work.Class{asMock: work.ClassMaxTurns}}},
		{name: "max_cost_usd", asks: func(_ *testing.T, r *backend.Request) { r.MaxCostUSD = new(0.0001) }, prompt: strings.Repeat("word ", 20_000), needs: work.CanMaxCost,
			does: []action{call("one", "1"), call("two", "2"), {says: "done"}},
			want: failed(work.ClassMaxCost), without: outcome{class: work.ClassInvalidRequest, words: "max_cost_usd"}},
	}
}

// Every case on every backend passes, or is refused for a capability that the
// backend does not claim to have.
func TestConformance(t *testing.T) { conform(t, stages()) }

// As TestConformance, with the real programs that are here.
func TestRealConformance(t *testing.T) { conform(t, realStages()) }

func conform(t *testing.T, stages []stage) {
	t.Helper()
	for _, c := range conformances() {
		for _, s := range stages {
			if s.kind == asReal && c.byHand {
				continue
			}
			t.Run(c.name+"/"+s.title(), func(t *testing.T) {
				t.Parallel()
				c.run(t, s.open(t))
			})
		}
	}
}

// refusedBy names the capability that keeps a backend from a case, "" when it
// passes.
func (c conformance) refusedBy(name string) work.Capability {
	if c.needs == "" || backend.Can(name, c.needs) {
		return ""
	}
	return c.needs
}

func (c conformance) run(t *testing.T, s stage) {
	req := backendtest.NewRequest(t, c.prompt)
	if c.prompt == "" {
		req.Prompt = "do it"
	}
	if s.kind == asReal {
		req.IdleTimeout = 2 * time.Minute
	}
	if c.asks != nil {
		c.asks(t, &req)
	}
	if s.kind == asReal && req.IdleTimeout == quiet {
		req.IdleTimeout = realQuiet
	}
	asked := req.Prompt
	s.play(t, &req, c.does)
	got := c.try(t, s, req)
	req.Prompt = asked
	want := c.want
	if c.refusedBy(s.name) != "" {
		want = c.without
	}
	if c.hides == s.name {
		want = outcome{kept: true}
	}
	wantOutcome(t, got, s, want, c.stops)
	wantShape(t, got, s, req, c.stops)
	if c.check != nil {
		c.check(t, s, req, got)
	}
}

// try runs the request, and ends it at the model's first words when the caller
// is to.
func (c conformance) try(t *testing.T, s stage, req backend.Request) backendtest.Run {
	t.Helper()
	if c.stops == nil {
		return backendtest.Execute(t.Context(), t, s.b, req)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	steps := transcript.NewWriter(func(step transcript.Step) {
		if step.Type == transcript.Action {
			cancel(c.stops)
		}
	}, nil)
	started := time.Now()
	result, err := s.b.Execute(ctx, req, steps)
	if err != nil {
		t.Errorf("Execute: %v", err)
	}
	backendtest.WantNoProcess(t, req)
	return backendtest.Run{Result: result, Took: time.Since(started), Steps: steps.Steps()}
}

func wantOutcome(t *testing.T, got backendtest.Run, s stage, want outcome, stops error) {
	t.Helper()
	class, other := want.on[s.kind]
	if !other {
		class = want.class
	}
	switch {
	case class != "":
		got.WantFailure(t, class, want.words)
	case stops != nil:
		if got.Success || got.Error != nil {
			t.Errorf("success %v, error %v of a run that its caller ended", got.Success, got.Error)
		}
	case !got.Success || got.Error != nil:
		t.Fatalf("success %v, error %v", got.Success, got.Error)
	}
	if want.output != "" && got.Output != want.output {
		t.Errorf("output %.300q, want %.300q", got.Output, want.output)
	}
	// The real clients tell of an answer when it is whole.
	untold := s.kind == asReal && (class == work.ClassInfra || class == work.ClassInvalidRequest)
	if want.kept && s.kind != asMock && !untold && (got.Output == "" || !strings.HasPrefix(half, strings.TrimSpace(got.Output))) {
		t.Errorf("what was said so far is lost: output %.300q", got.Output)
	}
}

// wantShape sees to what holds of every run of every backend.
func wantShape(t *testing.T, got backendtest.Run, s stage, req backend.Request, stops error) {
	t.Helper()
	m := got.Metadata
	if got.Success == (got.Error != nil) && stops == nil {
		t.Errorf("success %v and error %v", got.Success, got.Error)
	}
	if got.Error != nil && got.Error.Message == "" {
		t.Error("a failure without a message")
	}
	if refused := m.NumTurns == 0 && got.Error != nil; !refused && (m.SessionID != "") != (backend.Can(s.name, work.CanResume) || s.kind == asMock) {
		t.Errorf("session %q", m.SessionID)
	}
	if got.Success {
		if m.Model == "" || m.NumTurns < 1 || (m.Usage.OutputTokens == 0) != (s.kind == asMock) || m.Usage.InputTokens < 0 {
			t.Errorf("metadata %+v", m)
		}
		if (m.TotalCostUSD != nil) != backend.Can(s.name, work.CanCost) || got.CostIncomplete {
			t.Errorf("cost %v, incomplete %v", m.TotalCostUSD, got.CostIncomplete)
		}
		wantAnswerLast(t, got, s.kind == asReal && s.name == "claude" && req.OutputSchema != nil)
	}
	if stops != nil && backend.Can(s.name, work.CanCost) && s.kind != asMock && m.TotalCostUSD == nil && !got.CostIncomplete {
		t.Error("a run that was ended has neither a cost nor the mark that it is not known")
	}
	wantPairs(t, got)
}

// wantAnswerLast: the transcript ends with the answer; a real client may tell
// what was thought only afterwards, and Claude Code answers by a call.
func wantAnswerLast(t *testing.T, got backendtest.Run, byCall bool) {
	t.Helper()
	steps := slices.DeleteFunc(slices.Clone(got.Steps), func(s transcript.Step) bool { return s.Type == transcript.Reasoning })
	if len(steps) == 0 || steps[len(steps)-1].Type != transcript.Action && !byCall {
		t.Error("the transcript does not end with the answer")
	}
}

// wantPairs: every call has one result that comes after it, and no result is
// without a call. Numbers have no gaps.
func wantPairs(t *testing.T, got backendtest.Run) {
	t.Helper()
	open, closed := map[string]string{}, map[string]bool{}
	for n, step := range got.Steps {
		if step.Number != n+1 {
			t.Errorf("step %d has the number %d", n+1, step.Number)
		}
		for _, c := range step.Content {
			if c.Type != transcript.ToolCall {
				continue
			}
			if _, twice := open[c.ID]; twice || c.ID == "" || c.Name == "" || closed[c.ID] {
				t.Errorf("call %+v", c)
			}
			open[c.ID] = c.Name
		}
		if step.Type == transcript.ToolResult {
			name, called := open[step.CallID]
			if !called || step.Name != "" && step.Name != name {
				t.Errorf("a result of no call: %+v", step)
			}
			delete(open, step.CallID)
			closed[step.CallID] = true
		}
	}
	if len(open) > 0 {
		t.Errorf("calls without a result: %v", open)
	}
}

func wantReasoning(t *testing.T, s stage, _ backend.Request, got backendtest.Run) {
	if s.kind == asAPI || s.kind == asReal {
		got.WantStep(t, transcript.Reasoning, "let me see")
	}
}

func wantResults(words ...string) func(*testing.T, stage, backend.Request, backendtest.Run) {
	return func(t *testing.T, s stage, _ backend.Request, got backendtest.Run) {
		if !backend.Can(s.name, work.CanTools) {
			return
		}
		results := got.Texts(transcript.ToolResult)
		for n := range results {
			results[n] = strings.TrimSpace(results[n])
		}
		slices.Sort(results)
		if !slices.Equal(results, words) || got.Metadata.NumTurns < 1 {
			t.Errorf("results %q after %d turns", results, got.Metadata.NumTurns)
		}
	}
}

// wantReset: the end of a limit is known, where there is somebody to tell it.
func wantReset(t *testing.T, s stage, _ backend.Request, got backendtest.Run) {
	if s.kind == asMock || s.kind == asReal && s.name != "opencode" && s.name != "gemini" {
		return
	}
	if left := time.Until(got.Error.ResetAt); left < 8*time.Minute || left > 11*time.Minute {
		t.Errorf("the limit ends in %v", left)
	}
}

// goesOn: the next run has the session of the first, where the backend can.
func goesOn(t *testing.T, s stage, req backend.Request, first backendtest.Run) {
	s.keepSession(t, req, first.Metadata.SessionID)
	if s.model != nil {
		s.model.Forget()
	}
	req.Resume, req.Attempt, req.SessionID, req.Prompt, req.Payload = true, 2, first.Metadata.SessionID, "go on", nil
	s.play(t, &req, []action{{says: "done"}})
	if s.kind == asAgent { // whose session may not need the prompt once more
		script := backendtest.Script(agentScript(s.name, req, []action{{says: "done"}})...) + "\n"
		if err := os.WriteFile(filepath.Join(req.Home, "fakecli-next"), []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := backendtest.Execute(t.Context(), t, s.b, req)
	wantOutcome(t, got, s, outcome{output: "done"}, nil)
	wantShape(t, got, s, req, nil)
	if !backend.Can(s.name, work.CanResume) {
		if s.model != nil && len(s.model.Requests()[0].Messages) != 1 {
			t.Errorf("a backend that has no sessions sent %+v", s.model.Requests()[0].Messages)
		}
		return
	}
	if got.Metadata.SessionID != first.Metadata.SessionID {
		t.Errorf("session %q after %q", got.Metadata.SessionID, first.Metadata.SessionID)
	}
	if s.kind == asReal {
		if last := s.model.Requests()[len(s.model.Requests())-1]; !strings.Contains(string(last.Body), "do it") {
			t.Error("the session does not have the first prompt")
		}
	}
}

// mends asks for a better answer in the session of the first.
func mends(t *testing.T, s stage, req backend.Request, first backendtest.Run) {
	const words = "It must be better."
	s.keepSession(t, req, first.Metadata.SessionID)
	if s.model != nil {
		s.model.Forget()
	}
	req, ok := req.Again(first.Result, words)
	if !ok {
		t.Fatal("nothing is left for another answer")
	}
	s.play(t, &req, []action{{says: "done"}})
	if s.kind == asAgent {
		script := backendtest.Script(agentScript(s.name, req, []action{{says: "done"}})...) + "\n"
		if err := os.WriteFile(filepath.Join(req.Home, "fakecli-next"), []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := backendtest.Execute(t.Context(), t, s.b, req)
	wantOutcome(t, got, s, outcome{output: "done"}, nil)
	if s.kind == asAPI || s.kind == asReal {
		last := s.model.Requests()[0]
		for _, r := range s.model.Requests() {
			if !r.Side {
				last = r
			}
		}
		if body := string(last.Body); !strings.Contains(body, "first answer") || !strings.Contains(body, words) {
			t.Errorf("the model was asked %.2000s", body)
		}
	}
	if backend.Can(s.name, work.CanResume) && got.Metadata.SessionID != first.Metadata.SessionID {
		t.Errorf("session %q after %q", got.Metadata.SessionID, first.Metadata.SessionID)
	}
	whole := got.After(first.Result)
	if whole.Metadata.NumTurns != first.Metadata.NumTurns+got.Metadata.NumTurns || first.Metadata.TotalCostUSD != nil && whole.Metadata.TotalCostUSD == nil {
		t.Errorf("together %+v", whole.Metadata)
	}
}

// promptIsPlain: the model reads what was written and nothing else.
func promptIsPlain(t *testing.T, s stage, req backend.Request, got backendtest.Run) {
	heard := s.heard(got)
	host, err := os.ReadFile("/etc/hostname")
	if name := strings.TrimSpace(string(host)); err == nil && len(name) > 3 && strings.Contains(heard, name) {
		t.Error("the file was read")
	}
	switch s.kind {
	case asMock:
		if !strings.Contains(heard, fmt.Sprintf("%d characters", len(req.Prompt))) {
			t.Errorf("it saw %.200q", heard)
		}
	case asAPI:
		if heard != req.Prompt {
			t.Errorf("the model heard %.200q", heard)
		}
	default:
		if !strings.HasSuffix(strings.TrimSpace(heard), req.Prompt) || len(heard) > len(req.Prompt)+1000 {
			t.Errorf("the model heard %.200q, %d bytes", heard, len(heard))
		}
	}
}

func attaches(name string, data []byte) func(*testing.T, *backend.Request) {
	return func(t *testing.T, req *backend.Request) { backendtest.Attach(t, req, name, data) }
}

func pixel() []byte {
	data, err := base64.StdEncoding.DecodeString(backendtest.OnePixel)
	if err != nil {
		panic(err)
	}
	return data
}

// fileIsGiven: the model sees the file itself; without the capability it gets
// its name and has to open it.
func fileIsGiven(kind string, can work.Capability, name string) func(*testing.T, stage, backend.Request, backendtest.Run) {
	return func(t *testing.T, s stage, req backend.Request, got backendtest.Run) {
		switch {
		case s.kind == asMock:
		case !backend.Can(s.name, can):
			if !strings.Contains(s.heard(got), filepath.Join("files", name)) || s.given(got, kind) {
				t.Errorf("the model heard %.300q", s.heard(got))
			}
		default:
			if s.kind == asAgent { // it tells when asked
				req.Prompt = backendtest.Script("init", "attached", "result done")
				got = backendtest.Execute(t.Context(), t, s.b, req)
			}
			if !s.given(got, kind) {
				t.Errorf("the model was not given the %s: %+v", kind, got.Steps)
			}
		}
	}
}
