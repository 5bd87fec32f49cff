package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/work"
)

// meanings say what a capability is, for docs/backends.md.
var meanings = map[work.Capability]string{
	work.CanFiles:     "Attached text files reach the model as text.",
	work.CanImages:    "Attached images reach the model as images; otherwise it gets their names and may open them with its tools.",
	work.CanPDFs:      "Attached PDFs reach the model as documents; otherwise it gets their names and may open them with its tools.",
	work.CanTools:     "The model runs commands and writes files in the unit's directory.",
	work.CanResume:    "After a loss, a timeout or a shutdown the next run goes on with the same session; otherwise it begins anew.",
	work.CanSchema:    "`output_schema` is kept: an answer that does not fit is asked for once more, then the unit fails with `schema_invalid`. Otherwise such a unit is refused.",
	work.CanCost:      "What a run costs is known; otherwise its cost is null.",
	work.CanMaxCost:   "`max_cost_usd` is kept; otherwise a unit that has one is refused.",
	work.CanTurns:     "`max_turns` is kept.",
	work.CanRequest:   "A unit may be one call of its API, in `request`: the body goes there unchanged, and the answer comes back as it is.",
	work.CanBatchLane: "`lane` may be `batch` or `auto`: its calls go through the provider's own batches, for half the price.",
}

// description is what a person has to know of a backend beside its
// capabilities, for docs/backends.md.
type description struct {
	what, program, keys, settings string
	// lacks says why a capability is missing.
	lacks map[work.Capability]string
	notes []string
}

const (
	noTools   = "One question, one answer: a call of a tool fails the unit with `tool_denied`."
	noTalks   = "A model API keeps nothing: what was cut off begins anew."
	noPDFs    = "It takes text and images only."
	noAPI     = "It is an agent, not an API."
	noBatches = "It is an agent, and calls its model while it works."
	// byTokens: an account may be a subscription, which the agents do not tell.
	byTokens = "Its cost is that of its tokens by the table of prices (`PIECEWORK_PRICES`), null for a model that is not in it."
)

var descriptions = map[string]description{
	"claude": {
		lacks: map[work.Capability]string{work.CanRequest: noAPI, work.CanBatchLane: noBatches},
		what:  "Claude Code", program: "`claude` (`PIECEWORK_CLAUDE_PATH`)", keys: "`ANTHROPIC_API_KEY` or `CLAUDE_CODE_OAUTH_TOKEN`",
		settings: "`PIECEWORK_CLAUDE_PERMISSION_MODE`, `PIECEWORK_CLAUDE_ALLOWED_TOOLS`, `PIECEWORK_CLAUDE_CONFIG_DIR`",
		notes:    []string{"`output_schema` must have the type `object`; it keeps the schema, the turns and the budget by itself."},
	},
	"codex": {
		what: "Codex", program: "`codex` (`PIECEWORK_CODEX_PATH`)",
		keys:     "`OPENAI_API_KEY` (with `OPENAI_BASE_URL` any server with a Responses API) or `CODEX_API_KEY`",
		settings: "`PIECEWORK_CODEX_SANDBOX`",
		lacks:    map[work.Capability]string{work.CanPDFs: noPDFs, work.CanRequest: noAPI, work.CanBatchLane: noBatches},
		notes:    []string{"`output_schema` must have the type `object`.", byTokens},
	},
	"cursor": {
		what: "the Cursor CLI", program: "`cursor-agent` (`PIECEWORK_CURSOR_PATH`)", keys: "`CURSOR_API_KEY`", settings: "`PIECEWORK_CURSOR_FORCE`",
		lacks: map[work.Capability]string{
			work.CanImages: "It takes text only.", work.CanPDFs: "It takes text only.",
			work.CanMaxCost: "It tells its tokens only at its end.", work.CanRequest: noAPI, work.CanBatchLane: noBatches,
		},
		notes: []string{byTokens, "It follows the program's documentation and was not run against the program itself."},
	},
	"opencode": {
		what: "opencode", program: "`opencode` (`PIECEWORK_OPENCODE_PATH`)",
		keys: "its providers': `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GEMINI_API_KEY`, `OPENROUTER_API_KEY`, `OPENCODE_API_KEY`; " +
			"others by `PIECEWORK_OPENCODE_CONFIG`",
		settings: "`PIECEWORK_OPENCODE_CONFIG`",
		lacks:    map[work.Capability]string{work.CanPDFs: noPDFs, work.CanRequest: noAPI, work.CanBatchLane: noBatches},
		notes: []string{"A model is called PROVIDER/MODEL, such as `anthropic/claude-sonnet-4-5`. Without one the run does not tell which it was.",
			"The cost of a model that it has no price for is null. It never asks for permission: its commands can do anything."},
	},
	"gemini": {
		what: "the Gemini CLI", program: "`gemini` (`PIECEWORK_GEMINI_PATH`)", keys: "`GEMINI_API_KEY`", settings: "`PIECEWORK_GEMINI_APPROVAL_MODE`",
		lacks: map[work.Capability]string{
			work.CanImages: "It takes text only.", work.CanPDFs: "It takes text only.", work.CanRequest: noAPI, work.CanBatchLane: noBatches,
		},
		notes: []string{byTokens, "It edits files and runs no commands, unless `PIECEWORK_GEMINI_APPROVAL_MODE=yolo` lets it run any.", "It does not tell that an answer was cut at its longest length: such an answer counts as whole."},
	},
	"anthropic": {
		what: "Anthropic's Messages API", keys: "`ANTHROPIC_API_KEY`; with `ANTHROPIC_BASE_URL` a gateway, which may need none",
		settings: "`PIECEWORK_ANTHROPIC_MODEL`, `PIECEWORK_ANTHROPIC_MAX_TOKENS`, `PIECEWORK_PRICES`",
		lacks:    map[work.Capability]string{work.CanTools: noTools, work.CanResume: noTalks},
	},
	"openai": {
		what: "OpenAI's API, and every server that speaks like it: Ollama, vLLM, llama.cpp, OpenRouter",
		keys: "`OPENAI_API_KEY`; with `OPENAI_BASE_URL`, such as `http://localhost:11434/v1`, a server that may need none",
		settings: "`PIECEWORK_OPENAI_MODEL`, `PIECEWORK_OPENAI_API` (`chat` or `responses`), " +
			"`PIECEWORK_PRICES`",
		lacks: map[work.Capability]string{work.CanTools: noTools, work.CanResume: noTalks},
	},
	"mock": {
		what: "no model: it counts what is in the payload and the files, and does what `payload.mock` says", keys: "nothing",
		lacks: map[work.Capability]string{
			work.CanImages: "It sees bytes, not pictures.", work.CanPDFs: "It counts pages and reads none.",
			work.CanTools: "Its steps are made up.", work.CanResume: "There is nothing to go on with.",
			work.CanBatchLane: "It answers at once, for nothing.",
		},
		notes: []string{"It makes up no answer that fits `output_schema`: put one into `payload.mock.output`.",
			"Its `sleep` is no silence: `timeout` ends it, `idle_timeout` does not."},
	},
}

