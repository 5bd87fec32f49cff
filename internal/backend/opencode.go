package backend

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// OpenCode runs units with the opencode command-line client. Models are named
// PROVIDER/MODEL. Nothing holds its tools back.
type OpenCode struct {
	CLI
	// Config is an opencode.json of the operator's own, with providers for
	// instance; empty: none.
	Config string
}

// Name is the backend's word.
func (o *OpenCode) Name() string { return "opencode" }

// Available tells whether opencode can be started here.
func (o *OpenCode) Available(ctx context.Context) error {
	_, err := o.Version(ctx)
	return err
}

var openCodeProgram = program{"opencode", "opencode",
	"install it (npm install -g opencode-ai) or set PIECEWORK_OPENCODE_PATH to the program"}

// Version returns what `opencode --version` prints.
func (o *OpenCode) Version(ctx context.Context) (string, error) {
	return o.version(ctx, openCodeProgram)
}

// Settings are what the operator has set.
func (o *OpenCode) Settings() string { return o.settings(o.Config) }

// Execute runs one unit. The request's system prompt stands beside opencode's
// own, as instructions.
func (o *OpenCode) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	schema, failure := schemaOf(req)
	if provider, model, _ := strings.Cut(req.Model, "/"); req.Model != "" && (provider == "" || model == "") {
		failure = work.Fail(work.ClassInvalidRequest, "opencode wants a model as PROVIDER/MODEL, such as anthropic/claude-sonnet-4-5; got "+req.Model)
	}
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	unit, failure, err := o.ready(openCodeProgram, req, steps)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if err != nil {
		return notBegun(), err
	}
	defer unit.leave()
	u := openCodeUnit{cliUnit: unit, o: o, schema: schema}
	if u.config, err = u.configure(); err != nil {
		return notBegun(), err
	}
	prompt, images, failure := plainPrompt(req, unit.home.files, true)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if u.req.MaxCostUSD != nil {
		if failure := u.unpriced(ctx); failure != nil {
			return refuse(failure, req, steps), nil
		}
	}
	u.findSession()
	return u.converse(ctx, exchange{
		prompt: withSchema(prompt, req), after: withSchema(further(req), req),
		holds: func() bool { return true }, // else it would not have been remembered
		once: func(req Request, words string, whole bool) (Result, heard, error) {
			u.req, u.images = req, nil
			if whole {
				u.images = images
			}
			return u.once(ctx, words)
		},
	})
}

// openCodeUnit is one unit on its way through opencode.
type openCodeUnit struct {
	cliUnit
	o      *OpenCode
	schema *jsonschema.Schema
	config string
	images []string
}

// openCodePlugin has the client tell on stdout that it lives, which session it
// works in, and that it waits to call the model again, which it otherwise does
// for ever without a word.
const openCodePlugin = `const say = (line) => process.stdout.write(JSON.stringify(line) + "\n")
export const Piecework = async () => {
  say({ type: "ready" })
  return {
    event: async ({ event }) => {
      if (event.type === "session.status")
        say({ type: "status", sessionID: event.properties.sessionID, status: event.properties.status })
    },
  }
}
`

// openCodeLock makes the client believe that it has installed its own package
// for plugins, which it would fetch from npm into every new home.
const openCodeLock = `{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}`

// configure writes what the client reads from its home, and returns its
// configuration, which goes by the environment.
func (u openCodeUnit) configure() (string, error) {
	own := filepath.Join(".config", "opencode")
	if err := makeDir(filepath.Join(u.home.dir, own, "node_modules")); err != nil {
		return "", err
	}
	if _, err := u.home.put(filepath.Join(own, "package-lock.json"), openCodeLock); err != nil {
		return "", err
	}
	// By file: what goes by the environment, every command of the agent sees.
	servers, err := json.Marshal(map[string]any{"mcp": serversAs(u.req, openCodeServer)})
	if err != nil {
		return "", err
	}
	if _, err := u.home.put(filepath.Join(own, "opencode.json"), string(servers)); err != nil {
		return "", err
	}
	plugin, err := u.home.put("opencode-plugin.js", openCodePlugin)
	if err != nil {
		return "", err
	}
	config := map[string]any{
		"autoupdate": false, "share": "disabled", "snapshot": false,
		// What a sub-agent does, and what it costs, is not told.
		"permission": map[string]string{"task": "deny"},
		"plugin":     []string{(&url.URL{Scheme: "file", Path: plugin}).String()},
		"provider":   u.providers(),
	}
	if u.req.SystemPrompt != "" {
		path, err := u.home.put("instructions.md", u.req.SystemPrompt)
		if err != nil {
			return "", err
		}
		config["instructions"] = []string{path}
	}
	encoded, err := json.Marshal(config)
	return string(encoded), err
}

