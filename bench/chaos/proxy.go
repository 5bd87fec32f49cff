package chaos

import (
	"bytes"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"
)

// link is the network between one process and one server.
type link struct {
	listener net.Listener
	socket   string // of the server

	mu    sync.Mutex
	turn  *sync.Cond // the state has changed
	held  bool       // nothing goes through, and nobody is told
	deaf  bool       // requests go through, answers vanish
	delay time.Duration
	pairs map[*pair]bool
	over  bool

	secrets []string        // what no request may hold
	seen    map[string]bool // which of them did
}

// pair is one connection: the process's end and the server's.
type pair struct {
	ends   [2]net.Conn
	spoilt bool // an answer is missing: what follows it would be misread
}

func (p *pair) close() {
	for _, end := range p.ends {
		_ = end.Close()
	}
}

// socketOf is the path of the unix socket that a server's URL names.
func socketOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		panic(err)
	}
	if dir := u.Query().Get("host"); dir != "" {
		return dir + "/.s.PGSQL." + u.Query().Get("port")
	}
	return u.Path
}

func newLink(socket string, secrets ...string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, socket: socket, pairs: map[*pair]bool{}, seen: map[string]bool{}, secrets: secrets}
	l.turn = sync.NewCond(&l.mu)
	go l.accept()
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.join(near)
	}
}

func (l *link) join(near net.Conn) {
	far, err := net.Dial("unix", l.socket)
	if err != nil {
		_ = near.Close()
		return
	}
	p := &pair{ends: [2]net.Conn{near, far}}
	l.mu.Lock()
	l.pairs[p] = true
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.carry(p, near, far, false) })
	both.Go(func() { l.carry(p, far, near, true) })
	both.Wait()
	l.mu.Lock()
	delete(l.pairs, p)
	l.mu.Unlock()
}

// carry moves bytes one way until either end closes.
func (l *link) carry(p *pair, from, to net.Conn, answers bool) {
	defer p.close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !answers {
			l.search(buffer[:n])
		}
		if n > 0 && l.mayPass(p, answers) {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *link) search(request []byte) {
	for _, secret := range l.secrets {
		if bytes.Contains(request, []byte(secret)) {
			l.mu.Lock()
			l.seen[secret] = true
			l.mu.Unlock()
		}
	}
}

// leaked lists the secrets that went through.
func (l *link) leaked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.seen))
}

// mayPass waits until the link carries, and tells whether these bytes go on.
func (l *link) mayPass(p *pair, answers bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.delay > 0 {
		delay := l.delay
		l.mu.Unlock()
		time.Sleep(delay)
		l.mu.Lock()
	}
	for l.held && !l.over {
		l.turn.Wait()
	}
	if answers && l.deaf {
		p.spoilt = true
	}
	return !answers || !p.spoilt
}

// set changes how the link behaves; connections that missed an answer end as
// soon as answers pass again.
func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	if !l.deaf {
		for p := range l.pairs {
			if p.spoilt {
				p.close()
			}
		}
	}
	l.turn.Broadcast()
}

// sever closes all connections.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		p.close()
	}
}

func (l *link) close() {
	_ = l.listener.Close()
	l.set(func(l *link) { l.over = true })
	l.sever()
}
