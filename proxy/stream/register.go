package stream

import (
	"net/netip"
	"sync"

	"github.com/usherproxy/usher/proxy/budget"
)

// register has the connections that are open.
type register struct {
	budget *budget.Budget

	mu       sync.Mutex
	byID     map[uint64]*connection
	byClient map[netip.Addr]int64 // how many
	drained  chan struct{}        // closed when there is none any more; nil if nobody waits
}

// add takes room for conn, or says why there is none.
func (r *register) add(conn *connection) error {
	toPort := conn.Front.Open.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	client := conn.From.Addr()
	if err := r.budget.TakeConnection(toPort, r.byClient[client]+1); err != nil {
		conn.Front.Open.Add(-1)
		return err
	}
	r.byClient[client]++
	r.byID[conn.ID] = conn
	return nil
}

// reassign makes conn count as one of its client's, as which it was not known: it counted as
// one of balancer's. The error is add's, and conn stays in the register.
func (r *register) reassign(conn *connection, balancer netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(balancer)
	client := conn.From.Addr()
	r.byClient[client]++
	return r.budget.RoomForClient(r.byClient[client])
}

func (r *register) remove(conn *connection) {
	conn.Front.Open.Add(-1)
	r.budget.Connections.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, conn.ID)
	r.forget(conn.From.Addr())
	r.tell()
}

// forget counts one less of a client's. mu is held.
func (r *register) forget(client netip.Addr) {
	if r.byClient[client]--; r.byClient[client] == 0 {
		delete(r.byClient, client)
	}
}

// whenDrained returns a channel that is closed when no connection is open. It is asked for
// once, and no more are added then.
func (r *register) whenDrained() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	drained := make(chan struct{})
	r.drained = drained
	r.tell()
	return drained
}

// tell closes drained if it is time.
func (r *register) tell() {
	if r.drained != nil && len(r.byID) == 0 {
		close(r.drained)
		r.drained = nil
	}
}

// open returns how many connections are open.
func (r *register) open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

// breakAll breaks every connection that has an endpoint.
func (r *register) breakAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.byID {
		if flow := conn.flow.Load(); flow != nil {
			(*flow).Break()
		}
	}
}
