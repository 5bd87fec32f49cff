// Package opencode runs units with opencode.
//
//	opencode.go   command line, environment, configuration
//	events.go     its events as steps of the transcript
//	result.go     its result, and its failures by class
package opencode

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

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func mcpServer(s backend.MCPServer) map[string]any {
	if s.URL != "" {
		return map[string]any{"type": "remote", "url": s.URL, "headers": s.Headers, "enabled": true}
	}
	return map[string]any{"type": "local", "command": append([]string{s.Command}, s.Args...), "environment": s.Env, "enabled": true}
}

// Backend runs units with the opencode command-line client. Models are named
// PROVIDER/MODEL. Nothing holds its tools back.
type Backend struct {
	cli.Options
	// Config is an opencode.json of the operator's own, with providers for
	// instance; empty: none.
	Config string
}

// Name is the backend's word.
func (o *Backend) Name() string { return "opencode" }

// Available tells whether opencode can be started here.
func (o *Backend) Available(ctx context.Context) error {
	_, err := o.Version(ctx)
	return err
}

var program = cli.Program{Name: "opencode", Command: "opencode",
	Remedy: "install it (npm install -g opencode-ai) or set PIECEWORK_OPENCODE_PATH to the program"}

// Version returns what `opencode --version` prints.
func (o *Backend) Version(ctx context.Context) (string, error) {
	return o.ProgramVersion(ctx, program)
}

// Settings are what the operator has set.
func (o *Backend) Settings() string { return o.Describe(o.Config) }

// Execute runs one unit. The request's system prompt stands beside opencode's
// own, as instructions.
func (o *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	defer steps.Close()
	schema, failure := cli.SchemaOf(req)
	if provider, model, _ := strings.Cut(req.Model, "/"); req.Model != "" && (provider == "" || model == "") {
		failure = work.Fail(work.ClassInvalidRequest,
			"opencode wants a model as PROVIDER/MODEL, such as anthropic/claude-sonnet-4-5; got "+req.Model)
	}
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	base, failure, err := o.Prepare(program, req, steps)
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	if err != nil {
		return cli.NotStarted(), err
	}
	defer base.Cleanup()
	u := unit{Unit: base, o: o, schema: schema}
	if u.config, err = u.configure(); err != nil {
		return cli.NotStarted(), err
	}
	prompt, images, failure := cli.PlainPrompt(req, base.Home.Files, true)
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	if u.Req.MaxCostUSD != nil {
		if failure := u.unpriced(ctx); failure != nil {
			return cli.Refused(failure, req, steps), nil
		}
	}
	u.FindSession()
	return u.Converse(ctx, cli.Conversation{
		Prompt: cli.WithSchema(prompt, req), FollowUp: cli.WithSchema(cli.FollowUp(req), req),
		HasPrompt: func() bool { return true }, // else it would not have been remembered
		Once: func(req backend.Request, words string, whole bool) (backend.Result, cli.Findings, error) {
			u.Req, u.images = req, nil
			if whole {
				u.images = images
			}
			return u.once(ctx, words)
		},
	})
}

// unit is one unit on its way through opencode.
type unit struct {
	cli.Unit
	o      *Backend
	schema *jsonschema.Schema
	config string
	images []string
}

