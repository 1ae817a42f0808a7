package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/usherproxy/usher/proxy/admin/dashboard"
)

// newServer returns a server that no slow client can hold up.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // what clients do wrong is no news
	}
}

// MaxClients is how many connections a server for everybody who can reach the node
// takes at once, and MaxAdminClients, how many the admin server does. Further ones
// wait to be accepted.
const (
	MaxClients      = 16
	MaxAdminClients = MaxSubscribers + 64
)

// Server is an HTTP server that runs.
type Server struct {
	server *http.Server
	addr   net.Addr
}

// Addr returns where it listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Close ends it.
func (s *Server) Close() { s.server.Close() }

// Serve starts a server on address, which takes so many connections at once.
func Serve(address string, handler http.Handler, clients int) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{server: newServer(handler), addr: l.Addr()}
	go func() { _ = s.server.Serve(netutil.LimitListener(smallBuffers{l}, clients)) }() // until Close
	return s, nil
}

// sendBuffer is how much the kernel may hold for a client that does not read. By
// itself it would let that grow to megabytes.
const sendBuffer = 64 << 10

// smallBuffers is a listener whose connections have a bounded send buffer.
type smallBuffers struct{ net.Listener }

// Accept implements net.Listener.
func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetWriteBuffer(sendBuffer) // fails only if the connection is gone already
	}
	return c, err
}

// listenNode listens on a port of the node's addresses in the networks given, or
// of all.
func listenNode(networks []netip.Prefix, port uint16) ([]net.Listener, error) {
	hosts := []string{""}
	if len(networks) > 0 {
		hosts = addressesIn(networks)
	}
	var listeners []net.Listener
	for _, host := range hosts {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			for _, open := range listeners {
				open.Close()
			}
			var op *net.OpError
			if errors.As(err, &op) {
				err = op.Err
			}
			return nil, fmt.Errorf("cannot listen: %w", err)
		}
		listeners = append(listeners, netutil.LimitListener(l, MaxClients))
	}
	if len(listeners) == 0 {
		return nil, errors.New("this node has no address in the networks for node ports")
	}
	return listeners, nil
}

// addressesIn returns this node's addresses in the networks given.
func addressesIn(networks []netip.Prefix) (hosts []string) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(p.Addr()) }) {
			hosts = append(hosts, p.Addr().String())
		}
	}
	return hosts
}

// HealthHandler returns what is served to everybody who can reach the node.
func HealthHandler(h *Health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", h.Healthz)
	mux.HandleFunc("GET /livez", h.Livez)
	return mux
}

// Handler returns what is served on the admin address: the API, metrics that
// registry has, and config, the configuration in force, as JSON.
func Handler(a *API, h *Health, registry *prometheus.Registry, config any) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", h.Healthz)
	mux.HandleFunc("GET /livez", h.Livez)
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, "userspace")
	})
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, config) })
	mux.Handle("GET /{$}", dashboard.Handler())
	mux.Handle("GET /dashboard/", dashboard.Handler())
	a.register(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}

// RunRetries calls Retry at every interval until ctx ends.
func (h *HealthChecks) RunRetries(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.Retry()
		}
	}
}
