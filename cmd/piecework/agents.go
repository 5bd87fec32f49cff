package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"piecework/internal/backend"
)

// Agents is what running an agent takes.
type Agents struct {
	PassEnv              string `env:"PIECEWORK_PASS_ENV" placeholder:"NAME,…" help:"Further variables that agents may see."`
	ClaudePath           string `env:"PIECEWORK_CLAUDE_PATH" default:"claude" placeholder:"PATH" help:"Claude Code's program (${default})."`
	ClaudePermissionMode string `env:"PIECEWORK_CLAUDE_PERMISSION_MODE" default:"acceptEdits" placeholder:"MODE" help:"Claude Code's --permission-mode (${default})."`
	ClaudeAllowedTools   string `env:"PIECEWORK_CLAUDE_ALLOWED_TOOLS" placeholder:"TOOL,…" help:"Tools that Claude Code may use without asking, such as Bash,WebFetch."`
	ClaudeConfigDir      string `env:"PIECEWORK_CLAUDE_CONFIG_DIR" placeholder:"DIR" help:"A Claude Code login that all units share; each has its own when left out."`
	CodexPath            string `env:"PIECEWORK_CODEX_PATH" default:"codex" placeholder:"PATH" help:"Codex's program (${default})."`
	CodexSandbox         string `env:"PIECEWORK_CODEX_SANDBOX" default:"workspace-write" enum:"read-only,workspace-write,danger-full-access" help:"What Codex's commands may do: ${enum} (${default})."`
	CursorPath           string `env:"PIECEWORK_CURSOR_PATH" default:"cursor-agent" placeholder:"PATH" help:"The Cursor CLI's program (${default})."`
	CursorForce          bool   `env:"PIECEWORK_CURSOR_FORCE" help:"Let Cursor run commands without asking; they are rejected otherwise."`
	OpenCodePath         string `name:"opencode-path" env:"PIECEWORK_OPENCODE_PATH" default:"opencode" placeholder:"PATH" help:"Opencode's program (${default})."`
	OpenCodeConfig       string `name:"opencode-config" env:"PIECEWORK_OPENCODE_CONFIG" placeholder:"FILE" help:"An opencode.json of your own, with further providers for instance."`
	GeminiPath           string `env:"PIECEWORK_GEMINI_PATH" default:"gemini" placeholder:"PATH" help:"The Gemini CLI's program (${default})."`
	GeminiApprovalMode   string `env:"PIECEWORK_GEMINI_APPROVAL_MODE" default:"auto_edit" enum:"default,auto_edit,yolo,plan" help:"What the Gemini CLI may do without asking: ${enum} (${default}: edit files, and run no commands)."`
	Models
}

// Models is what reaching a model over HTTP takes, beside the keys and base
// URLs, which come from the environment alone.
type Models struct {
	AnthropicModel     string `env:"PIECEWORK_ANTHROPIC_MODEL" default:"claude-sonnet-5-5" placeholder:"MODEL" help:"For anthropic units that name none (${default})."`
	AnthropicMaxTokens int64  `env:"PIECEWORK_ANTHROPIC_MAX_TOKENS" default:"32000" placeholder:"N" help:"Longest answer of the anthropic backend, in tokens (${default})."`
	OpenAIModel        string `name:"openai-model" env:"PIECEWORK_OPENAI_MODEL" default:"gpt-5.4-mini" placeholder:"MODEL" help:"For openai units that name none (${default})."`
	OpenAIAPI          string `name:"openai-api" env:"PIECEWORK_OPENAI_API" default:"chat" enum:"chat,responses" help:"The openai backend's API: ${enum} (${default}); most other servers have chat."`
	Pricing
}

// Pricing is what models cost: worker processes reckon by it, and the API refuses
// limits on costs that nobody could keep.
type Pricing struct {
	Prices       string `env:"PIECEWORK_PRICES" placeholder:"FILE" help:"JSON with token prices, in place of Piecework's own for the models it names."`
	UnknownPrice string `name:"unknown-price" env:"PIECEWORK_UNKNOWN_PRICE" placeholder:"IN,OUT" help:"Price of models that are in no table, in dollars per million tokens of input and of output, such as 15,75. Take a ceiling: limits on costs then hold for them too."`
}

// agentEnv are the variables that every agent may see beside PIECEWORK_PASS_ENV;
// the others are for one of them alone.
var (
	agentEnv = []string{
		"PATH", "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	}
	claudeEnv = []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN"}
	codexEnv  = []string{"OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY"}
	cursorEnv = []string{"CURSOR_API_KEY"}
	// opencode reaches many providers, each by its own key.
	openCodeEnv = []string{
		"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_API_KEY",
	}
	geminiEnv = []string{"GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"}
)

// environment returns the NAME=VALUE pairs for one agent and the secret values
// among them.
func (c Agents) environment(getenv func(string) string, own []string) (env, secrets []string) {
	names := slices.Concat(agentEnv, own)
	for name := range strings.SplitSeq(c.PassEnv, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	for _, name := range names {
		value := getenv(name)
		if value == "" {
			continue
		}
		env = append(env, name+"="+value)
		if secretName(name) {
			secrets = append(secrets, value)
		}
		secrets = append(secrets, passwords(value)...) // of a proxy
	}
	return env, secrets
}

func secretName(name string) bool {
	upper := strings.ToUpper(name)
	for _, word := range []string{"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"} {
		if strings.Contains(upper, word) {
			return true
		}
	}
	return false
}

func (c Pricing) prices() (*backend.Prices, error) {
	var override []byte
	if c.Prices != "" {
		var err error
		if override, err = os.ReadFile(c.Prices); err != nil {
			return nil, usagef("--prices: %w", err)
		}
	}
	prices, err := backend.ReadPrices(override)
	if err != nil {
		return nil, usagef("--prices: %w", err)
	}
	if c.UnknownPrice == "" {
		return prices, nil
	}
	in, out, _ := strings.Cut(c.UnknownPrice, ",")
	input, err := strconv.ParseFloat(strings.TrimSpace(in), 64)
	output, err2 := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if errors.Join(err, err2) != nil || !(input >= 0 && output >= 0 && input <= 1e6 && output <= 1e6) {
		return nil, usagef("--unknown-price: %q: give two prices in dollars per million tokens, such as 15,75", c.UnknownPrice)
	}
	return prices.WithCeiling(input, output), nil
}

// absolute makes a path hold for agents, which run elsewhere.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if dir, err := filepath.Abs(path); err == nil { // without a current directory nothing is relative
		return dir
	}
	return path
}
