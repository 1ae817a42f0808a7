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

// Gateway is a proxy in front of the API server. It counts requests and can inject faults.
type Gateway struct {
	address string
	pass    http.Handler

	mu       sync.Mutex
	fault    Fault
	requests int
	conns    map[net.Conn]bool
}

// Fault answers a request as a faulty API server does, or passes it to the real one.
type Fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

// NewGateway returns a gateway on the loopback of ns, which needs no route to the control plane. The end of the test
// closes it.
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
			FlushInterval: -1, // forwards watch events at once
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

// Spoil closes every connection and lets fault answer from now on; nil removes the fault.
func (g *Gateway) Spoil(fault Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault, g.requests = fault, 0
	for c := range g.conns {
		c.Close()
	}
}

// Requests returns the number of requests since the last Spoil.
func (g *Gateway) Requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests
}
