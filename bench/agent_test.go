package bench

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"piecework/internal/testkit"
)

const agentRuns = 60

// TestAgent measures what Piecework adds to a command-line agent: the time from
// `POST /work-units?wait` to the answer, less that of the same program started by a
// shell. The two take turns.
func TestAgent(t *testing.T) {
	database, redis, dir := testkit.DB(t, migrate), testkit.Redis(t), t.TempDir()
	lines, err := os.ReadFile("../internal/backend/cli/claude/testdata/plain.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	answer, agent := filepath.Join(dir, "answer"), filepath.Join(dir, "claude")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 2.1.329; exit; fi\nwhile read -r line; do [ \"$line\" ] && break; done\nexec cat '%s'\n", answer)
	syscall.ForkLock.RLock() // or a fork would keep the script open, and busy
	err = os.WriteFile(agent, []byte(script), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(answer, lines, 0o644); err != nil {
		t.Fatal(err)
	}
	binary := buildProgram(t, dir)
	env := append(os.Environ(), "DATABASE_URL="+database, "REDIS_URL="+redis, "PIECEWORK_DATA="+dir, "PIECEWORK_LISTEN=127.0.0.1:0", "PIECEWORK_CLAUDE_PATH="+agent)
	_, url := startServer(t, binary, "api", env)
	startServer(t, binary, "worker", env)
	var product, shell []time.Duration
	for i := range agentRuns {
		began := time.Now()
		got, err := http.Post(url+"/work-units?wait=30s", "application/json", strings.NewReader(fmt.Sprintf(`{"backend":"claude","prompt":"Number %d"}`, i)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(got.Body)
		_ = got.Body.Close()
		if !strings.Contains(string(body), `"succeeded"`) {
			t.Fatalf("%s: %s", got.Status, body)
		}
		product = append(product, time.Since(began))
		began = time.Now()
		out, err := exec.Command("/bin/sh", "-c", "echo hi | "+agent).Output()
		if err != nil || len(out) != len(lines) {
			t.Fatalf("%d bytes, %v", len(out), err)
		}
		shell = append(shell, time.Since(began))
	}
	slices.Sort(product)
	slices.Sort(shell)
	middle, most := agentRuns/2, agentRuns*95/100
	t.Logf("an agent that answers at once: p50 %.1f ms, p95 %.1f; by a shell p50 %.1f, p95 %.1f; added at p50: %.1f ms", ms(product[middle]), ms(product[most]),
		ms(shell[middle]), ms(shell[most]), ms(product[middle]-shell[middle]))
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
