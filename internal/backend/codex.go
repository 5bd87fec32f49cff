package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Codex runs units with the Codex command-line client. It tells tokens and no
// cost.
type Codex struct {
	CLI
	// Sandbox is what the model's commands may do: read-only, workspace-write
	// (which is also what empty means) or danger-full-access.
	Sandbox string
}

// Name is the backend's word.
func (c *Codex) Name() string { return "codex" }

// Available tells whether Codex can be started here.
func (c *Codex) Available(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

var codexProgram = program{"codex", "codex",
	"install it (npm install -g @openai/codex) or set PIECEWORK_CODEX_PATH to the program"}

// Version returns what `codex --version` prints.
func (c *Codex) Version(ctx context.Context) (string, error) { return c.version(ctx, codexProgram) }

// Settings are what the operator has set.
func (c *Codex) Settings() string { return c.settings(c.Sandbox) }

// Execute runs one unit. The request's system prompt becomes the developer's
// instructions, beside Codex's own.
func (c *Codex) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	defer steps.Close()
	schema, failure := objectSchema("codex", req.OutputSchema)
	if failure == nil {
		failure = c.Prices.unpriced(req, req.Model)
	}
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	unit, failure, err := c.ready(codexProgram, req, steps)
	if failure != nil {
		return refuse(failure, req, steps), nil
	}
	if err != nil {
		return notBegun(), err
	}
	defer unit.leave()
	home, err := makeCodexHome(unit.home, req)
	if err != nil {
		return notBegun(), err
	}
	u := codexUnit{cliUnit: unit, c: c, home: home, schema: schema}
	if u.prompt, u.images, failure = plainPrompt(req, home.files, true); failure != nil {
		return refuse(failure, req, steps), nil
	}
	return u.execute(ctx)
}

// codexUnit is one unit on its way through Codex.
type codexUnit struct {
	cliUnit
	c      *Codex
	home   codexHome
	schema *jsonschema.Schema
	prompt string
	images []string
}

// execute runs the client. It does not look itself whether an answer fits the
// schema.
func (u codexUnit) execute(ctx context.Context) (Result, error) {
	if u.req.Resume && !u.findThread() {
		u.note(fromTheStart)
	}
	return u.converse(ctx, exchange{
		prompt: u.prompt, after: further(u.req), once: func(req Request, words string, whole bool) (Result, heard, error) {
			u := u
			u.req, u.prompt = req, words
			if !whole {
				u.images = nil
			}
			return u.once(ctx)
		},
		holds: func() bool { return holdsPrompt(u.home.rollout(u.req.SessionID), u.req.Prompt) },
	})
}

// findThread finds the thread to go on with. The caller may not know its id: a
// client chooses it, and a run that was lost could not tell. But the home is
// the unit's own, so its newest thread is the one.
func (u *codexUnit) findThread() bool {
	u.req.Resume = false
	path := u.home.rollout(u.req.SessionID)
	if path == "" {
		path = u.home.rollout("")
	}
	if thread := threadOf(path); thread != "" {
		u.req.Resume, u.req.SessionID = true, thread
	}
	return u.req.Resume
}

func (u codexUnit) once(ctx context.Context) (Result, heard, error) {
	told := newCodexTold(u.req, u.schema, u.home, u.steps)
	told.prices, told.unconfined = u.cli.Prices, u.c.Sandbox == "danger-full-access"
	result, err := u.run(ctx, agent{
		command: process.Command{Args: u.args(), Env: u.env(), Stdin: strings.NewReader(u.prompt)},
		line:    told.line, check: told.check, result: told.end, missed: &told.missed,
	})
	return result, told.heard, err
}

// args is the command line. The client's options come before the subcommand
// that resumes, which knows few of them; a resumed thread remembers none.
func (u codexUnit) args() []string {
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
	if u.req.readsProject() {
		args = append(args, "-c", "projects="+"{"+tomlString(u.dir())+`={trust_level="trusted"}}`)
	} else {
		args = append(args, "-c", "project_doc_max_bytes=0") // its .codex is read where it is trusted only
	}
	args = append(args, u.provider()...)
	if u.req.Model != "" {
		args = append(args, "--model="+u.req.Model)
	}
	if u.schema != nil {
		args = append(args, "--output-schema="+u.home.schema)
	}
	if u.req.Resume {
		args = append(args, "resume")
	}
	for _, image := range u.images {
		args = append(args, "--image="+image)
	}
	if u.req.Resume {
		args = append(args, u.req.SessionID)
	}
	return append(args, "-")
}

// provider names the API when the environment has a key or an address for it;
// else the client uses the login it has.
func (u codexUnit) provider() []string {
	key, url := u.cli.setting("OPENAI_API_KEY"), u.cli.setting("OPENAI_BASE_URL")
	if key == "" && url == "" {
		return nil
	}
	keyed := ""
	if key != "" {
		keyed = `env_key="OPENAI_API_KEY",`
	}
	return []string{"-c", "model_provider=piecework", "-c", fmt.Sprintf(
		`model_providers.piecework={name="piecework",base_url=%s,wire_api="responses",%srequest_max_retries=2,stream_max_retries=2}`,
		tomlString(cmp.Or(url, "https://api.openai.com/v1")), keyed)}
}

// env is the child's whole environment. The client does not trust a home below
// the directory for temporary files, and its sandbox would fail there.
func (u codexUnit) env() []string {
	return append(append(baseEnv(u.home.dir), u.cli.Env...), "CODEX_HOME="+u.home.config, "TMPDIR="+u.home.tmp)
}

// codexHome is a home with the client's own directory in it.
type codexHome struct {
	home
	config, schema string
}

func makeCodexHome(in home, req Request) (codexHome, error) {
	h := codexHome{home: in, config: filepath.Join(in.dir, ".codex")}
	if err := makeDir(h.config); err != nil {
		return h, err
	}
	settings := ""
	if req.SystemPrompt != "" { // by file: one argument holds 128 KiB, and shows in ps
		settings = "developer_instructions = " + tomlString(req.SystemPrompt) + "\n"
	}
	settings += codexServers(req.MCPServers)
	if _, err := in.put(filepath.Join(".codex", "config.toml"), settings); err != nil {
		return h, err
	}
	var err error
	if len(req.OutputSchema) > 0 {
		h.schema, err = in.put("output-schema.json", string(req.OutputSchema))
	}
	return h, err
}

// tomlString quotes a text. TOML's escapes are JSON's, but for one character
// that TOML wants escaped.
func tomlString(text string) string {
	quoted, err := json.Marshal(work.Clean(text))
	if err != nil {
		return strconv.Quote("")
	}
	return strings.ReplaceAll(string(quoted), "\x7f", `\u007f`)
}
