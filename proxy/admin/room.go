package admin

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// room bounds how many clients one or several servers have at once. None waits for
// another to go: a client that comes when the room is full has the place of one that
// was there before. That is one of the source that has most clients, whose request is
// not being answered, if there is such a client, and the one that came first. So who
// leaves connections idle, or sends a byte from time to time, keeps nobody else out.
type room struct {
	places int

	mu      sync.Mutex
	clients []*client // in the order in which they came
}

// client is a connection to a server.
type client struct {
	conn     net.Conn
	source   netip.Prefix
	answered bool // a request of its is being answered
}

// sendBuffer is how much the kernel may hold for a client that does not read. By
// itself it would let that grow to megabytes.
const sendBuffer = 64 << 10

// connState implements http.Server's ConnState.
func (r *room) connState(conn net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if state == http.StateNew {
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.SetWriteBuffer(sendBuffer) // fails only if the connection is gone already
		}
		if len(r.clients) >= r.places {
			r.sendAway()
		}
		r.clients = append(r.clients, &client{conn: conn, source: sourceOf(conn)})
		return
	}
	for i, c := range r.clients {
		if c.conn != conn {
			continue
		}
		c.answered = state == http.StateActive
		if state == http.StateClosed || state == http.StateHijacked {
			r.clients = append(r.clients[:i], r.clients[i+1:]...)
		}
		return
	}
}

// sendAway closes the connection of one client.
func (r *room) sendAway() {
	of := map[netip.Prefix]int{}
	for _, c := range r.clients {
		of[c.source]++
	}
	worst := 0
	for i, c := range r.clients {
		w := r.clients[worst]
		if of[c.source] > of[w.source] || of[c.source] == of[w.source] && w.answered && !c.answered {
			worst = i
		}
	}
	r.clients[worst].conn.Close()
	r.clients = append(r.clients[:worst], r.clients[worst+1:]...)
}

// sourceOf returns what one client may be taken to have for itself: an IPv4 address,
// or an IPv6 network of 64 bits (RFC 4291, 2.5.4).
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
	source, _ := addr.Prefix(bits) // so many bits they have
	return source
}
