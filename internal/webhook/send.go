package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"piecework/internal/work"
)

const (
	// Timeout is how long a receiver may take to answer.
	Timeout = 20 * time.Second
	// excerpt is how much of an answer is kept, in bytes.
	excerpt = 2 << 10
	// longest is the longest wait that a receiver can ask for.
	longest = 24 * time.Hour
)

// Message is what a receiver gets.
type Message struct {
	ID      string // the same at every try; it holds no dot
	URL     string
	Body    []byte
	Secrets []string // each signs
}

// Answer is what a try came to. Err says why it failed, nil when it did not;
// Status is 0 when there was no answer.
type Answer struct {
	Status     int
	Body       string // the start of it
	RetryAfter time.Duration
	Err        error
}

// Gone tells that the receiver wants no more messages.
func (a Answer) Gone() bool { return a.Status == http.StatusGone }

// Sender sends messages to addresses that its guard allows.
type Sender struct {
	client *http.Client
	agent  string
}

// NewSender returns a sender. Its requests go by no proxy, carry no cookie, and
// follow no redirect.
func NewSender(guard Guard, agent string, timeout time.Duration) *Sender {
	transport := &http.Transport{
		Proxy:                  nil,
		DialContext:            guard.dialer().DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 16 << 10,
		MaxIdleConnsPerHost:    4,
		MaxIdleConns:           64,
		IdleConnTimeout:        30 * time.Second,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
	return &Sender{agent: agent, client: &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends connections that wait for another message.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Send makes one try, at the time that is signed.
func (s *Sender) Send(ctx context.Context, m Message, at time.Time) Answer {
	signature, err := Sign(m.ID, at, m.Body, m.Secrets...)
	if err != nil {
		return Answer{Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err != nil {
		return Answer{Err: errors.New("the address cannot be read")}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.agent)
	req.Header.Set("webhook-id", m.ID)
	req.Header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	req.Header.Set("webhook-signature", signature)
	resp, err := s.client.Do(req)
	if err != nil {
		return Answer{Err: plain(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, excerpt)) // the status counts, however much of it came
	a := Answer{Status: resp.StatusCode, Body: work.Clean(string(body))}
	switch {
	case a.Status >= 200 && a.Status < 300:
		return a
	case a.Status >= 300 && a.Status < 400:
		a.Err = fmt.Errorf("the receiver answered %d and would lead elsewhere; redirects are not followed", a.Status)
	case a.Gone():
		a.Err = errors.New("the receiver answered 410: it wants no more messages")
	default:
		a.Err = fmt.Errorf("the receiver answered %d", a.Status)
	}
	switch a.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		a.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	return a
}

// plain is an error of the client without the address, which the log need not
// hold: its query may be a secret.
func plain(err error) error {
	var blocked *BlockedError
	if errors.As(err, &blocked) {
		return blocked
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		if failed.Timeout() {
			return errors.New("the receiver did not answer in time")
		}
		err = failed.Err
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return fmt.Errorf("the host %s was not found", lookup.Name)
	}
	return err
}

// retryAfter reads seconds or a date, 0 when it is neither or passed.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(header, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(max(seconds, 0), int64(longest.Seconds()))) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(at.Sub(now), 0), longest)
	}
	return 0
}

// schedule is the wait before each try, as Standard Webhooks has it.
var schedule = [...]time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// Tries is how often a message is sent before it is given up.
const Tries = len(schedule)

// Wait is how long after a failed try the next one follows, when so many tries
// have failed, fewer than Tries. Chance, from 0 to 1, spreads messages that
// failed together.
func Wait(failed int, asked time.Duration, chance float64) time.Duration {
	wait := time.Duration(float64(schedule[failed]) * (0.9 + 0.2*chance))
	return max(wait, asked)
}
