//go:build !linux

package process

// Self is empty: this system has no cheap name of a process that is never used
// again. Leases find out who is dead.
func Self() string { return "" }

// Dead is false: nothing is known.
func Dead(string) bool { return false }

// LockFile makes none, for the same reason.
func LockFile(string, string) (unlock func(), err error) { return func() {}, nil }

// Unlocked knows of none.
func Unlocked(string) (names []string, remove func(string)) { return nil, func(string) {} }

// pidNamespace is the only one.
func pidNamespace() string { return "pid:all" }
