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
	hole  bool       // connections are taken, and all that they carry vanishes
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
	half   bool // half-open: the process has a connection, the server none. It stays so
}

func (p *pair) close() {
	for _, end := range p.ends {
		if end != nil {
			_ = end.Close()
		}
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
	if p := (&pair{ends: [2]net.Conn{near, nil}, half: true}); l.swallows(p) {
		l.carry(p, near, nil, false)
		l.forget(p)
		return
	}
	far, err := net.Dial("unix", l.socket)
	if err != nil {
		_ = near.Close()
		return
	}
	p := &pair{ends: [2]net.Conn{near, far}}
	l.mu.Lock()
	p.half = l.hole
	l.pairs[p] = true
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.carry(p, near, far, false) })
	both.Go(func() { l.carry(p, far, near, true) })
	both.Wait()
	l.forget(p)
}

func (l *link) forget(p *pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pairs, p)
}

// swallows tells whether a new connection leads nowhere, and keeps it if so.
func (l *link) swallows(p *pair) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hole {
		l.pairs[p] = true
	}
	return l.hole
}

// ended closes a connection whose one end is closed. Of one that is half-open the
// process's end is left as it is: nobody tells it.
func (l *link) ended(p *pair, from net.Conn) {
	l.mu.Lock()
	half := p.half
	l.mu.Unlock()
	if half {
		_ = from.Close()
		return
	}
	p.close()
}

// carry moves bytes one way until either end closes.
func (l *link) carry(p *pair, from, to net.Conn, answers bool) {
	defer l.ended(p, from)
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
	return !p.half && (!answers || !p.spoilt)
}

// swallow lets all that the link carries vanish, what is open now and what is opened
// meanwhile. Nothing of that comes back when it ends: the server gives up its
// end, as keepalives would make it, and the process's stays open and silent.
func (l *link) swallow(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hole = on
	for p := range l.pairs {
		switch {
		case on:
			p.half = true
		case p.half && p.ends[1] != nil:
			_ = p.ends[1].Close()
		}
	}
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
