package backend

import (
	"testing"

	"piecework/internal/work"
)

func TestClassOfStatus(t *testing.T) {
	for status, want := range map[int]work.Class{
		0: "", 200: "", 400: work.ClassInvalidRequest, 401: work.ClassAuth, 402: work.ClassBilling, 403: work.ClassAuth,
		404: work.ClassInvalidRequest, 408: work.ClassInfra, 409: work.ClassInfra, 413: work.ClassContextTooLong,
		429: work.ClassRateLimit, 500: work.ClassInfra, 503: work.ClassInfra, 529: work.ClassRateLimit,
	} {
		if got := ClassOfStatus(status); got != want {
			t.Errorf("%d: %q, want %q", status, got, want)
		}
	}
}
