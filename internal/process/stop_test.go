package process

import (
	"syscall"
	"testing"
)

// A request to stop is heard, however soon after the start it comes: the child
// is not asked before it is there, and nothing on the way forgets it.
func TestStopAtOnceIsHeard(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		for range 40 {
			child, err := Start(Command{Path: "/bin/sleep", Args: []string{"1000"}, Env: testEnv(), Mark: NewMark(t.Name()), Supervisor: k})
			if err != nil {
				t.Fatal(err)
			}
			child.Stop(StopPolicy{Interrupt: slack})
			if state := shut(t, child); state.status.Signal() != syscall.SIGINT {
				t.Fatalf("ended by %v", state)
			}
			child.Release()
		}
	})
}
