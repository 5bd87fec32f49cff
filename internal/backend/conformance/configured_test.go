package conformance

import (
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/claude"
	"piecework/internal/backend/cli/codex"
	"piecework/internal/backend/cli/cursor"
	"piecework/internal/backend/cli/gemini"
	"piecework/internal/backend/cli/opencode"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
)

// Whatever an operator may set that shapes answers is told, and no secret is.
func TestSettings(t *testing.T) {
	t.Parallel()
	options := func(env ...string) cli.Options { return cli.Options{Env: env} }
	told := map[string]bool{}
	for _, b := range []backend.Configured{
		&anthropic.Backend{}, &anthropic.Backend{Options: model.Options{Model: "m"}}, &anthropic.Backend{Options: model.Options{BaseURL: "http://a:secret@b"}}, &anthropic.Backend{MaxTokens: 5},
		&openai.Backend{}, &openai.Backend{Options: model.Options{Model: "m"}}, &openai.Backend{Options: model.Options{BaseURL: "http://a:secret@b"}}, &openai.Backend{Responses: true},
		&claude.Backend{}, &claude.Backend{PermissionMode: "plan"}, &claude.Backend{AllowedTools: []string{"Bash", "Read"}}, &claude.Backend{AllowedTools: []string{"Bash Read"}}, &claude.Backend{ConfigDir: "/c"},
		&claude.Backend{Options: options("ANTHROPIC_BASE_URL=http://a:secret@b")},
		&codex.Backend{Sandbox: "read-only"}, &codex.Backend{Options: options("OPENAI_BASE_URL=http://a:secret@b")}, &cursor.Backend{Force: true},
		&gemini.Backend{ApprovalMode: "yolo"}, &opencode.Backend{Config: "/o"},
	} {
		settings := b.Settings()
		if told[settings] || strings.Contains(settings, "secret") {
			t.Errorf("%T: %s", b, settings)
		}
		told[settings] = true
	}
	with := (&claude.Backend{Options: cli.Options{Path: "/claude", Env: []string{"ANTHROPIC_API_KEY=secret", "PATH=/bin"}}}).Settings()
	if without := (&claude.Backend{}).Settings(); with != without {
		t.Errorf("a key, a path: %s", with)
	}
}
