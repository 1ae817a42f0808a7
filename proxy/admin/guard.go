package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guard lets through only what was meant for this server, by somebody who types
// an address or uses a program, and not by a page of another site in the user's
// browser.
//
// A page can make its own name resolve to 127.0.0.1 (DNS rebinding): then the
// browser asks this server under that name. So names other than those of the
// loopback interface and the one that the server listens on are refused; an
// address cannot be rebound. A page may also ask without seeing the answer, to
// keep the server busy: browsers say so in Sec-Fetch-Site.
type guard struct {
	host string // that the server was told to listen on
	next http.Handler
}

// Guard returns a handler that refuses what was not meant for a server that listens
// on address, and tells browsers to be strict with what the server answers.
func Guard(address string, next http.Handler) http.Handler {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return &guard{host: host, next: next}
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if !g.knows(r.Host) {
		WriteError(w, http.StatusMisdirectedRequest, fmt.Sprintf("unknown host %q: use an IP address, localhost, or the host of --admin-address", r.Host))
		return
	}
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		WriteError(w, http.StatusForbidden, "cross-site requests are not allowed")
		return
	}
	g.next.ServeHTTP(w, r)
}

// knows reports whether a Host header names this server. Clients of HTTP/1.0,
// which are no browsers, may leave it out.
func (g *guard) knows(header string) bool {
	if header == "" {
		return true
	}
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.Trim(header, "[]")
	}
	host = strings.TrimSuffix(host, ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || g.host != "" && strings.EqualFold(host, g.host)
}
