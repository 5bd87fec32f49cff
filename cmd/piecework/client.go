package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"piecework/internal/process"
)

// App is what every command gets from main: where to write, what the
// environment says, and when to stop.
type App struct {
	Ctx            context.Context
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Version        string
	Supervisor     process.Supervisor // for what runs agents
}

// Remote is the flags that every client command shares.
type Remote struct {
	Server string `help:"Address of the server." default:"http://127.0.0.1:7070" env:"PIECEWORK_SERVER" placeholder:"URL"`
	Key    string `help:"API key, where the server asks for one." env:"PIECEWORK_KEY" placeholder:"KEY"`
	JSON   bool   `name:"json" help:"Print JSON for programs instead of a table for people."`
}

// The exit codes of the client commands; exitCodeHelp explains them.
const (
	exitUnsuccessful = 1
	exitUsage        = 2
	exitUnreachable  = 3
	exitNotFound     = 4
	exitConflict     = 5
	exitAttention    = 6
	exitInterrupted  = 130
)

const exitCodeHelp = `Exit codes: 0 all is well; 1 a unit did not succeed, a batch did not complete, or a finding of doctor is bad; 2 the
command or the request is wrong; 3 the server cannot be reached or cannot answer; 4 not found; 5 the state of the unit
or batch does not allow it; 6 a batch waits for a person; 130 interrupted.`

// exitError is an error that knows the exit code it should end the program
// with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

const (
	dialTimeout   = 5 * time.Second
	headerTimeout = 60 * time.Second
	bodyTimeout   = 10 * time.Minute // the longest transcript over a slow line
	maxErrorBody  = 64 << 10
	maxRetryAfter = 30 * time.Second
)

// client speaks to one server.
type client struct {
	base  *url.URL
	key   string
	agent string
	http  *http.Client
	sleep func(context.Context, time.Duration) error
}

func newClient(app *App, remote Remote) (*client, error) {
	address := remote.Server
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	base, err := url.Parse(address)
	if err != nil {
		return nil, usagef("--server: %w", err)
	}
	if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, usagef("--server: %q is no address such as http://127.0.0.1:7070", remote.Server)
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       time.Minute,
	}
	return &client{
		base: base, key: remote.Key, agent: "piecework/" + app.Version,
		http: &http.Client{Transport: transport, Timeout: bodyTimeout}, sleep: sleep,
	}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// request is one call of the API.
type request struct {
	method, path   string
	query          url.Values
	body           any       // sent as JSON unless nil
	stream         io.Reader // sent as it is, if there is no body
	contentType    string    // of stream
	idempotencyKey string    // makes a POST safe to repeat
	header         http.Header
}

func (r request) repeatable() bool { return r.method == http.MethodGet || r.idempotencyKey != "" }

// page is where a browser finds path.
func (c *client) page(path string) string { return c.base.JoinPath(path).String() }

func (c *client) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	return c.do(ctx, request{method: http.MethodGet, path: path, query: query})
}

// do makes one call and returns the body of its answer. A server that is busy
// for a moment is asked once more, if the request is safe to repeat.
func (c *client) do(ctx context.Context, r request) ([]byte, error) {
	body, err := c.once(ctx, r)
	var p *problem
	if !errors.As(err, &p) || p.Status != http.StatusServiceUnavailable || p.retryAfter < 0 || !r.repeatable() {
		return body, err
	}
	if err := c.sleep(ctx, min(p.retryAfter, maxRetryAfter)); err != nil {
		return nil, interrupted(err)
	}
	return c.once(ctx, r)
}

func (c *client) once(ctx context.Context, r request) ([]byte, error) {
	req, err := c.build(ctx, r)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 300 {
		return nil, readProblem(resp)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, c.unreachable(ctx, fmt.Errorf("read the answer: %w", err))
	}
	return body, nil
}

// download copies the body of an answer as it comes. What w has is whole when
// there is no error.
func (c *client) download(ctx context.Context, path string, query url.Values, w io.Writer) error {
	req, err := c.build(ctx, request{method: http.MethodGet, path: path, query: query})
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 300 {
		return readProblem(resp)
	}
	_, err = io.Copy(writerOnly{w}, resp.Body)
	var refused *writeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("write: %w", refused.err)
	}
	return c.unreachable(ctx, fmt.Errorf("the answer was cut off; run it again: %w", err))
}

