package api

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/labstack/echo/v4"
)

// guard decides which requests come in at all. A browser on another site must
// not act here in its user's name, and, where no key protects the door, must
// not reach it under a host name of its own either (DNS rebinding).
func (a *API) guard(next echo.HandlerFunc) echo.HandlerFunc {
	crossOrigin := http.NewCrossOriginProtection()
	return func(c echo.Context) error {
		r := c.Request()
		ctx := context.WithValue(r.Context(), requestIDKey{}, requestID(c))
		c.SetRequest(r.WithContext(ctx))
		if err := crossOrigin.Check(r); err != nil {
			return newProblem(http.StatusForbidden, "a page of another site may not do this")
		}
		if a.Loopback && !localHost(r.Host) {
			return newProblem(http.StatusMisdirectedRequest, "this server answers to localhost and IP addresses only")
		}
		return next(c)
	}
}

func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
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
