package testkit

import (
	"cmp"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
)

// Proxy stands between a program and a server and can go silent: no byte goes
// through, and nobody is told.
type Proxy struct {
	network, target string
	listen          net.Listener

	mu    sync.Mutex
	links map[*proxied]bool
	held  chan struct{} // while it is held: closed when it goes on
}

type proxied struct {
	client, server net.Conn
	dead           chan struct{} // closed: nothing goes through any more
}

// NewProxy starts a proxy before the server at target, as net.Dial knows it. It
// ends with the test.
func NewProxy(t testing.TB, network, target string) *Proxy {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{network: network, target: target, listen: listen, links: map[*proxied]bool{}}
	go p.accept()
	t.Cleanup(func() {
		_ = listen.Close()
		p.Release()
		p.mu.Lock()
		defer p.mu.Unlock()
		for l := range p.links {
			_, _ = l.client.Close(), l.server.Close()
		}
	})
	return p
}

// PostgresProxy starts a proxy before the Postgres at rawURL and returns the URL
// that leads through it.
func PostgresProxy(t testing.TB, rawURL string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	network, target := "tcp", u.Host
	query := u.Query()
	if dir := query.Get("host"); dir != "" {
		network, target = "unix", filepath.Join(dir, ".s.PGSQL."+cmp.Or(query.Get("port"), u.Port(), "5432"))
	}
	query.Del("host")
	query.Del("port")
	p := NewProxy(t, network, target)
	u.Host, u.RawQuery = p.Address(), query.Encode()
	return p, u.String()
}

// RedisProxy does the same for the Redis at rawURL.
func RedisProxy(t testing.TB, rawURL string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	network, target := "tcp", u.Host
	if u.Scheme == "unix" {
		network, target = "unix", u.Path
		u.Scheme, u.Path = "redis", ""
	}
	p := NewProxy(t, network, target)
	u.Host = p.Address()
	return p, u.String()
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listen.Addr().String() }

// Hole makes the connections that are open now carry nothing ever again. New ones
// work.
func (p *Proxy) Hole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		close(l.dead)
		delete(p.links, l)
	}
}

// Hold keeps back every byte, also of new connections, until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

// Release lets everything that Hold kept go on.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

func (p *Proxy) wait() {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		go p.serve(client)
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.wait()
	server, err := net.Dial(p.network, p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &proxied{client: client, server: server, dead: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, client, server) })
	both.Go(func() { p.pump(l, server, client) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
	_, _ = client.Close(), server.Close()
}

// pump copies until either side ends, which it tells the other.
func (p *Proxy) pump(l *proxied, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.wait()
		select {
		case <-l.dead:
			_, _ = io.Copy(io.Discard, from) // swallowed, until the client gives up
			return
		default:
		}
		if n > 0 {
			if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
				err = writeErr
			}
		}
		if err != nil {
			_, _ = from.Close(), to.Close()
			return
		}
	}
}
