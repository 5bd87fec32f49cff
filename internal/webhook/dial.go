package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"piecework/internal/work"
)

// special are the address blocks that are not of the public internet: IANA's
// special-purpose registries, and what stands for another address.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // Azure's metadata
	"2001::/23",        // Teredo among others
	"2001:db8::/32", "3fff::/20",
	"2002::/16", // 6to4
)

// global is where public IPv6 addresses lie; NAT64, mapped and local ones do not.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// Guard says which addresses may be reached. Its zero value allows the public
// internet alone.
type Guard struct {
	Allow []netip.Prefix // besides
}

// Loopback is this machine.
func Loopback() []netip.Prefix { return prefixes("127.0.0.0/8", "::1/128") }

// ParseAllow reads address blocks with commas between them.
func ParseAllow(text string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if addr, failed := netip.ParseAddr(part); err != nil && failed == nil {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no block of addresses such as 10.1.0.0/16", part)
		}
		list = append(list, prefix.Masked())
	}
	return list, nil
}

// Allows tells whether an address may be reached.
func (g Guard) Allows(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(addr) }
	if slices.ContainsFunc(g.Allow, in) {
		return true
	}
	return addr.IsValid() && (addr.Is4() || global.Contains(addr)) && !slices.ContainsFunc(special, in)
}

// BlockedError is an address that may not be reached.
type BlockedError struct{ Addr string }

func (e *BlockedError) Error() string {
	return e.Addr + " is not an address of the public internet; whoever runs the server can allow it with PIECEWORK_WEBHOOK_ALLOW"
}

// dialer connects to allowed addresses only. It looks at the very address that
// is connected to, so no answer of a name server gets around it.
func (g Guard) dialer() *net.Dialer {
	return &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		addr, err := netip.ParseAddrPort(address)
		if err != nil || !g.Allows(addr.Addr()) {
			return &BlockedError{address}
		}
		return nil
	}}
}

// maxURL is the longest address of a receiver, in bytes.
const maxURL = 2000

// numeric are host names that a resolver may take for an IPv4 address in
// another notation.
var numeric = regexp.MustCompile(`(^|\.)(0[xX][0-9a-fA-F]*|[0-9]+)\.?$`)

// CheckURL refuses an address that no message can be sent to, with the reason.
// What a host name stands for is looked at when it is connected to.
func (g Guard) CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL:
		return fmt.Errorf("is longer than %d bytes", maxURL)
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		return errors.New("must be an address such as https://example.com/hooks")
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("must begin with https:// or http://")
	case u.User != nil:
		return errors.New("must hold no user name and no password; the signature tells the receiver who it is")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return errors.New("must hold no #")
	case work.Clean(text) != text || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return errors.New("must hold no blanks and no control characters")
	}
	host := u.Hostname()
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" || !g.Allows(addr) {
			return &BlockedError{host}
		}
		return nil
	}
	if numeric.MatchString(host) {
		return errors.New("must name a host, or an IP address in its usual form")
	}
	return nil
}
