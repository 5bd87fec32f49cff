// Package codex runs units with Codex.
//
//	codex.go     command line, environment, threads
//	events.go    its events as steps of the transcript
//	rollout.go   its own record of a thread, for what the events lack
//	result.go    its result, and its failures by class
package codex

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/transcript"
)

// Backend runs units with the Codex command-line client. It tells tokens and no
// cost.
type Backend struct {
	cli.Options
	// Sandbox is what the model's commands may do: read-only, workspace-write
	// (which is also what empty means) or danger-full-access.
	Sandbox string
}

// Name is the backend's word.
func (c *Backend) Name() string { return "codex" }

// Available tells whether Codex can be started here.
func (c *Backend) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

var program = cli.Program{Name: "codex", Command: "codex",
	Remedy: "install it (npm install -g @openai/codex) or set PIECEWORK_CODEX_PATH to the program"}

// Version returns what `codex --version` prints.
func (c *Backend) Version(ctx context.Context) (string, error) { return c.ProgramVersion(ctx, program) }

// Settings are what the operator has set.
func (c *Backend) Settings() string { return c.Describe(c.Sandbox) }

// Execute runs one unit. The request's system prompt becomes the developer's
// instructions, beside Codex's own.
func (c *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	defer steps.Close()
	schema, failure := cli.ObjectSchema("codex", req.OutputSchema)
	if failure == nil {
		failure = c.Prices.CheckBudget(req, req.Model)
	}
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	base, failure, err := c.Prepare(program, req, steps)
	if failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	if err != nil {
		return cli.NotStarted(), err
	}
	defer base.Cleanup()
	home, err := newHome(base.Home, req)
	if err != nil {
		return cli.NotStarted(), err
	}
	u := unit{Unit: base, c: c, home: home, schema: schema}
	if u.prompt, u.images, failure = cli.PlainPrompt(req, home.Files, true); failure != nil {
		return cli.Refused(failure, req, steps), nil
	}
	return u.execute(ctx)
}

// unit is one unit on its way through Codex.
type unit struct {
	cli.Unit
	c      *Backend
	home   home
	schema *jsonschema.Schema
	prompt string
	images []string
}

// execute runs the client. It does not look itself whether an answer fits the
// schema.
func (u unit) execute(ctx context.Context) (backend.Result, error) {
	if u.Req.Resume && !u.findThread() {
		u.Note(cli.RestartNote)
	}
	return u.Converse(ctx, cli.Conversation{
		Prompt: u.prompt, FollowUp: cli.FollowUp(u.Req),
		Once: func(req backend.Request, words string, whole bool) (backend.Result, cli.Findings, error) {
			u := u
			u.Req, u.prompt = req, words
			if !whole {
				u.images = nil
			}
			return u.once(ctx)
		},
		HasPrompt: func() bool { return hasPrompt(u.home.rollout(u.Req.SessionID), u.Req.Prompt) },
	})
}

// findThread finds the thread to go on with. The caller may not know its id: a
// client chooses it, and a run that was lost could not tell. But the home is
// the unit's own, so its newest thread is the one.
func (u *unit) findThread() bool {
	u.Req.Resume = false
	path := u.home.rollout(u.Req.SessionID)
	if path == "" {
		path = u.home.rollout("")
	}
	if thread := threadOf(path); thread != "" {
		u.Req.Resume, u.Req.SessionID = true, thread
	}
	return u.Req.Resume
}

func (u unit) once(ctx context.Context) (backend.Result, cli.Findings, error) {
	parser := newParser(u.home, u.Output(u.schema))
	parser.unconfined = u.c.Sandbox == "danger-full-access"
	return cli.Run(ctx, u.Unit, cli.Invocation{
		Command: process.Command{Args: u.args(), Env: u.env(), Stdin: strings.NewReader(u.prompt)},
	}, parser)
}

