package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"

	"piecework/internal/work"
)

// maxSignatures is how many signatures of one delivery are looked at: senders
// that change their secret send two.
const maxSignatures = 8

// Delivery is one webhook as it came.
type Delivery struct {
	Header http.Header
	Body   []byte // as it came, every byte
}

// Proof is what a good signature vouches for.
type Proof struct {
	ID     string // as the sender names the delivery, where its scheme has such
	Digest string // of all that was signed; the same for a replay
	Secret int    // which of the secrets it was, from 0
}

// Verify tells whether a delivery comes from who knows one of the secrets. The
// error is for the log: whoever has failed must not learn why.
func Verify(s work.Scheme, secrets []string, d Delivery, now time.Time) (Proof, error) {
	s = whole(s)
	switch s.Preset {
	case Basic:
		return verifyBasic(s, secrets, d)
	case APIKey:
		given := strings.TrimPrefix(d.Header.Get(s.Header), s.Prefix)
		which, err := sameAs(secrets, given)
		return Proof{ID: d.Header.Get(s.IDHeader), Secret: which}, err
	}
	timestamp, signatures := signaturesOf(s, d.Header)
	if len(signatures) == 0 {
		return Proof{}, errors.New("there is no signature in " + s.Header)
	}
	if Timed(s) {
		if err := checkTime(timestamp, s.Tolerance, now); err != nil {
			return Proof{}, err
		}
	}
	id := d.Header.Get(s.IDHeader)
	if id == "" && strings.Contains(s.Signed, "{id}") {
		return Proof{}, errors.New("there is no id in " + s.IDHeader)
	}
	which := -1
	for i, secret := range secrets {
		want, err := mac(s, secret, id, timestamp, d.Body)
		if err != nil {
			return Proof{}, err
		}
		for _, got := range signatures {
			if hmac.Equal(want, got) && which < 0 {
				which = i
			}
		}
	}
	if which < 0 {
		return Proof{}, errors.New("no signature fits")
	}
	digest := sha256.New()
	writeSigned(digest, s.Signed, id, timestamp, d.Body)
	return Proof{ID: id, Digest: hex.EncodeToString(digest.Sum(nil)), Secret: which}, nil
}

// Precheck looks at what can be known of a delivery before its body has come: a
// password, or that there is a signature at all, and a fresh one. What it
// refuses Verify would refuse too.
func Precheck(s work.Scheme, secrets []string, header http.Header, now time.Time) error {
	s = whole(s)
	switch s.Preset {
	case Basic, APIKey:
		_, err := Verify(s, secrets, Delivery{Header: header}, now)
		return err
	}
	timestamp, signatures := signaturesOf(s, header)
	if len(signatures) == 0 {
		return errors.New("there is no signature in " + s.Header)
	}
	if Timed(s) {
		if err := checkTime(timestamp, s.Tolerance, now); err != nil {
			return err
		}
	}
	if header.Get(s.IDHeader) == "" && strings.Contains(s.Signed, "{id}") {
		return errors.New("there is no id in " + s.IDHeader)
	}
	return nil
}

func verifyBasic(s work.Scheme, secrets []string, d Delivery) (Proof, error) {
	r := http.Request{Header: d.Header}
	username, password, ok := r.BasicAuth()
	if !ok {
		return Proof{}, errors.New("there is no basic authentication")
	}
	_, wrongName := sameAs([]string{s.Username}, username)
	which, wrong := sameAs(secrets, password)
	return Proof{ID: d.Header.Get(s.IDHeader), Secret: which}, errors.Join(wrongName, wrong)
}

// sameAs compares by digests, so that the time it takes tells nothing, the
// length neither.
func sameAs(secrets []string, given string) (int, error) {
	got, which := sha256.Sum256([]byte(given)), -1
	for i, secret := range secrets {
		want := sha256.Sum256([]byte(secret))
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 && which < 0 {
			which = i
		}
	}
	if which < 0 {
		return 0, errors.New("not what the trigger was given")
	}
	return which, nil
}

// signaturesOf reads the signatures of a delivery, and its timestamp where the
// scheme has one. What cannot be read is no signature.
func signaturesOf(s work.Scheme, h http.Header) (timestamp string, signatures [][]byte) {
	timestamp = h.Get(s.TimestampHeader)
	var texts []string
	switch s.Preset {
	case Stripe:
		timestamp, texts = stripeHeader(h.Get(s.Header))
	case Standard:
		texts = standardHeader(h.Get(s.Header))
	default:
		if text, ok := strings.CutPrefix(h.Get(s.Header), s.Prefix); ok {
			texts = []string{text}
		}
	}
	for _, text := range texts {
		var signature []byte
		var err error
		if s.Encoding == "hex" {
			signature, err = hex.DecodeString(text)
		} else {
			signature, err = base64.StdEncoding.DecodeString(text)
		}
		if err == nil && len(signature) > 0 {
			signatures = append(signatures, signature)
		}
	}
	return timestamp, signatures
}

// stripeHeader reads t=1492774577,v1=5257…,v1=…,v0=…; v0 is for Stripe's own
// tests and proves nothing.
func stripeHeader(header string) (timestamp string, v1 []string) {
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case name == "t" && timestamp == "":
			timestamp = value
		case name == "v1" && len(v1) < maxSignatures:
			v1 = append(v1, value)
		}
	}
	return timestamp, v1
}

// standardHeader reads "v1,BASE64 v1,BASE64 v1a,…"; v1a is signed with a key
// pair, which a trigger has none of.
func standardHeader(header string) (v1 []string) {
	for part := range strings.SplitSeq(header, " ") {
		if version, value, _ := strings.Cut(part, ","); version == "v1" && len(v1) < maxSignatures {
			v1 = append(v1, value)
		}
	}
	return v1
}

func checkTime(timestamp string, tolerance work.Seconds, now time.Time) error {
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return errors.New("there is no timestamp, in seconds since 1970")
	}
	// Not by subtracting times: a far one would overflow.
	if away := float64(now.UnixMilli())/1000 - float64(at); away > float64(tolerance) || -away > float64(tolerance) {
		return errors.New("the timestamp " + strconv.FormatInt(at, 10) + " is too far from now; is this machine's clock right?")
	}
	return nil
}

func mac(s work.Scheme, secret, id, timestamp string, body []byte) ([]byte, error) {
	key := []byte(secret)
	if s.Preset == Standard {
		var err error
		if key, err = standardKey(secret); err != nil {
			return nil, errors.New("the trigger's secret is not whsec_ and base64") // the error would quote it
		}
	}
	algorithm := sha256.New
	if s.Algorithm == "sha512" {
		algorithm = sha512.New
	}
	sum := hmac.New(algorithm, key)
	writeSigned(sum, s.Signed, id, timestamp, body)
	return sum.Sum(nil), nil
}

// writeSigned writes what is signed: the template with its values, which are
// not looked at again.
func writeSigned(h hash.Hash, template, id, timestamp string, body []byte) {
	for template != "" {
		at := placeholder.FindStringIndex(template)
		if at == nil {
			at = []int{len(template), len(template)}
		}
		h.Write([]byte(template[:at[0]]))
		switch template[at[0]:at[1]] {
		case "{body}":
			h.Write(body)
		case "{id}":
			h.Write([]byte(id))
		case "{timestamp}":
			h.Write([]byte(timestamp))
		}
		template = template[at[1]:]
	}
}
