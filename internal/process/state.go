package process

import (
	"fmt"
	"os"
	"syscall"
)

// State is how a child ended.
type State struct{ status syscall.WaitStatus }

func stateOf(s *os.ProcessState) State {
	status, _ := s.Sys().(syscall.WaitStatus)
	return State{status}
}

// Exited tells whether the child ended by itself and not by a signal.
func (s *State) Exited() bool { return s.status.Exited() }

// Success tells whether the child ended by itself, with exit code 0.
func (s *State) Success() bool { return s.status.Exited() && s.status.ExitStatus() == 0 }

// ExitCode is the child's exit code, -1 when a signal ended it.
func (s *State) ExitCode() int { return s.status.ExitStatus() }

// String says how the child ended in the words of os/exec.
func (s *State) String() string {
	switch {
	case s.status.Exited():
		return fmt.Sprintf("exit status %d", s.status.ExitStatus())
	case s.status.CoreDump():
		return fmt.Sprintf("signal: %v (core dumped)", s.status.Signal())
	}
	return fmt.Sprintf("signal: %v", s.status.Signal())
}
