package process

import "testing"

func BenchmarkStartAndClose(b *testing.B) {
	for _, kind := range kept.containments() {
		b.Run(string(kind), func(b *testing.B) { startAndClose(b, by(kind)) })
	}
}

func startAndClose(b *testing.B, k Keeper) {
	for range b.N {
		child, err := Start(Command{Path: "/bin/true", Env: testEnv(), Mark: NewMark("bench"), Keeper: k})
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
