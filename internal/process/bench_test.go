package process

import "testing"

func BenchmarkStartAndClose(b *testing.B) {
	for range b.N {
		child, err := Start(Command{Path: "/bin/true", Env: testEnv(), Mark: NewMark("bench")})
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
