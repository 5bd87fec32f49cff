package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
)

// secretPrefix marks a signing secret, as Standard Webhooks writes it.
const secretPrefix = "whsec_"

// secretBytes is the length of the secrets we make.
const secretBytes = 32

// NewSecret makes a signing secret: whsec_ and base64.
func NewSecret() string {
	key := make([]byte, secretBytes)
	_, _ = rand.Read(key) // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// Sign returns the value of the header webhook-signature: one signature of the
// message for each secret.
func Sign(id string, at time.Time, body []byte, secrets ...string) (string, error) {
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
		if err != nil {
			return "", errors.New("a signing secret is not whsec_ and base64") // the error would quote it
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " "), nil
}
