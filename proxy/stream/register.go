package stream

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
)

// register counts the connections that are open.
type register struct {
	budget  *budget.Budget
	moving  sync.Map                      // forward.Flow of those that goroutines serve, by *Conn
	clients [16]clients                   // who shares one shares a lock
	drained atomic.Pointer[chan struct{}] // closed when there is none any more; nil if nobody waits
}

// clients are some clients, and how many connections each has.
type clients struct {
	mu   sync.Mutex
	open map[netip.Addr]int64
}

// with returns those that client is among.
func (r *register) with(client netip.Addr) *clients {
	bits := client.As16()
	return &r.clients[bits[15]%uint8(len(r.clients))]
}

// add takes room for conn, or says why there is none.
func (r *register) add(conn *Conn) error {
	toPort, client := conn.Front.Open.Add(1), conn.Payer()
	err := r.budget.TakeConnection(toPort, r.count(client, 1))
	if err != nil {
		conn.Front.Open.Add(-1)
		r.count(client, -1)
		r.tell()
	}
	return err
}

// reassign makes conn count as one of its Payer's now that its client is known: it counted as
// one of balancer's. The error is add's, and conn stays in the register.
func (r *register) reassign(conn *Conn, balancer netip.Addr) error {
	r.count(balancer, -1)
	return r.budget.RoomForClient(r.count(conn.Payer(), 1))
}

func (r *register) remove(conn *Conn) {
	conn.Front.Open.Add(-1)
	r.count(conn.Payer(), -1)
	r.budget.Connections.Add(-1)
	r.tell()
}

// count counts so many more of a client's, and returns how many that makes.
func (r *register) count(client netip.Addr, more int64) int64 {
	c := r.with(client)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[netip.Addr]int64{}
	}
	n := c.open[client] + more
	if c.open[client] = n; n == 0 {
		delete(c.open, client)
	}
	return n
}

// each calls f for those that goroutines serve and that have an endpoint.
func (r *register) each(f func(*Conn, forward.Flow)) {
	r.moving.Range(func(conn, flow any) bool {
		f(conn.(*Conn), flow.(forward.Flow))
		return true
	})
}

// whenDrained returns a channel that is closed when no connection is open. It is asked for
// once, and no more are added then.
func (r *register) whenDrained() <-chan struct{} {
	drained := make(chan struct{})
	r.drained.Store(&drained)
	r.tell()
	return drained
}

// tell closes drained if it is time.
func (r *register) tell() {
	if r.budget.Connections.Load() != 0 {
		return
	}
	if drained := r.drained.Load(); drained != nil && r.drained.CompareAndSwap(drained, nil) {
		close(*drained)
	}
}
