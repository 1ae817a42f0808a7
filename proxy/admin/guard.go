package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guard passes requests that a user types into a browser or that a program sends. It refuses requests that the
// page of another site makes the user's browser send.
//
// Such a page can make its own name resolve to 127.0.0.1 (DNS rebinding): then the browser sends requests with
// that name to this server. So guard refuses names other than localhost and the one that the server listens on;
// an address cannot be rebound. A page may also send requests without seeing the answers, to keep the server
// busy: browsers mark those in Sec-Fetch-Site.
type guard struct {
	host string // the configured listen host
	next http.Handler
}

// Guard returns a handler that refuses requests not meant for a server that listens on address, and makes
// browsers strict about the server's answers.
func Guard(address string, next http.Handler) http.Handler {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return &guard{host: host, next: next}
}

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
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && !follows(r.Header) {
		WriteError(w, http.StatusForbidden, "cross-site requests are not allowed")
		return
	}
	g.next.ServeHTTP(w, r)
}

// follows reports whether a browser will show the response as a page, as when the user follows a link. A hidden frame
// navigates, too, but has another destination.
func follows(h http.Header) bool {
	to := h.Get("Sec-Fetch-Dest")
	return h.Get("Sec-Fetch-Mode") == "navigate" && (to == "" || to == "document")
}

// knows reports whether a Host header names this server. HTTP/1.0 clients, which are not browsers, may omit
// it.
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
