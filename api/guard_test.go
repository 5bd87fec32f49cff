package api

import (
	"strings"
	"testing"

	"piecework/internal/testkit"
)

func TestPagesOfOtherSitesMayNotAct(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.post("/work-units", mock(""), "Sec-Fetch-Site", "cross-site").refused(403, "", "another site")
	f.post("/work-units", mock(""), "Origin", "https://evil.example").refused(403, "", "another site")
	f.do("POST", "/work-units", mock(""), "Content-Type", "text/plain", "Origin", "null").refused(403, "", "another site")
	f.post("/work-units", mock(""), "Sec-Fetch-Site", "same-origin").is(202)
	f.post("/work-units", mock(""), "Origin", f.url).is(202)
	f.get("/work-units", "Sec-Fetch-Site", "cross-site").is(200)
}

func TestServerAnswersToItsOwnNamesOnly(t *testing.T) {
	t.Parallel()
	f := openFront(t, testkit.DB(t, migrate), nowhere, func(o *Options) { o.Hosts = []string{"Units.example", "build-7"} })
	for _, host := range []string{"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7070", "evil.example:80",
		"localhost@evil.example", "x.units.example", "units.example.evil.example"} {
		for _, path := range []string{"/work-units", "/callback-secret", "/live", "/events", "/", "/metrics", "/nope"} {
			f.get(path, "Host", host).refused(421, "", "localhost")
		}
		f.post("/work-units", mock(""), "Host", host, "Origin", "http://"+host).is(421)
	}
	for _, host := range []string{"localhost", "LOCALHOST:7070", "dev.localhost", "127.0.0.1:7070", "[::1]:7070", "10.1.2.3",
		"units.example", "UNITS.example:443", "build-7:80"} {
		f.get("/work-units", "Host", host).is(200)
	}
	f.post("/triggers/none", "{}", "Host", "evil.example").is(421)
}

func TestEveryAnswerCarriesSecurityHeaders(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	for _, path := range []string{"/", "/work-units", "/nope", "/docs", "/asynqmon", "/static/app.css", "/healthz", "/openapi.json"} {
		h := f.get(path).header
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v", path, h)
		}
		csp := h.Get("Content-Security-Policy")
		if !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
			t.Errorf("%s: %s", path, csp)
		}
		if path != "/docs" && path != "/asynqmon" && strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", path, csp)
		}
	}
}
