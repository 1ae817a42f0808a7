package admin

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/usherproxy/usher/proxy/admin/dashboard"
)

// newServer returns a server that slow clients cannot block, and whose number of clients r limits.
func newServer(handler http.Handler, r *connLimiter) *http.Server {
	return &http.Server{
		Handler:           handler,
		ConnState:         r.connState,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // clients' errors are not logged
	}
}

// MaxClients is the maximum number of connections of a server that is open to all clients of the node, and of
// all health check node ports together. MaxAdminClients is that of the admin server. A further connection
// replaces an existing one: see connLimiter.
const (
	MaxClients      = 48
	MaxAdminClients = MaxSubscribers + 64
)

// Serve starts a server on address with a maximum number of concurrent connections. It sets Addr to the address of its
// listener.
func Serve(address string, handler http.Handler, clients int) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return ServeOn(l, handler, clients), nil
}

// ServeOn is Serve on a listener, which it takes over.
func ServeOn(l net.Listener, handler http.Handler, clients int) *http.Server {
	s := newServer(handler, &connLimiter{slots: clients})
	s.Addr = l.Addr().String()
	go func() { _ = s.Serve(l) }() // until Close
	return s
}

// HealthHandler returns the handler that is open to all clients of the node.
func HealthHandler(h *Health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", h.Healthz)
	mux.HandleFunc("GET /livez", h.Livez)
	return oneAnswer(mux)
}

// oneAnswer closes a connection after its first answer. Health checks are rare, and an open connection would
// occupy a slot between two of them.
func oneAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		next.ServeHTTP(w, r)
	})
}

// Handler returns the handler of the admin address (see the package comment). registry has the metrics. config is
// the configuration in force, which is served as JSON.
func Handler(a *API, registry *prometheus.Registry, config any) http.Handler {
	mux, h := http.NewServeMux(), a.opts.Health
	mux.HandleFunc("GET /healthz", h.Healthz)
	mux.HandleFunc("GET /livez", h.Livez)
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, "userspace")
	})
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, http.StatusOK, config) })
	mux.Handle("GET /{$}", dashboard.Handler())
	mux.Handle("GET /dashboard/", dashboard.Handler())
	a.register(mux)
	page := promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
	mux.Handle("GET /metrics", a.unread.limited(inTurn(make(chan struct{}, maxTurns), whole(page))))
	return mux
}
