package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"

	"piecework/internal/work"
)

// Imitate makes the headers that a sender would send with a body, signed with
// secret, for trying a trigger out. The names of event and delivery go where
// the preset has them; Stripe and Slack have them in the body.
func Imitate(s work.Scheme, secret, event, id string, body []byte, now time.Time) (http.Header, error) {
	s = whole(s)
	h := http.Header{"Content-Type": {"application/json"}}
	if s.IDHeader != "" {
		h.Set(s.IDHeader, id)
	}
	switch s.Preset {
	case GitHub:
		h.Set("X-GitHub-Event", event)
	case Basic:
		r := http.Request{Header: h}
		r.SetBasicAuth(s.Username, secret)
		return h, nil
	case APIKey:
		h.Set(s.Header, s.Prefix+secret)
		return h, nil
	}
	timestamp := strconv.FormatInt(now.Unix(), 10)
	if s.TimestampHeader != "" {
		h.Set(s.TimestampHeader, timestamp)
	}
	sum, err := mac(s, secret, id, timestamp, body)
	if err != nil {
		return nil, err
	}
	signature := hex.EncodeToString(sum)
	if s.Encoding == "base64" {
		signature = base64.StdEncoding.EncodeToString(sum)
	}
	switch s.Preset {
	case Stripe:
		signature = "t=" + timestamp + ",v1=" + signature
	case Standard:
		signature = "v1," + signature
	}
	h.Set(s.Header, s.Prefix+signature)
	return h, nil
}
