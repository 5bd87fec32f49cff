// Package webhook speaks to the senders of webhooks: who signs how, whether a
// signature is right, and how secrets are kept.
//
//	scheme.go   the presets, and what a scheme must be
//	verify.go   is this from who it says?
//	imitate.go  the headers that a sender would send, for trying out
//	seal.go     secrets as they are stored
package webhook
