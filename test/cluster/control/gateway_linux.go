package control

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// A Gateway is a way to the API server that reads what is asked, and where a test can be
// an API server in trouble.
type Gateway struct {
	address string
	pass    http.Handler

	mu       sync.Mutex
	fault    Fault
	requests int
	conns    map[net.Conn]bool
}

// Fault answers a request as an API server in trouble does, or has the real one answer.
type Fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

// NewGateway returns a gateway on the loopback of ns, which needs no way to the control
// plane. It goes when the test ends.
func (p *Plane) NewGateway(ns *lab.Namespace) *Gateway {
	GinkgoHelper()
	pair, err := tls.LoadX509KeyPair(p.path("apiserver.crt"), p.path("apiserver.key"))
	Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.ca.pem)
	upstream, err := url.Parse(p.Server())
	Expect(err).NotTo(HaveOccurred())
	silent := log.New(io.Discard, "", 0)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: p.dialContext, ForceAttemptHTTP2: true}
	l := ns.Listen("127.0.0.1:0")
	g := &Gateway{
		address: l.Addr().String(),
		pass: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
			Transport:     transport,
			FlushInterval: -1, // a watch is told at once
			ErrorLog:      silent,
		},
		conns: map[net.Conn]bool{},
	}
	server := &http.Server{
		Handler:   g,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
		ConnState: func(c net.Conn, state http.ConnState) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.conns[c] = true; state == http.StateClosed {
				delete(g.conns, c)
			}
		},
		ErrorLog: silent,
	}
	go func() { _ = server.ServeTLS(l, "", "") }() // until it is closed
	DeferCleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return g
}

// Server is the URL of the API server behind the gateway.
func (g *Gateway) Server() string { return "https://" + g.address }

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.requests++
	fault := g.fault
	g.mu.Unlock()
	if fault == nil {
		g.pass.ServeHTTP(w, r)
		return
	}
	fault(w, r, g.pass)
}

// Spoil breaks every connection, and has fault answer from now on; nil ends that.
func (g *Gateway) Spoil(fault Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault, g.requests = fault, 0
	for c := range g.conns {
		c.Close()
	}
}

// Requests returns how many there were since the last Spoil.
func (g *Gateway) Requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests
}
