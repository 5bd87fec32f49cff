package model

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Options are what every model API is configured by.
type Options struct {
	// Key is the API key. A server of one's own behind BaseURL may need none.
	Key     string
	BaseURL string // empty: the provider's own
	// Model is for units that name none.
	Model  string
	Prices *backend.Prices
	// Proxy says which proxy a request takes; nil: none.
	Proxy func(*http.Request) (*url.URL, error)

	once   sync.Once
	client *http.Client
}

// Thousands of streams may be open in one process, so buffers are small and every
// connection may be kept for the next unit. There is no timeout for the whole and
// none for the header: a model may think for an hour, and the watchdog ends what
// is silent.
const (
	dialTimeout      = 10 * time.Second
	tlsTimeout       = 10 * time.Second
	connectionBuffer = 512
	keptPerHost      = 10_000
	keptFor          = 60 * time.Second
	probeTimeout     = 10 * time.Second
)

// HTTPClient is the client of an API, made at first use: all units share its
// connections.
func (o *Options) HTTPClient() *http.Client {
	o.once.Do(func() {
		dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
		o.client = &http.Client{
			Transport: &http.Transport{
				Proxy: o.Proxy, DialContext: dialer.DialContext, TLSHandshakeTimeout: tlsTimeout,
				ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
				MaxIdleConnsPerHost: keptPerHost, IdleConnTimeout: keptFor,
				ReadBufferSize: connectionBuffer, WriteBufferSize: connectionBuffer, MaxResponseHeaderBytes: 64 << 10,
			},
			// A redirect would carry the key and the prompt to whom it names.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
	return o.client
}

// check tells what is missing to use an API.
func (a *API) check() error {
	if a.Key == "" && a.BaseURL == "" {
		return fmt.Errorf("%s has no key: set %s_API_KEY, or %s_BASE_URL to a server that needs none", a.Name, a.Variable, a.Variable)
	}
	return nil
}

// Settings are what the operator has set, and the adapter's own settings.
func (a *API) Settings(own any) string {
	return fmt.Sprintf("%q %q %v", backend.RedactURL(a.url()), a.model(), own)
}

func (a *API) url() string { return cmp.Or(a.BaseURL, a.DefaultURL) }

func (a *API) model() string { return cmp.Or(a.Model, a.DefaultModel) }

// Available tells whether an API answers and takes the key. Any answer will do,
// except one that says the key is wrong.
func (a *API) Available(ctx context.Context) error {
	if err := a.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	shown := backend.RedactURL(a.url())
	res, err := a.Probe(ctx)
	if res == nil {
		return fmt.Errorf("%s does not answer at %s: %w", a.Name, shown, err)
	}
	defer func() { _ = res.Body.Close() }()
	if class := backend.ClassOfStatus(res.StatusCode); class == work.ClassAuth {
		return fmt.Errorf("%s refuses the key (status %d at %s); set %s_API_KEY to one that is valid", a.Name, res.StatusCode, shown, a.Variable)
	}
	return nil
}

// Execute runs one unit.
func (a *API) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	if err := a.check(); err != nil {
		defer steps.Close()
		return backend.Result{Error: work.Fail(work.ClassAuth, err.Error()), Metadata: backend.Metadata{TotalCostUSD: new(0.0)}}, nil
	}
	if req.Call != nil {
		return *runCall(ctx, a, &req, steps), nil
	}
	return *runPrompt(ctx, a, &req, steps), nil
}
