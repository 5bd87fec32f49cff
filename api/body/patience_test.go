package body

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
)

// A request ends by itself in time, whatever it waits for: the limits of each of its
// statements may add up to more.
func TestPatienceEndsARequest(t *testing.T) {
	t.Parallel()
	bound := BoundAnswer(func() time.Duration { return time.Millisecond })
	for name, body := range map[string]io.Reader{"no body": nil, "body": strings.NewReader("{}")} {
		c := echo.New().NewContext(httptest.NewRequest(http.MethodPost, "/", body), httptest.NewRecorder())
		err := bound(func(c echo.Context) error {
			_, _ = io.Copy(io.Discard, c.Request().Body)
			ctx := c.Request().Context()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			return context.Cause(ctx)
		})(c)
		if !errors.Is(err, ErrNoAnswer) {
			t.Fatalf("%s: error %v", name, err)
		}
	}
}
