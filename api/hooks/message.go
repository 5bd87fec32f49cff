package hooks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/expr"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

// message is a verified webhook as expressions see it.
type message struct {
	expr.Vars
	raw  json.RawMessage // the body as JSON
	form bool            // it came as a form
}

// readMessage reads the body by its content type. GitHub and Slack put JSON
// into the field payload of a form.
func readMessage(h *hook, header http.Header, sent []byte) (*message, error) {
	m := &message{Vars: expr.Vars{Headers: webhook.Public(h.Scheme, header)}, raw: sent}
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type")) // what cannot be read is no form
	switch {
	case kind == "application/x-www-form-urlencoded":
		if err := m.readForm(sent); err != nil {
			return nil, err
		}
	case len(bytes.TrimSpace(sent)) == 0:
		m.raw = json.RawMessage("null")
	case kind != "" && kind != "application/json" && !strings.HasSuffix(kind, "+json") && !json.Valid(sent):
		text, err := json.Marshal(work.Clean(string(sent)))
		if err != nil {
			return nil, err
		}
		m.raw = text
	}
	if problem := body.CheckJSON(m.raw); problem != nil {
		return nil, problem
	}
	var err error
	m.Body, err = expr.Read(m.raw)
	return m, err
}

func (m *message) readForm(sent []byte) error {
	m.form = true
	values, err := url.ParseQuery(string(sent))
	if err != nil {
		return problem.New(http.StatusBadRequest, "the form in the body cannot be read")
	}
	if payload := values.Get("payload"); payload != "" {
		m.raw = json.RawMessage(payload)
		return nil
	}
	fields := map[string]string{}
	for name := range values {
		fields[work.Clean(name)] = work.Clean(values.Get(name))
	}
	m.raw, err = json.Marshal(fields)
	return err
}

// text is a text in the body, by the path to it; empty when there is none.
func (m *message) text(path ...string) string {
	at := m.Body
	for _, name := range path {
		object, ok := at.(map[string]any)
		if !ok {
			return ""
		}
		at = object[name]
	}
	text, _ := at.(string)
	return text
}

// handshake is the answer to what a sender asks before it sends, nil for all
// else.
func (m *message) handshake(preset string) any {
	switch {
	case preset == webhook.GitHub && m.Headers["x-github-event"] == "ping":
		return Receipt{Outcome: "pong"}
	case preset == webhook.Slack && m.text("type") == "url_verification":
		return map[string]string{"challenge": m.text("challenge")}
	}
	return nil
}

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

func answerReceipt(c echo.Context, h *hook, m *message, got Receipt) error {
	status := http.StatusOK
	switch {
	case got.UnitID != nil:
		c.Response().Header().Set(echo.HeaderLocation, "/work-units/"+got.UnitID.String())
	case got.BatchID != nil:
		c.Response().Header().Set(echo.HeaderLocation, "/batches/"+got.BatchID.String())
	}
	if h.Preset == webhook.Slack && m.form {
		// Slack shows the answer to a command or a button to the person, and
		// takes no status but this.
		return c.NoContent(status)
	}
	if got.Outcome == work.DeliveryAccepted {
		status = http.StatusAccepted
	}
	return c.JSON(status, got)
}