// plugin has the client tell on stdout that it lives, which session it
// works in, and that it waits to call the model again, which it otherwise does
// for ever without a word.
const plugin = `const say = (line) => process.stdout.write(JSON.stringify(line) + "\n")
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

// packageLock makes the client believe that it has installed its own package
// for plugins, which it would fetch from npm into every new home.
const packageLock = `{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}`

// configure writes what the client reads from its home, and returns its
// configuration, which goes by the environment.
func (u unit) configure() (string, error) {
	own := filepath.Join(".config", "opencode")
	if err := cli.MakeDir(filepath.Join(u.Home.Dir, own, "node_modules")); err != nil {
		return "", err
	}
	if _, err := u.Home.WriteFile(filepath.Join(own, "package-lock.json"), packageLock); err != nil {
		return "", err
	}
	// By file: what goes by the environment, every command of the agent sees.
	servers, err := json.Marshal(map[string]any{"mcp": cli.MCPServersAs(u.Req, mcpServer)})
	if err != nil {
		return "", err
	}
	if _, err := u.Home.WriteFile(filepath.Join(own, "opencode.json"), string(servers)); err != nil {
		return "", err
	}
	plugin, err := u.Home.WriteFile("opencode-plugin.js", plugin)
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
	if u.Req.SystemPrompt != "" {
		path, err := u.Home.WriteFile("instructions.md", u.Req.SystemPrompt)
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
func (u unit) providers() map[string]any {
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
	base("openai", u.Options.Variable("OPENAI_BASE_URL"))
	if url := u.Options.Variable("ANTHROPIC_BASE_URL"); url != "" { // without the version, by its maker's custom
		base("anthropic", strings.TrimSuffix(url, "/")+"/v1")
	}
	if provider, model, named := strings.Cut(u.Req.Model, "/"); named {
		of(provider)["models"] = map[string]any{model: map[string]any{}}
	}
	providers := map[string]any{}
	for name, provider := range all {
		providers[name] = provider
	}
	return providers
}

func (u unit) once(ctx context.Context, prompt string) (backend.Result, cli.Findings, error) {
	parser := newParser(u.Output(u.schema))
	parser.saveSession = u.SaveSession
	return cli.Run(ctx, u.Unit, cli.Invocation{
		Command: process.Command{
			Args: u.args(), Env: u.env(), Stdin: strings.NewReader(prompt),
			// It ends without waiting for a pipe to take what it said last.
			StdoutFile: filepath.Join(u.Home.Tmp, "stdout.jsonl"),
		},
		// It ignores SIGINT.
		StopPolicy: process.StopPolicy{Interrupt: time.Millisecond, Terminate: process.DefaultStopPolicy.Terminate},
	}, parser)
}

// unpriced refuses a budget for a model of which neither our table nor the
// client's own has a price.
func (u unit) unpriced(ctx context.Context) *work.Failure {
	provider, model, _ := strings.Cut(u.Req.Model, "/")
	failure := u.Options.Prices.CheckBudget(u.Req, model)
	if failure == nil || model == "" {
		return failure
	}
	ctx, cancel := context.WithTimeout(ctx, priceLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, u.Path, "models", provider, "--verbose")
	cmd.Env, cmd.WaitDelay = u.env(), time.Second
	left, err := process.EnterDir(cmd, u.Dir(), u.Req.OpenedDir)
	if err != nil {
		return work.Fail(work.ClassInfra, err.Error())
	}
	defer left()
	catalogue, err := cmd.Output()
	if ctx.Err() != nil {
		return cmp.Or(backend.Interrupted(context.Cause(ctx)), failure)
	}
	_, entry, found := bytes.Cut(catalogue, []byte(u.Req.Model+"\n"))
	var known struct {
		Cost struct{ Input, Output float64 }
	}
	if err != nil || !found || json.NewDecoder(bytes.NewReader(entry)).Decode(&known) != nil || known.Cost.Input+known.Cost.Output <= 0 {
		return backend.UnknownPrice(u.Req.Model)
	}
	return nil
}

// priceLimit is how long the client may take to show its prices: it starts
// slowly, and the machine may be busy.
const priceLimit = time.Minute

// args is the command line. A session without a title would have the model
// asked for one.
func (u unit) args() []string {
	args := []string{"run", "--format=json", "--thinking", "--auto", "--title=" + u.Req.UnitID.String()}
	if u.Req.Model != "" {
		args = append(args, "--model="+u.Req.Model)
	}
	if u.Req.Resume {
		args = append(args, "--session="+u.Req.SessionID)
	}
	for _, image := range u.images {
		args = append(args, "--file="+image)
	}
	return args
}

func (u unit) env() []string {
	env := append(append(cli.BaseEnv(u.Home.Dir), u.Options.Env...), "TMPDIR="+u.Home.Tmp, "OPENCODE_CONFIG_CONTENT="+u.config,
		"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		"OPENCODE_DISABLE_DEFAULT_PLUGINS=1", "OPENCODE_DISABLE_SHARE=1")
	if !u.Req.ReadsProject() {
		env = append(env, "OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_DISABLE_CLAUDE_CODE=1")
	}
	if u.o.Config != "" {
		env = append(env, "OPENCODE_CONFIG="+u.o.Config)
	}
	return env
}
