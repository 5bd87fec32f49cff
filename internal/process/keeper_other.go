//go:build !linux

package process

import "syscall"

// Main returns the zero Keeper: this system has nothing to keep descendants
// together with.
func Main([]string, []string) Keeper { return Keeper{} }

func keeperAttributes(Containment) *syscall.SysProcAttr { return attributes() }

func isKeeper(int) bool { return false }
