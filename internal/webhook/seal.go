package webhook

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Sealer keeps secrets as they are stored: encrypted when there is a key, as
// they are when there is none, as in the zero Sealer. What was stored without a
// key is still read when there is one.
type Sealer struct{ gcm cipher.AEAD }

// The first byte of what is stored says how.
const (
	unsealed = 'p'
	sealed   = 's' // AES-256-GCM: nonce, then text and tag
)

// minSealKey is how long a key must be, in bytes.
const minSealKey = 24

// NewSealer makes a Sealer of a key of at least 24 characters; an empty one is
// none.
func NewSealer(key string) (Sealer, error) {
	if key == "" {
		return Sealer{}, nil
	}
	if len(key) < minSealKey {
		return Sealer{}, fmt.Errorf("is too short: give at least %d characters, such as `openssl rand -hex 32` makes", minSealKey)
	}
	sum := sha256.Sum256([]byte("piecework secrets\x00" + key))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return Sealer{}, err
	}
	gcm, err := cipher.NewGCM(block)
	return Sealer{gcm}, err
}

// Seal makes of a secret what may be stored. It can only be opened again for
// the same owner.
func (s Sealer) Seal(owner, secret string) []byte {
	if s.gcm == nil {
		return append([]byte{unsealed}, secret...)
	}
	out := make([]byte, 1+s.gcm.NonceSize(), 1+s.gcm.NonceSize()+len(secret)+s.gcm.Overhead())
	out[0] = sealed
	_, _ = rand.Read(out[1:]) // it never fails
	return s.gcm.Seal(out, out[1:], []byte(secret), []byte(owner))
}

// ErrSealed: a secret was stored under another key, or another owner.
var ErrSealed = errors.New("a secret cannot be read with this server's secrets key: give all parts the same PIECEWORK_SECRETS_KEY, or store the secret again")

// Open returns the secret.
func (s Sealer) Open(owner string, stored []byte) (string, error) {
	if len(stored) > 0 && stored[0] == unsealed {
		return string(stored[1:]), nil
	}
	if s.gcm == nil || len(stored) < 1+s.gcm.NonceSize() || stored[0] != sealed {
		return "", ErrSealed
	}
	nonce, text := stored[1:1+s.gcm.NonceSize()], stored[1+s.gcm.NonceSize():]
	secret, err := s.gcm.Open(nil, nonce, text, []byte(owner))
	if err != nil {
		return "", ErrSealed
	}
	return string(secret), nil
}

// Fingerprint tells secrets apart without telling them.
func Fingerprint(secret string) string {
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte("piecework fingerprint"))
	return hex.EncodeToString(sum.Sum(nil)[:4])
}