// providers tells the client of other addresses, and of the unit's model: it
// knows those only that were there when it was built.
func (u openCodeUnit) providers() map[string]any {
	all := map[string]map[string]any{}
	of := func(provider string) map[string]any {
		if all[provider] == nil {
			all[provider] = map[string]any{}
		}
		return all[provider]
	}
	base := func(provider, url string) {
		if url != "" {
			of(provider)["options"] = map[string]string{"baseURL": url}
		}
	}
	base("openai", u.cli.setting("OPENAI_BASE_URL"))
	if url := u.cli.setting("ANTHROPIC_BASE_URL"); url != "" { // without the version, by its maker's custom
		base("anthropic", strings.TrimSuffix(url, "/")+"/v1")
	}
	if provider, model, named := strings.Cut(u.req.Model, "/"); named {
		of(provider)["models"] = map[string]any{model: map[string]any{}}
	}
	providers := map[string]any{}
	for name, provider := range all {
		providers[name] = provider
	}
	return providers
}

func (u openCodeUnit) once(ctx context.Context, prompt string) (Result, heard, error) {
	told := newOpenCodeTold(u.req, u.schema, u.steps)
	told.remember, told.prices = u.remember, u.cli.Prices
	result, err := u.run(ctx, agent{
		command: process.Command{
			Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt),
			// It ends without waiting for a pipe to take what it said last.
			StdoutFile: filepath.Join(u.home.tmp, "stdout.jsonl"),
		},
		// It does not hear SIGINT.
		ladder: process.Ladder{Interrupt: time.Millisecond, Terminate: process.DefaultLadder.Terminate},
		line:   told.line, check: told.check, result: told.end, missed: &told.missed,
	})
	return result, told.heard, err
}

// unpriced refuses a budget for a model of which neither our table nor the
// client's own has a price.
func (u openCodeUnit) unpriced(ctx context.Context) *work.Failure {
	provider, model, _ := strings.Cut(u.req.Model, "/")
	failure := u.cli.Prices.unpriced(u.req, model)
	if failure == nil || model == "" {
		return failure
	}
	ctx, cancel := context.WithTimeout(ctx, priceLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, u.path, "models", provider, "--verbose")
	cmd.Env, cmd.WaitDelay = u.env(), time.Second
	left, err := process.EnterDir(cmd, u.dir(), u.req.OpenedDir)
	if err != nil {
		return work.Fail(work.ClassInfra, err.Error())
	}
	defer left()
	catalogue, err := cmd.Output()
	if ctx.Err() != nil {
		return cmp.Or(interrupted(context.Cause(ctx)), failure)
	}
	_, entry, found := bytes.Cut(catalogue, []byte(u.req.Model+"\n"))
	var known struct {
		Cost struct{ Input, Output float64 }
	}
	if err != nil || !found || json.NewDecoder(bytes.NewReader(entry)).Decode(&known) != nil || known.Cost.Input+known.Cost.Output <= 0 {
		return noPrice(u.req.Model)
	}
	return nil
}

// priceLimit is how long the client may take to show its prices: it starts
// slowly, and the machine may be busy.
const priceLimit = time.Minute

// args is the command line. A session without a title would have the model
// asked for one.
func (u openCodeUnit) args() []string {
	args := []string{"run", "--format=json", "--thinking", "--auto", "--title=" + u.req.UnitID.String()}
	if u.req.Model != "" {
		args = append(args, "--model="+u.req.Model)
	}
	if u.req.Resume {
		args = append(args, "--session="+u.req.SessionID)
	}
	for _, image := range u.images {
		args = append(args, "--file="+image)
	}
	return args
}

func (u openCodeUnit) env() []string {
	env := append(append(baseEnv(u.home.dir), u.cli.Env...), "TMPDIR="+u.home.tmp, "OPENCODE_CONFIG_CONTENT="+u.config,
		"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		"OPENCODE_DISABLE_DEFAULT_PLUGINS=1", "OPENCODE_DISABLE_SHARE=1")
	if !u.req.readsProject() {
		env = append(env, "OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_DISABLE_CLAUDE_CODE=1")
	}
	if u.o.Config != "" {
		env = append(env, "OPENCODE_CONFIG="+u.o.Config)
	}
	return env
}