// args is the command line. The client's options come before the subcommand
// that resumes, which knows few of them; a resumed thread remembers none.
func (u unit) args() []string {
	args := []string{
		"exec", "--json", "--skip-git-repo-check", "--sandbox=" + cmp.Or(u.c.Sandbox, "workspace-write"),
		// What calls home, or would do work that the run's own thread does not show.
		"--disable", "plugins", "--disable", "apps", "--disable", "goals", "--disable", "multi_agent",
		"-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false",
		// A prompt's word with a dollar sign would be replaced by a skill's text.
		"-c", "skills.bundled.enabled=false",
		// Commands do not see variables that are called like secrets.
		"-c", "shell_environment_policy.ignore_default_excludes=false",
	}
	if u.Req.ReadsProject() {
		args = append(args, "-c", "projects="+"{"+cli.TOMLString(u.Dir())+`={trust_level="trusted"}}`)
	} else {
		args = append(args, "-c", "project_doc_max_bytes=0") // its .codex is read where it is trusted only
	}
	args = append(args, u.provider()...)
	if u.Req.Model != "" {
		args = append(args, "--model="+u.Req.Model)
	}
	if u.schema != nil {
		args = append(args, "--output-schema="+u.home.schema)
	}
	if u.Req.Resume {
		args = append(args, "resume")
	}
	for _, image := range u.images {
		args = append(args, "--image="+image)
	}
	if u.Req.Resume {
		args = append(args, u.Req.SessionID)
	}
	return append(args, "-")
}

// provider names the API when the environment has a key or an address for it;
// else the client uses the login it has.
func (u unit) provider() []string {
	key, url := u.Options.Variable("OPENAI_API_KEY"), u.Options.Variable("OPENAI_BASE_URL")
	if key == "" && url == "" {
		return nil
	}
	keyed := ""
	if key != "" {
		keyed = `env_key="OPENAI_API_KEY",`
	}
	return []string{"-c", "model_provider=piecework", "-c", fmt.Sprintf(
		`model_providers.piecework={name="piecework",base_url=%s,wire_api="responses",%srequest_max_retries=2,stream_max_retries=2}`,
		cli.TOMLString(cmp.Or(url, "https://api.openai.com/v1")), keyed)}
}

// env is the child's whole environment. The client does not trust a home below
// the directory for temporary files, and its sandbox would fail there.
func (u unit) env() []string {
	return append(append(cli.BaseEnv(u.home.Dir), u.Options.Env...), "CODEX_HOME="+u.home.config, "TMPDIR="+u.home.Tmp)
}

// home is a home with the client's own directory in it.
type home struct {
	cli.Home
	config, schema string
}

func newHome(in cli.Home, req backend.Request) (home, error) {
	h := home{Home: in, config: filepath.Join(in.Dir, ".codex")}
	if err := cli.MakeDir(h.config); err != nil {
		return h, err
	}
	settings := ""
	if req.SystemPrompt != "" { // by file: one argument holds 128 KiB, and shows in ps
		settings = "developer_instructions = " + cli.TOMLString(req.SystemPrompt) + "\n"
	}
	settings += mcpServers(req.MCPServers)
	if _, err := in.WriteFile(filepath.Join(".codex", "config.toml"), settings); err != nil {
		return h, err
	}
	var err error
	if len(req.OutputSchema) > 0 {
		h.schema, err = in.WriteFile("output-schema.json", string(req.OutputSchema))
	}
	return h, err
}

// mcpServers are the servers as tables of Codex's configuration.
func mcpServers(servers []backend.MCPServer) string {
	var toml strings.Builder
	pairs := func(name string, values map[string]string) {
		if len(values) == 0 {
			return
		}
		var all []string
		for _, key := range slices.Sorted(maps.Keys(values)) {
			all = append(all, cli.TOMLString(key)+" = "+cli.TOMLString(values[key]))
		}
		fmt.Fprintf(&toml, "%s = { %s }\n", name, strings.Join(all, ", "))
	}
	for _, s := range servers {
		fmt.Fprintf(&toml, "\n[mcp_servers.%s]\n", s.Name)
		if s.URL != "" {
			fmt.Fprintf(&toml, "url = %s\n", cli.TOMLString(s.URL))
			pairs("http_headers", s.Headers)
			continue
		}
		fmt.Fprintf(&toml, "command = %s\n", cli.TOMLString(s.Command))
		if len(s.Args) > 0 {
			args := make([]string, len(s.Args))
			for i, arg := range s.Args {
				args[i] = cli.TOMLString(arg)
			}
			fmt.Fprintf(&toml, "args = [%s]\n", strings.Join(args, ", "))
		}
		pairs("env", s.Env)
	}
	return toml.String()
}
