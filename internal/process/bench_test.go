package process

import (
	"io"
	"path/filepath"
	"testing"
)

func BenchmarkStartAndClose(b *testing.B) {
	for _, kind := range kept.containments() {
		b.Run(string(kind), func(b *testing.B) { startAndClose(b, by(kind)) })
	}
}

func startAndClose(b *testing.B, k Supervisor) {
	for range b.N {
		child, err := Start(Command{Path: "/bin/true", Env: testEnv(), Mark: NewMark("bench"), Supervisor: k})
		if err != nil {
			b.Fatal(err)
		}
		<-child.Exited()
		if _, err := child.Close(); err != nil {
			b.Fatal(err)
		}
		child.Release()
	}
}

// BenchmarkFollowedOutput is a child that writes to a file and ends at once.
func BenchmarkFollowedOutput(b *testing.B) {
	for range b.N {
		child, err := Start(Command{Path: "/bin/echo", Args: []string{"hi"}, Env: testEnv(), Mark: NewMark("bench"),
			Supervisor: by(Subreaper), StdoutFile: filepath.Join(b.TempDir(), "out")})
		if err != nil {
			b.Fatal(err)
		}
		read := make(chan int64)
		go func() {
			n, _ := io.Copy(io.Discard, child.Stdout)
			read <- n
		}()
		<-child.Exited()
		if _, err := child.Close(); err != nil {
			b.Fatal(err)
		}
		if n := <-read; n != 3 {
			b.Fatalf("%d bytes", n)
		}
		child.Release()
	}
}
