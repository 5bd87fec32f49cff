//go:build !linux

package process

import "syscall"

// Main returns the zero Supervisor: this system has nothing to keep descendants
// together with.
func Main([]string, []string) Supervisor { return Supervisor{} }

func supervisorAttributes(Containment) *syscall.SysProcAttr { return attributes() }

func isSupervisor(int) bool { return false }
