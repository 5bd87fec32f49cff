//go:build race

package testkit

// raced: the race detector allocates too, and pools keep nothing under it.
const raced = true
