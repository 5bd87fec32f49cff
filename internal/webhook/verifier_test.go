package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"piecework/internal/work"
)

// schemes are one of each way to sign, or to give a password.
var schemes = []work.Scheme{
	{Preset: GitHub},
	{Preset: Slack},
	{Preset: Stripe},
	{Preset: Standard},
	{Preset: HMAC, Header: "X-Signature", Algorithm: "sha512", Encoding: "base64", Signed: "{id}/{timestamp}/{body}/{id}{timestamp}", TimestampHeader: "X-Time", IDHeader: "X-Id"},
	{Preset: Basic, Username: "u", IDHeader: "X-Id"},
	{Preset: APIKey, IDHeader: "X-Id"},
}

// signedText is what some of them sign, with the body. Deliveries are known by its digest
// for a week, so it stays as it is.
var signedText = map[string]string{GitHub: "%s", Slack: "v0:1700000000:%s", Stripe: "1700000000.%s",
	Standard: "id-1.1700000000.%s", HMAC: "id-1/1700000000/%s/id-11700000000"}

// A body that comes in pieces of any size is checked as one that came at once.
func TestBodiesAreCheckedWhileTheyCome(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	body := []byte(`{"text":"` + strings.Repeat("0123456789", 1000) + `"}`)
	for _, s := range schemes {
		s, err := Check(s)
		if err != nil {
			t.Fatal(err)
		}
		header, err := Imitate(s, whsec, "push", "id-1", body, now)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Verify(s, []string{whsec + "BBBB", whsec}, Delivery{header, body}, now)
		if err != nil || want.Secret != 1 {
			t.Fatalf("%s: %+v, error %v", s.Preset, want, err)
		}
		if text, ok := signedText[s.Preset]; ok {
			if sum := sha256.Sum256(fmt.Appendf(nil, text, body)); want.Digest != hex.EncodeToString(sum[:]) {
				t.Errorf("%s: the digest is not of all that was signed", s.Preset)
			}
		}
		signed := s.Preset != Basic && s.Preset != APIKey
		for what, test := range map[string]struct {
			body io.Reader
			late time.Duration
			good bool
		}{
			"in halves":      {iotest.HalfReader(bytes.NewReader(body)), 0, true},
			"by the byte":    {iotest.OneByteReader(bytes.NewReader(body)), 0, true},
			"a byte more":    {io.MultiReader(bytes.NewReader(body), strings.NewReader(" ")), 0, !signed},
			"a byte fewer":   {bytes.NewReader(body[:len(body)-1]), 0, !signed},
			"nothing":        {strings.NewReader(""), 0, !signed},
			"an hour on way": {bytes.NewReader(body), time.Hour, !Timed(s)},
		} {
			v, err := Begin(s, []string{whsec + "BBBB", whsec}, header, now)
			if err != nil {
				t.Fatalf("%s, %s: %v", s.Preset, what, err)
			}
			if _, err := io.Copy(v, struct{ io.Reader }{test.body}); err != nil {
				t.Fatal(err)
			}
			got, err := v.Done(now.Add(test.late))
			if (err == nil) != test.good || test.good && got != want {
				t.Errorf("%s, %s: %+v, error %v", s.Preset, what, got, err)
			}
		}
	}
}
