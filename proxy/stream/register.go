package stream

import (
	"net/netip"
	"sync"

	"github.com/usherproxy/usher/proxy/budget"
)

// register has the connections that are open.
type register struct {
	budget *budget.Budget

	mu       *sync.Mutex
	byID     map[uint64]*connection
	byClient map[netip.Addr]int64 // how many
	empty    *sync.Cond
}

func newRegister(b *budget.Budget) register {
	mu := new(sync.Mutex)
	return register{budget: b, mu: mu, byID: map[uint64]*connection{}, byClient: map[netip.Addr]int64{}, empty: sync.NewCond(mu)}
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

func (r *register) remove(conn *connection) {
	conn.Front.Open.Add(-1)
	r.budget.Connections.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, conn.ID)
	client := conn.From.Addr()
	if r.byClient[client]--; r.byClient[client] == 0 {
		delete(r.byClient, client)
	}
	if len(r.byID) == 0 {
		r.empty.Broadcast()
	}
}

// drained returns a channel that is closed when no connection is open.
func (r *register) drained() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for len(r.byID) > 0 {
			r.empty.Wait()
		}
		close(done)
	}()
	return done
}

// breakAll breaks every connection and returns how many there were.
func (r *register) breakAll() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.byID {
		if flow := conn.flow.Load(); flow != nil {
			(*flow).Break()
		}
	}
	return len(r.byID)
}
