// Package webhook speaks to the senders and receivers of webhooks.
//
//	scheme.go   how senders sign: the presets, and what a scheme must be
//	verify.go   is this from who it says? told while the body comes in
//	imitate.go  the headers that a sender would send, for trying out
//	seal.go     secrets as they are stored
//	sign.go     our signatures, as Standard Webhooks wants them
//	dial.go     which addresses may be reached at all
//	send.go     one try to deliver a message
package webhook