// writerOnly tells failures to write from failures to read.
type writerOnly struct{ w io.Writer }

type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }

func (w writerOnly) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		err = &writeError{err}
	}
	return n, err
}

func (c *client) build(ctx context.Context, r request) (*http.Request, error) {
	target := c.base.JoinPath(r.path)
	target.RawQuery = r.query.Encode()
	body, kind := r.stream, r.contentType
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body, kind = bytes.NewReader(data), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept", "application/json, application/problem+json")
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if r.idempotencyKey != "" {
		req.Header.Set("Idempotency-Key", r.idempotencyKey)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	return req, nil
}

func (c *client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return interrupted(context.Cause(ctx))
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // without the address, which the line has already
	}
	return &exitError{exitUnreachable, fmt.Errorf(
		"no answer from %s: %w (start a server with `piecework dev`, or name one with --server or PIECEWORK_SERVER)",
		c.base.Redacted(), err)}
}

func interrupted(err error) error {
	return &exitError{exitInterrupted, fmt.Errorf("interrupted: %w", err)}
}

// problem is an answer in the form of RFC 9457.
type problem struct {
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	RequestID string `json:"request_id"`
	Errors    []struct {
		Pointer   string `json:"pointer"`
		Parameter string `json:"parameter"` // of the query, where it is not the body that is wrong
		Detail    string `json:"detail"`
	} `json:"errors"`
	retryAfter time.Duration // negative: the server named none
	batch      bool          // of a batch
}

func readProblem(resp *http.Response) error {
	p := &problem{}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if json.Unmarshal(body, p) != nil || (p.Title == "" && p.Detail == "") {
		p.Detail = excerpt(string(body), 200) // a proxy's page, most likely
	}
	p.Status = resp.StatusCode
	if p.Title == "" {
		p.Title = http.StatusText(resp.StatusCode)
	}
	p.retryAfter = retryAfter(resp.Header.Get("Retry-After"))
	return &exitError{p.exitCode(), p}
}

func retryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, time.Until(at))
	}
	return -1
}

// Error tells all on one line: what is wrong, where, and what to try.
func (p *problem) Error() string {
	var line strings.Builder
	line.WriteString(strings.ToLower(p.Title))
	if p.Detail != "" && !p.repeatsItself() {
		fmt.Fprintf(&line, ": %s", p.Detail)
	}
	for i, e := range p.Errors {
		separator := "; "
		if i == 0 {
			separator = ": "
		}
		fmt.Fprintf(&line, "%s%s%s %s", separator, e.Pointer, e.Parameter, e.Detail)
	}
	if hint := p.hint(); hint != "" {
		fmt.Fprintf(&line, " (%s)", hint)
	}
	if p.RequestID != "" && p.Status >= 500 {
		fmt.Fprintf(&line, " [request %s]", p.RequestID)
	}
	return safeLine(line.String())
}

// repeatsItself tells whether the detail is that of a field, which is shown
// with the field's name anyway.
func (p *problem) repeatsItself() bool {
	for _, e := range p.Errors {
		if e.Detail != "" && strings.HasSuffix(p.Detail, e.Detail) {
			return true
		}
	}
	return false
}

func (p *problem) hint() string {
	switch {
	case p.batch && p.Status == http.StatusNotFound:
		return "`piecework batch list` shows what there is"
	case p.batch && p.Status == http.StatusConflict:
		return "`piecework batch status ID` shows how it stands"
	}
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "give an API key with --key or PIECEWORK_KEY"
	case http.StatusNotFound:
		return "`piecework ls` shows what there is"
	case http.StatusConflict:
		return "`piecework get ID` shows the unit's state"
	case http.StatusServiceUnavailable:
		return "`piecework doctor` says what is missing"
	}
	return ""
}

func (p *problem) exitCode() int {
	switch {
	case p.Status == http.StatusNotFound:
		return exitNotFound
	case p.Status == http.StatusConflict:
		return exitConflict
	case p.Status >= 500 || p.Status == http.StatusTooManyRequests:
		return exitUnreachable
	}
	return exitUsage
}
