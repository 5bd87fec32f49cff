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
	v, err := Begin(s, secrets, d.Header, now)
	if err != nil {
		return Proof{}, err
	}
	_, _ = v.Write(d.Body) // it never fails
	return v.Done(now)
}

// Verifier checks one delivery while its body comes in: the body is written to it,
// as it came, every byte. It keeps nothing of the body.
type Verifier struct {
	scheme     work.Scheme
	proof      Proof // as far as it is known
	timestamp  string
	signatures [][]byte
	after      string      // is signed after the body
	sums       []hash.Hash // for each secret; none where nothing is signed
	digest     hash.Hash
}

// Begin begins the check of a delivery with what can be known before its body
// has come: a password, or that there is a signature at all, and a fresh one.
// What it refuses is refused whatever the body is.
func Begin(s work.Scheme, secrets []string, header http.Header, now time.Time) (*Verifier, error) {
	s = whole(s)
	id := header.Get(s.IDHeader)
	v := &Verifier{scheme: s, proof: Proof{ID: id}}
	var err error
	switch s.Preset {
	case Basic:
		v.proof.Secret, err = verifyBasic(s, secrets, header)
		return v, err
	case APIKey:
		v.proof.Secret, err = sameAs(secrets, strings.TrimPrefix(header.Get(s.Header), s.Prefix))
		return v, err
	}
	v.timestamp, v.signatures = signaturesOf(s, header)
	if len(v.signatures) == 0 {
		return nil, errors.New("there is no signature in " + s.Header)
	}
	if err := v.checkTime(now); err != nil {
		return nil, err
	}
	if id == "" && strings.Contains(s.Signed, "{id}") {
		return nil, errors.New("there is no id in " + s.IDHeader)
	}
	var before string
	before, v.after = around(s.Signed, id, v.timestamp)
	for _, secret := range secrets {
		sum, err := newMAC(s, secret)
		if err != nil {
			return nil, err
		}
		v.sums = append(v.sums, sum)
	}
	v.digest = sha256.New()
	v.sign([]byte(before))
	return v, nil
}

// Write takes the next bytes of the body. It never fails.
func (v *Verifier) Write(body []byte) (int, error) {
	if v.digest != nil {
		v.sign(body)
	}
	return len(body), nil
}

func (v *Verifier) sign(text []byte) {
	for _, sum := range v.sums {
		sum.Write(text)
	}
	v.digest.Write(text)
}

// Done ends the check when the whole body was written, once. The error is as
// Verify's.
func (v *Verifier) Done(now time.Time) (Proof, error) {
	if v.digest == nil {
		return v.proof, nil // Begin has seen all
	}
	if err := v.checkTime(now); err != nil { // the body may have taken long
		return Proof{}, err
	}
	v.sign([]byte(v.after))
	which := -1
	for i, sum := range v.sums {
		want := sum.Sum(nil)
		for _, got := range v.signatures {
			if hmac.Equal(want, got) && which < 0 {
				which = i
			}
		}
	}
	if which < 0 {
		return Proof{}, errors.New("no signature fits")
	}
	v.proof.Secret, v.proof.Digest = which, hex.EncodeToString(v.digest.Sum(nil))
	return v.proof, nil
}

func (v *Verifier) checkTime(now time.Time) error {
	if !Timed(v.scheme) {
		return nil
	}
	return checkTime(v.timestamp, v.scheme.Tolerance, now)
}

func verifyBasic(s work.Scheme, secrets []string, header http.Header) (int, error) {
	r := http.Request{Header: header}
	username, password, ok := r.BasicAuth()
	if !ok {
		return 0, errors.New("there is no basic authentication")
	}
	_, wrongName := sameAs([]string{s.Username}, username)
	which, wrong := sameAs(secrets, password)
	return which, errors.Join(wrongName, wrong)
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
	sum, err := newMAC(s, secret)
	if err != nil {
		return nil, err
	}
	before, after := around(s.Signed, id, timestamp)
	for _, part := range [][]byte{[]byte(before), body, []byte(after)} {
		sum.Write(part)
	}
	return sum.Sum(nil), nil
}

func newMAC(s work.Scheme, secret string) (hash.Hash, error) {
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
	return hmac.New(algorithm, key), nil
}

// around is what is signed before the body and after it: the template with its
// values, which are not looked at again.
func around(template, id, timestamp string) (before, after string) {
	before, after, _ = strings.Cut(template, "{body}")
	fill := func(part string) string {
		return placeholder.ReplaceAllStringFunc(part, func(name string) string {
			switch name {
			case "{id}":
				return id
			case "{timestamp}":
				return timestamp
			}
			return ""
		})
	}
	return fill(before), fill(after)
}
