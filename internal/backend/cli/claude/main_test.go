package claude

import (
	"os"
	"testing"

	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
)

func TestMain(m *testing.M) {
	backendtest.Start()
	os.Exit(m.Run())
}

// fake is the backend with a fake client behind it.
func fake(t *testing.T) *Backend {
	t.Helper()
	return &Backend{Options: backendtest.FakeOptions(fakecli.BuildAs(t, "claude"))}
}
