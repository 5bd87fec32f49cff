package backend

import (
	"context"
	"encoding/json"
	"net/url"
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
		return Result{}, err
	}
	defer unit.leave()
	u := openCodeUnit{cliUnit: unit, o: o, schema: schema}
	if u.config, err = u.configure(); err != nil {
		return Result{}, err
	}
	prompt, images, failure := plainPrompt(req, unit.home.files, true)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	u.findSession()
	u.images = images
	return u.mended(ctx, withSchema(prompt, req), func(req Request, prompt string) (Result, bool, error) {
		u.req = req
		result, misfit, err := u.once(ctx, prompt)
		u.images = nil // the session has them
		return result, misfit, err
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

func (u openCodeUnit) once(ctx context.Context, prompt string) (Result, bool, error) {
	told := newOpenCodeTold(u.req, u.schema, u.steps)
	told.remember = u.remember
	result, err := u.run(ctx, agent{
		command: process.Command{Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt)},
		// It does not hear SIGINT.
		ladder: process.Ladder{Interrupt: time.Millisecond, Terminate: process.DefaultLadder.Terminate},
		line:   told.line, check: told.check, result: told.end,
	})
	return result, told.misfit, err
}

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
	if u.o.Config != "" {
		env = append(env, "OPENCODE_CONFIG="+u.o.Config)
	}
	return env
}
