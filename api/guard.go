package api

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/internal/work"
)

// guard decides which requests come in at all. A browser on another site must
// not act here in its user's name, nor reach this server under a host name of
// that site (DNS rebinding): such a page could read and do everything.
func (a *API) guard(next echo.HandlerFunc) echo.HandlerFunc {
	crossOrigin := http.NewCrossOriginProtection()
	return func(c echo.Context) error {
		r := c.Request()
		if r.ContentLength != 0 {
			// Also for who never reads the body: net/http then reads the rest.
			_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Now().Add(a.bodies.Time)) // a test's recorder has none
		}
		if !a.answersTo(r.Host) {
			return problem.New(http.StatusMisdirectedRequest, fmt.Sprintf(
				"this server answers to IP addresses, localhost and its own names only; if %.100q is one, add it to --host-names", hostName(r.Host)))
		}
		if err := crossOrigin.Check(r); err != nil {
			return problem.New(http.StatusForbidden, "a page of another site may not do this")
		}
		if err := checkQueryText(r.URL.RawQuery); err != nil {
			return err
		}
		return next(c)
	}
}

// checkQueryText refuses what url.Query would leave out without a word, which
// would make a filter disappear, and what Postgres cannot hold.
func checkQueryText(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return problem.New(http.StatusBadRequest, "the query cannot be read: "+err.Error())
	}
	for name, values := range query {
		for _, text := range append(values, name) {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return problem.Fields(http.StatusBadRequest,
					problem.Field{Parameter: work.Clean(name), Detail: "must be UTF-8 without NUL characters"})
			}
		}
	}
	return nil
}

// answersTo tells whether a Host header names this server. An IP address is no
// name that a site could have pointed here.
func (a *API) answersTo(host string) bool {
	name := hostName(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return name != "" && slices.ContainsFunc(a.Hosts, func(own string) bool { return strings.EqualFold(own, name) })
}

// hostName is a Host header without its port, in small letters.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// nameRequest gives each request the id under which the log knows it. A
// caller's own is kept when it is one that a log line can hold.
func nameRequest(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		id := r.Header.Get(echo.HeaderXRequestID)
		if !plainID(id) {
			id = uuid.NewString()
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		c.SetRequest(r.WithContext(problem.WithRequestID(r.Context(), id)))
		return next(c)
	}
}

func plainID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// securityHeaders are right for every answer; pages add what they need.
func securityHeaders(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		return next(c)
	}
}
