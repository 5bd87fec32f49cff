package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"piecework/internal/testkit"
)

// part is the variable that makes this test binary one part of a benchmark: a
// process of its own, so that its memory is not counted with the others'.
const part = "PIECEWORK_BENCH_PART"

func TestMain(m *testing.M) {
	switch os.Getenv(part) {
	case "model":
		beSlowModel()
	case "worker":
		beWorker()
	default:
		testkit.Main(m)
	}
}

// process is a part that is running. It answers a line with a line.
type process struct {
	t   *testing.T
	in  *json.Encoder
	out *bufio.Reader
}

// startPart starts a part with settings of its own. It ends when its stdin
// does, at the latest with the test.
func startPart(t *testing.T, name string, settings ...string) (p process, first string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), part+"="+name), settings...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	p = process{t: t, in: json.NewEncoder(stdin), out: bufio.NewReader(stdout)}
	return p, p.line()
}

func (p process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// ask sends a word and reads the answer into a value.
func (p process) ask(word string, answer any) {
	p.t.Helper()
	if err := p.in.Encode(word); err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(p.line()), answer); err != nil {
		p.t.Fatal(err)
	}
}

// eachWord answers every word that comes on stdin until that ends.
func eachWord(answer func(word string) any) {
	words := json.NewDecoder(os.Stdin)
	for {
		var word string
		if words.Decode(&word) != nil {
			return
		}
		said, err := json.Marshal(answer(word))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(said))
	}
}
