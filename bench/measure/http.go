package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// httpJob posts units over connections that stay open, one for each caller, and
// waits for each answer before it sends the next. It writes HTTP by itself: a
// client of the library would take more time than the peers' callers do.
func httpJob(_ context.Context, s childSettings, begin, _ func()) (childResult, error) {
	bodies := make([][]byte, s.Units)
	for i := range bodies {
		bodies[i] = unitBody(i)
	}
	callers := make([]*caller, s.Callers)
	for i := range callers {
		c, err := dial(s.URL)
		if err != nil {
			return childResult{}, err
		}
		callers[i] = c
	}
	begin()
	var next atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, len(callers))
	times := make([]time.Duration, s.Units)
	began := time.Now()
	for _, c := range callers {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(bodies) {
					return
				}
				if s.Rate > 0 {
					time.Sleep(time.Until(began.Add(time.Duration(float64(i) / s.Rate * float64(time.Second)))))
				}
				if s.Pause { // longer and shorter than whatever polls
					time.Sleep(5*time.Millisecond + rand.N(30*time.Millisecond))
				}
				sent := time.Now()
				if err := c.post("/work-units"+s.Query, "application/json", bodies[i]); err != nil {
					failed <- err
					return
				}
				times[i] = time.Since(sent)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	select {
	case err := <-failed:
		return childResult{}, err
	default:
	}
	return childResult{Units: s.Units, Seconds: took.Seconds(), Values: quantiles("answer ", times)}, nil
}

// batchJob posts one batch of so many lines.
func batchJob(_ context.Context, s childSettings, begin, _ func()) (childResult, error) {
	var lines bytes.Buffer
	if s.Query != "" {
		lines.WriteString(s.Query + "\n")
	}
	for i := range s.Units {
		lines.Write(unitBody(i))
		lines.WriteByte('\n')
	}
	c, err := dial(s.URL)
	if err != nil {
		return childResult{}, err
	}
	begin()
	began := time.Now()
	if err := c.post("/batches", "application/x-ndjson", lines.Bytes()); err != nil {
		return childResult{}, err
	}
	return childResult{Units: s.Units, Seconds: time.Since(began).Seconds()}, nil
}

// caller is one connection.
type caller struct {
	host string
	conn net.Conn
	in   *textproto.Reader
	head bytes.Buffer
}

func dial(address string) (*caller, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return &caller{host: u.Host, conn: conn, in: textproto.NewReader(bufio.NewReader(conn))}, nil
}

// post sends a body and reads the answer to its end.
func (c *caller) post(path, kind string, body []byte) error {
	c.head.Reset()
	fmt.Fprintf(&c.head, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", path, c.host, kind, len(body))
	out := net.Buffers{c.head.Bytes(), body}
	if _, err := out.WriteTo(c.conn); err != nil {
		return err
	}
	status, err := c.in.ReadLine()
	if err != nil {
		return err
	}
	length, chunked := int64(-1), false
	for {
		line, err := c.in.ReadLineBytes()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := strings.Cut(string(line), ":")
		switch strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil {
				return err
			}
		case "transfer-encoding":
			chunked = true
		}
	}
	var text []byte
	switch {
	case chunked:
		text, err = c.chunks()
	case length >= 0:
		text = make([]byte, length)
		_, err = io.ReadFull(c.in.R, text)
	default:
		err = errors.New("an answer without a length")
	}
	if err != nil {
		return err
	}
	if len(status) < 12 || status[9] != '2' {
		return fmt.Errorf("%s: %.500s", status, text)
	}
	return nil
}

func (c *caller) chunks() ([]byte, error) {
	var text []byte
	for {
		line, err := c.in.ReadLine()
		if err != nil {
			return nil, err
		}
		size, err := strconv.ParseInt(line, 16, 64)
		if err != nil {
			return nil, err
		}
		chunk := make([]byte, size+2) // with its line end
		if _, err := io.ReadFull(c.in.R, chunk); err != nil {
			return nil, err
		}
		if size == 0 {
			return text, nil
		}
		text = append(text, chunk[:size]...)
	}
}
