package backend

import (
	"strings"
	"testing"
)

// Whatever an operator may set that shapes answers is told, and no secret is.
func TestSettings(t *testing.T) {
	t.Parallel()
	options := func(env ...string) CLI { return CLI{Env: env} }
	told := map[string]bool{}
	for _, b := range []Configured{
		&Anthropic{}, &Anthropic{Model: "m"}, &Anthropic{BaseURL: "http://a:secret@b"}, &Anthropic{MaxTokens: 5},
		&OpenAI{}, &OpenAI{Model: "m"}, &OpenAI{BaseURL: "http://a:secret@b"}, &OpenAI{Responses: true},
		&Claude{}, &Claude{PermissionMode: "plan"}, &Claude{AllowedTools: []string{"Bash", "Read"}}, &Claude{AllowedTools: []string{"Bash Read"}}, &Claude{ConfigDir: "/c"},
		&Claude{CLI: options("ANTHROPIC_BASE_URL=http://a:secret@b")},
		&Codex{Sandbox: "read-only"}, &Codex{CLI: options("OPENAI_BASE_URL=http://a:secret@b")}, &Cursor{Force: true},
		&Gemini{ApprovalMode: "yolo"}, &OpenCode{Config: "/o"},
	} {
		settings := b.Settings()
		if told[settings] || strings.Contains(settings, "secret") {
			t.Errorf("%T: %s", b, settings)
		}
		told[settings] = true
	}
	with := (&Claude{CLI: CLI{Path: "/claude", Env: []string{"ANTHROPIC_API_KEY=secret", "PATH=/bin"}}}).Settings()
	if without := (&Claude{}).Settings(); with != without {
		t.Errorf("a key, a path: %s", with)
	}
}
