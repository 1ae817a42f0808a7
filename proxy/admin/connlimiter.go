package admin

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

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