// docs/backends.md is made of the tables; `go test ./internal/backend/conformance -update` writes it anew.
func TestBackendsDocument(t *testing.T) {
	t.Parallel()
	var doc strings.Builder
	doc.WriteString("# Backends\n\n<!-- written by the tests of internal/backend -->\n\n" +
		"A unit may change from one backend to another and keeps its result's fields, its error classes and its transcript's\n" +
		"shape. What a backend cannot do has a name, which `GET /backends` shows too.\n\n## What each can do\n\n")
	writeRow(&doc, "", backend.Names)
	writeRow(&doc, "---", slices.Repeat([]string{":-:"}, len(backend.Names)))
	for _, c := range work.Capabilities {
		writeCells(&doc, "`"+string(c)+"`", func(name string) string {
			if backend.Can(name, c) {
				return "✓"
			}
			return "–"
		})
	}
	doc.WriteString("\n")
	for _, c := range work.Capabilities {
		if meanings[c] == "" {
			t.Errorf("%s has no meaning", c)
		}
		fmt.Fprintf(&doc, "- `%s`: %s\n", c, meanings[c])
	}
	doc.WriteString("\n## What each needs, and what it cannot\n")
	for _, name := range backend.Names {
		describe(t, &doc, name)
	}
	doc.WriteString("\n## Conformance\n\nEvery case is run on every backend: the agents faked in their own words, the APIs against a model server of ours,\n" +
		"and the real `claude`, `codex`, `opencode` and `gemini` where they are installed. `.ci/run` installs `claude` and `codex`; elsewhere the others are faked. ✓ passes; a word is the capability for\n" +
		"whose lack the case is refused, or goes on without; \"not told\" is what the program keeps to itself.\n\n")
	writeRow(&doc, "case", backend.Names)
	writeRow(&doc, "---", slices.Repeat([]string{":-:"}, len(backend.Names)))
	for _, c := range conformances() {
		writeCells(&doc, c.name, func(name string) string {
			if c.hides == name {
				return "not told"
			}
			if by := c.refusedBy(name); by != "" {
				return "`" + string(by) + "`"
			}
			return "✓"
		})
	}
	backendtest.CompareGolden(t, "../../../docs/backends.md", []byte(doc.String()))
}

func describe(t *testing.T, doc *strings.Builder, name string) {
	t.Helper()
	d := descriptions[name]
	fmt.Fprintf(doc, "\n### %s\n\n%s.\n\n", name, strings.ToUpper(d.what[:1])+d.what[1:])
	for _, line := range []struct{ what, text string }{{"Program", d.program}, {"Key", d.keys}, {"Settings", d.settings}} {
		if line.text != "" {
			fmt.Fprintf(doc, "- %s: %s.\n", line.what, line.text)
		}
	}
	for _, c := range work.Capabilities {
		why := d.lacks[c]
		if backend.Can(name, c) == (why != "") {
			t.Errorf("%s: %s is both there and missing, or missing without a reason", name, c)
		}
		if why != "" {
			fmt.Fprintf(doc, "- No `%s`: %s\n", c, why)
		}
	}
	for _, note := range d.notes {
		fmt.Fprintf(doc, "- %s\n", note)
	}
}

func writeCells(doc *strings.Builder, first string, cell func(name string) string) {
	cells := make([]string, len(backend.Names))
	for n, name := range backend.Names {
		cells[n] = cell(name)
	}
	writeRow(doc, first, cells)
}

func writeRow(doc *strings.Builder, first string, cells []string) {
	fmt.Fprintf(doc, "| %s | %s |\n", first, strings.Join(cells, " | "))
}
