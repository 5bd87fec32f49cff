package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands in docs/triggers.md do what the page says.
func TestTriggersPage(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"openssl", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the page uses " + tool)
		}
	}
	page, err := os.ReadFile("../../docs/triggers.md")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := dev(t, dataDir(t)).up()
	dir := t.TempDir()
	script := "#!/bin/sh\n" + asProgram + "=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "piecework"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		cmd := exec.Command("sh", "-euc", block[1])
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "PIECEWORK_SERVER="+p.server)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v in\n%s\n%s", err, block[1], out)
		}
		shown.Write(out)
	}
	want := regexp.MustCompile(`(?s)reviews +github +active +[0-9a-f]{8} +pull_request.*` +
		`accepted ([0-9a-f-]{36})\nduplicate ([0-9a-f-]{36})\nfiltered: the trigger's filter does not hold\n.*` +
		`filtered +pull_request.*accepted +pull_request.* 1 +delivery-1.*Review the change Mend the roof.*"outcome":"accepted","delivery":"17","event":"order".*` +
		`intake +github +active .*for each of body.documents: File.*accepted batch [0-9a-f-]{36}\n`)
	if m := want.FindStringSubmatch(shown.String()); m == nil || m[1] != m[2] {
		t.Errorf("the page comes to\n%s", shown.String())
	}
	checkTriggerCommands(t, p, dir)
}

func checkTriggerCommands(t *testing.T, p *program, dir string) {
	t.Helper()
	do := func(stdin string, want int, args ...string) string {
		t.Helper()
		s := newStage(t)
		s.Stdin = strings.NewReader(stdin)
		if code := run(s.App, append(args, "--server", p.server)); code != want {
			t.Fatalf("%q: exit code %d\n%s%s", args, code, s.out.String(), s.errs.String())
		}
		return s.out.String() + s.errs.String()
	}
	unit, secret, wrong := `{"backend":"mock","prompt":"x"}`, filepath.Join(dir, "hub.secret"), filepath.Join(dir, "shop.secret")
	if out := do(unit, 0, "trigger", "put", "reviews", "github", "--paused"); !strings.Contains(out, "paused") {
		t.Error(out)
	}
	if out := do("", 0, "trigger", "show", "reviews"); !strings.Contains(out, "takes bodies of 1048576 bytes at most") {
		t.Error(out)
	}
	do(unit, 0, "trigger", "put", "reviews", "github", "--paused", "--max-body-bytes", "2000000")
	if out := do("", 0, "trigger", "show", "reviews"); !strings.Contains(out, "takes bodies of 2000000 bytes at most") {
		t.Error(out)
	}
	if out := do(unit, exitUsage, "trigger", "put", "reviews", "github", "--max-body-bytes", "26214401"); !strings.Contains(out, "26214400") {
		t.Error(out)
	}
	if out := do("{}", 0, "trigger", "send", "reviews", "--secret-file", secret, "--event", "push"); !strings.Contains(out, "paused") {
		t.Error(out)
	}
	if out := do("{}", 0, "trigger", "send", "reviews", "--secret-file", secret, "--event", "ping"); out != "pong\n" {
		t.Error(out)
	}
	if out := do("{}", exitUsage, "trigger", "send", "reviews", "--secret-file", wrong); !strings.Contains(out, "fingerprint") {
		t.Error(out)
	}
	if out := do("", 0, "trigger", "show", "reviews", "--json"); !strings.Contains(out, `"deliveries"`) || !strings.Contains(out, `"fingerprint"`) {
		t.Error(out)
	}
	if out := do("", 0, "trigger", "show", "intake"); !strings.Contains(out, "batch 0") {
		t.Error(out)
	}
	if out := do("", 0, "trigger", "list"); !strings.Contains(out, "shop") || !strings.Contains(out, "reviews") {
		t.Error(out)
	}
	do(unit, exitUsage, "trigger", "put", "x", "github")
	do(unit, exitUsage, "trigger", "put", "x", "gitlab")
	do(unit, exitUsage, "trigger", "put", "x", "github", "--map", "title")
	do(unit, exitUsage, "trigger", "put", "x", "github", "--secret-file", "/nowhere")
	do("{", exitUsage, "trigger", "put", "x", "github")
	do("", 0, "trigger", "rm", "shop")
	do("", exitNotFound, "trigger", "rm", "shop")
	do("", exitNotFound, "trigger", "show", "shop")
	do("{}", exitNotFound, "trigger", "send", "shop", "--secret-file", secret)
	text, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(p.log.String(), strings.TrimSpace(string(text))) {
		t.Error("the server's log has a secret")
	}
	if _, err := (&Base{SecretsKey: "short"}).sealer(); err == nil || !strings.Contains(err.Error(), "--secrets-key") {
		t.Errorf("a short key: error %v", err)
	}
}
