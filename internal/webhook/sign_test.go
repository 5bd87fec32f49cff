package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The vector of Standard Webhooks.
func TestSignTheVector(t *testing.T) {
	t.Parallel()
	got, err := Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want || err != nil {
		t.Errorf("%s, want %s, error %v", got, want, err)
	}
	if _, err := Sign("msg_1", time.Now(), nil, "whsec_not base64"); err == nil || strings.Contains(err.Error(), "not base64!") {
		t.Errorf("error %v", err)
	}
}

// received is one request of ours as a receiver got it.
type received struct {
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Secret  string            `json:"secret"`
	Valid   bool              `json:"valid"`
}

// send lets our sender deliver a message to a server, and returns what came.
func send(t *testing.T, m Message) received {
	t.Helper()
	var got received
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got.Headers = map[string]string{}
		for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
			got.Headers[name] = r.Header.Get(name)
		}
		body, _ := io.ReadAll(r.Body)
		got.Body = string(body)
	}))
	defer server.Close()
	m.URL = server.URL
	sender := NewSender(Guard{Allow: Loopback()}, "test", Timeout)
	defer sender.Close()
	if a := sender.Send(t.Context(), m, time.Now()); a.Err != nil || a.Status != 200 {
		t.Fatalf("%+v", a)
	}
	return got
}

// letters are what we send, by old and by new secrets, with what a receiver
// that has one secret should make of each.
func letters(t *testing.T) (list []received) {
	t.Helper()
	before, after, other := NewSecret(), NewSecret(), NewSecret()
	body := []byte(`{"type" : "work_unit.failed", "data" : {"title" : "Ünïcode ✓ <b>", "n" : 1.10}}`)
	for _, test := range []struct {
		secrets []string
		secret  string
		valid   bool
	}{
		{[]string{after}, after, true}, {[]string{after, before}, after, true}, {[]string{after, before}, before, true},
		{[]string{after, before}, other, false}, {[]string{after}, before, false},
	} {
		got := send(t, Message{ID: "msg_0198f0c27b1e7c3a9d552f6a1c0e4b77", Body: body, Secrets: test.secrets})
		got.Secret, got.Valid = test.secret, test.valid
		list = append(list, got)
	}
	changed := list[0]
	changed.Body, changed.Valid = changed.Body+" ", false
	return append(list, changed)
}

func TestGoReceiversVerifyWhatWeSend(t *testing.T) {
	t.Parallel()
	for i, l := range letters(t) {
		w, err := standardwebhooks.NewWebhook(l.Secret)
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		for name, value := range l.Headers {
			h.Set(name, value)
		}
		if err := w.Verify([]byte(l.Body), h); (err == nil) != l.Valid {
			t.Errorf("letter %d: valid %t, error %v", i, l.Valid, err)
		}
	}
}

const verifyInNode = `
const { Webhook } = require(process.argv[1]);
const letters = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(letters.map((l) => {
  try { new Webhook(l.secret).verify(l.body, l.headers); return true } catch (e) { return false }
})));`

func TestNodeReceiversVerifyWhatWeSend(t *testing.T) {
	t.Parallel()
	library := os.Getenv("PIECEWORK_TEST_STANDARDWEBHOOKS")
	if library == "" {
		t.Skip("PIECEWORK_TEST_STANDARDWEBHOOKS does not name the directory of the npm package standardwebhooks")
	}
	list := letters(t)
	in, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", "-e", verifyInNode, library)
	node.Stdin, node.Stderr = strings.NewReader(string(in)), os.Stderr
	out, err := node.Output()
	if err != nil {
		t.Fatal(err)
	}
	var valid []bool
	if err := json.Unmarshal(out, &valid); err != nil || len(valid) != len(list) {
		t.Fatalf("%s: %v", out, err)
	}
	for i, l := range list {
		if valid[i] != l.Valid {
			t.Errorf("letter %d: valid %t", i, valid[i])
		}
	}
}

func TestAddressesThatAreNotPublic(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "0.0.0.0", "::", "10.0.0.1", "172.16.0.1", "172.31.255.255",
		"192.168.1.1", "fd00::1",
		"169.254.169.254", "fe80::1", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1", "240.0.0.1",
		"255.255.255.255", "224.0.0.1",
		"ff02::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "fec0::1", "fd00:ec2::254", "100::1",
		"fe80::1%eth0", "3fff::1",
	} {
		if (Guard{}).Allows(netip.MustParseAddr(text)) {
			t.Errorf("%s may be reached", text)
		}
	}
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"} {
		if !(Guard{}).Allows(netip.MustParseAddr(text)) {
			t.Errorf("%s may not be reached", text)
		}
	}
	allow, err := ParseAllow(" 10.1.0.0/16, 192.168.7.7,fd00::/8 ")
	if err != nil {
		t.Fatal(err)
	}
	guard := Guard{Allow: allow}
	for text, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "192.168.7.7": true,
		"192.168.7.8": false, "fd12::1": true, "127.0.0.1": false} {
		if guard.Allows(netip.MustParseAddr(text)) != want {
			t.Errorf("%s: want %t", text, want)
		}
	}
	if _, err := ParseAllow("10.0.0.0/33"); err == nil {
		t.Error("no error")
	}
}

// What a name stands for is looked at when it is connected to; a proxy of the
// environment is not asked.
func TestNamesAreLookedAtWhenDialled(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was reached") }))
	defer server.Close()
	t.Setenv("HTTP_PROXY", server.URL)
	t.Setenv("http_proxy", server.URL)
	sender := NewSender(Guard{}, "test", Timeout)
	m := Message{ID: "msg_1", URL: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), Secrets: []string{NewSecret()}}
	a := sender.Send(t.Context(), m, time.Now())
	var blocked *BlockedError
	if !errors.As(a.Err, &blocked) || a.Status != 0 {
		t.Errorf("%+v", a)
	}
	m.URL = "http://192.0.2.1:1/" // of documentation
	if a := sender.Send(t.Context(), m, time.Now()); !errors.As(a.Err, &blocked) {
		t.Errorf("%+v", a)
	}
	m.URL = "http://nowhere.invalid/?token=secret"
	if a := sender.Send(t.Context(), m, time.Now()); a.Err == nil || strings.Contains(a.Err.Error(), "secret") {
		t.Errorf("%+v", a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if a := sender.Send(ctx, m, time.Now()); a.Err == nil {
		t.Error("no error")
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "soon": 0, "0": 0, "-5": 0, "120": 2 * time.Minute, "1000000000": longest, "99999999999999999999": longest,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2020 03:05:05 GMT": 0, "Fri, 02 Jan 2099 03:05:05 GMT": longest,
	} {
		if got := retryAfter(header, now); got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
		}
	}
}
