package main

import (
	"net/http"
	"slices"
	"strings"

	"piecework/internal/backend"
	cliagent "piecework/internal/backend/cli"
	"piecework/internal/backend/cli/claude"
	"piecework/internal/backend/cli/codex"
	"piecework/internal/backend/cli/cursor"
	"piecework/internal/backend/cli/gemini"
	"piecework/internal/backend/cli/opencode"
	"piecework/internal/backend/mock"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	"piecework/internal/process"
)

// backends makes every backend there is, as the flags and the environment
// configure it, and returns the secrets that they were given.
func (c Agents) backends(getenv func(string) string, supervisor process.Supervisor) (list []backend.Backend, secrets []string, err error) {
	prices, err := c.prices()
	if err != nil {
		return nil, nil, err
	}
	options := func(path string, own []string) cliagent.Options {
		env, found := c.environment(getenv, own)
		secrets = append(secrets, found...)
		return cliagent.Options{Path: path, Env: env, Supervisor: supervisor, Prices: prices}
	}
	claudeCode := &claude.Backend{
		Options: options(c.ClaudePath, claudeEnv), PermissionMode: c.ClaudePermissionMode, ConfigDir: absolute(c.ClaudeConfigDir),
	}
	for tool := range strings.SplitSeq(c.ClaudeAllowedTools, ",") {
		if tool = strings.TrimSpace(tool); tool != "" {
			claudeCode.AllowedTools = append(claudeCode.AllowedTools, tool)
		}
	}
	anthropicAPI, openaiAPI := c.models(getenv, prices)
	keys := []string{anthropicAPI.Key, openaiAPI.Key}
	for _, value := range slices.Concat(keys, passwords(anthropicAPI.BaseURL), passwords(openaiAPI.BaseURL)) {
		if value != "" {
			secrets = append(secrets, value)
		}
	}
	list = []backend.Backend{
		mock.Backend{}, claudeCode,
		&codex.Backend{Options: options(c.CodexPath, codexEnv), Sandbox: c.CodexSandbox},
		&cursor.Backend{Options: options(c.CursorPath, cursorEnv), Force: c.CursorForce},
		&opencode.Backend{Options: options(c.OpenCodePath, openCodeEnv), Config: absolute(c.OpenCodeConfig)},
		&gemini.Backend{Options: options(c.GeminiPath, geminiEnv), ApprovalMode: c.GeminiApprovalMode},
		anthropicAPI, openaiAPI,
	}
	return list, secrets, nil
}

func (c Models) models(getenv func(string) string, prices *backend.Prices) (*anthropic.Backend, *openai.Backend) {
	anthropicAPI := &anthropic.Backend{Options: model.Options{
		Key: getenv("ANTHROPIC_API_KEY"), BaseURL: getenv("ANTHROPIC_BASE_URL"), Model: c.AnthropicModel,
		Prices: prices, Proxy: http.ProxyFromEnvironment,
	}, MaxTokens: c.AnthropicMaxTokens}
	openaiAPI := &openai.Backend{Options: model.Options{
		Key: getenv("OPENAI_API_KEY"), BaseURL: getenv("OPENAI_BASE_URL"), Model: c.OpenAIModel,
		Prices: prices, Proxy: http.ProxyFromEnvironment,
	}, Responses: c.OpenAIAPI == "responses"}
	return anthropicAPI, openaiAPI
}
