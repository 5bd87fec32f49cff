package hooks

import (
	"fmt"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/work"
)

// readHookBody reads the body of a webhook, up to what its trigger takes and no
// further; verifier gets every byte when it comes.
func (a *Triggers) readHookBody(c echo.Context, h *hook, verifier io.Writer, into *body.Pieces) *problem.Problem {
	r, most := c.Request(), h.MaxBodyBytes
	problem := problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf(
		"the body is larger than %d bytes, the max_body_bytes of this trigger; put the trigger with a larger one, %d at most", most, work.MaxTriggerBody))
	if r.ContentLength <= most {
		err := into.Read(io.TeeReader(http.MaxBytesReader(nil, r.Body, most), verifier))
		if err == nil {
			return nil
		}
		if !body.TooLarge(err) {
			problem = a.Bodies.Unread(err)
		}
	}
	c.Response().Header().Set("Connection", "close") // net/http would read on
	return problem
}
