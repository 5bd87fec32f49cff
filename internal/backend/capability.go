package backend

import (
	"encoding/json"
	"slices"

	"piecework/internal/work"
)

// capabilities is what each backend can do. What is missing here is refused
// when a unit asks for it, or explained in docs/backends.md.
var capabilities = map[string][]work.Capability{
	"claude":    {work.CanFiles, work.CanImages, work.CanPDFs, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"codex":     {work.CanFiles, work.CanImages, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"cursor":    {work.CanFiles, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanTurns},
	"opencode":  {work.CanFiles, work.CanImages, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"gemini":    {work.CanFiles, work.CanTools, work.CanResume, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns},
	"anthropic": {work.CanFiles, work.CanImages, work.CanPDFs, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns, work.CanRequest, work.CanBatchLane},
	"openai":    {work.CanFiles, work.CanImages, work.CanPDFs, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns, work.CanRequest, work.CanBatchLane},
	"mock":      {work.CanFiles, work.CanSchema, work.CanCost, work.CanMaxCost, work.CanTurns, work.CanRequest},
}

// Capabilities lists what a backend can do; none for a name that is no backend.
func Capabilities(name string) []work.Capability {
	return append([]work.Capability{}, capabilities[name]...)
}

// Can tells whether a backend can do what a unit asks of it.
func Can(name string, c work.Capability) bool { return slices.Contains(capabilities[name], c) }

// WritesFiles tells whether the runs of a backend can leave files in their
// directory.
func WritesFiles(name string) bool { return name == "mock" || Can(name, work.CanTools) }

// UsesDirectory tells whether a run of a backend with this payload needs a
// directory of its own. Making and removing one is a fifth of what a short call of
// a model API takes.
func UsesDirectory(name string, payload json.RawMessage) bool {
	if name == "mock" {
		var asked struct {
			Mock struct {
				Files map[string]string `json:"files"`
			} `json:"mock"`
		}
		return json.Unmarshal(payload, &asked) == nil && len(asked.Mock.Files) > 0
	}
	return Can(name, work.CanTools)
}

// ReadsPayload tells whether a backend looks at the payload itself. To the
// others only what the prompt takes from it is known.
func ReadsPayload(name string) bool { return name == "mock" }

// endpoints are where the calls of a unit that has a request may go.
var endpoints = map[string][]string{
	"anthropic": {work.EndpointMessages, work.EndpointChat},
	"openai":    {work.EndpointChat, work.EndpointResponses, work.EndpointEmbeddings},
	"mock":      {work.EndpointChat, work.EndpointResponses, work.EndpointEmbeddings, work.EndpointMessages},
}

// Endpoints lists where a backend takes the request of a unit; none when it
// takes no requests.
func Endpoints(name string) []string { return append([]string{}, endpoints[name]...) }

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
