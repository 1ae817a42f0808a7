package admin

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
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

// connLimiter limits the concurrent clients of one or several servers. At the limit, a new client does not wait: it
// replaces a client of the source that has the most. Of these, it replaces the earliest whose request is not being
// answered or, if there is none, the earliest. So idle connections, and clients that send a byte from time to time,
// keep no other client out.
type connLimiter struct {
	slots int

	mu      sync.Mutex
	clients []*client // in order of arrival
}

// client is a connection to a server.
type client struct {
	conn   net.Conn
	source netip.Prefix
	active bool // a request is being answered
}

// sendBuffer is the kernel's send buffer for a client that does not read. By default it could grow to
// megabytes.
const sendBuffer = 64 << 10

// connState implements http.Server's ConnState.
func (r *connLimiter) connState(conn net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if state == http.StateNew {
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.SetWriteBuffer(sendBuffer) // fails only if the connection is already closed
		}
		if len(r.clients) >= r.slots {
			r.sendAway()
		}
		r.clients = append(r.clients, &client{conn: conn, source: sourceOf(conn)})
		return
	}
	for i, c := range r.clients {
		if c.conn != conn {
			continue
		}
		c.active = state == http.StateActive
		if state == http.StateClosed || state == http.StateHijacked {
			r.clients = append(r.clients[:i], r.clients[i+1:]...)
		}
		return
	}
}

// sendAway closes the connection of one client.
func (r *connLimiter) sendAway() {
	of := map[netip.Prefix]int{}
	for _, c := range r.clients {
		of[c.source]++
	}
	worst := 0
	for i, c := range r.clients {
		w := r.clients[worst]
		if of[c.source] > of[w.source] || of[c.source] == of[w.source] && w.active && !c.active {
			worst = i
		}
	}
	r.clients[worst].conn.Close()
	r.clients = append(r.clients[:worst], r.clients[worst+1:]...)
}

// sourceOf returns the addresses that one client may have: an IPv4 address, or an IPv6 network of 64 bits
// (RFC 4291, 2.5.4).
func sourceOf(conn net.Conn) netip.Prefix {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap().WithZone("")
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	source, _ := addr.Prefix(bits) // bits is valid for the address
	return source
}
