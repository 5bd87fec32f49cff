package model

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// Connections is a backend's way to its API: one client, made at first use, whose
// connections all units share.
type Connections struct {
	once   sync.Once
	client *http.Client
}

// How a wire is laid. Thousands of streams may be open in one process, so
// buffers are small and every connection may be kept for the next unit. There
// is no timeout for the whole and none for the header: a model may think for an
// hour, and the vigil ends what is silent.
const (
	dialTimeout      = 10 * time.Second
	tlsTimeout       = 10 * time.Second
	connectionBuffer = 512
	keptPerHost      = 10_000
	keptFor          = 60 * time.Second
	probeTimeout     = 10 * time.Second
)

func (w *Connections) Client(proxy func(*http.Request) (*url.URL, error)) *http.Client {
	w.once.Do(func() {
		dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
		w.client = &http.Client{
			Transport: &http.Transport{
				Proxy: proxy, DialContext: dialer.DialContext, TLSHandshakeTimeout: tlsTimeout,
				ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
				MaxIdleConnsPerHost: keptPerHost, IdleConnTimeout: keptFor,
				ReadBufferSize: connectionBuffer, WriteBufferSize: connectionBuffer, MaxResponseHeaderBytes: 64 << 10,
			},
			// A redirect would carry the key and the prompt to whom it names.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
	return w.client
}

// Probe tells whether an API answers. Any answer will do, except one that says
// the key is wrong.
func Probe(ctx context.Context, name, base, keyName string, get func(context.Context) (*http.Response, error)) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	res, err := get(ctx)
	if res == nil {
		return fmt.Errorf("%s does not answer at %s: %w", name, base, err)
	}
	defer func() { _ = res.Body.Close() }()
	if class := backend.ClassOfStatus(res.StatusCode); class == work.ClassAuth {
		return fmt.Errorf("%s refuses the key (status %d at %s); set %s to one that is valid", name, res.StatusCode, base, keyName)
	}
	return nil
}
