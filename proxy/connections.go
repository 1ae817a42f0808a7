package proxy

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// connections are all that are open.
type connections struct {
	budget *budget
	next   atomic.Uint64

	mu       *sync.Mutex
	byID     map[uint64]*connection
	byClient map[netip.Addr]int64 // how many
	empty    *sync.Cond
}

func newConnections(b *budget) connections {
	mu := new(sync.Mutex)
	return connections{budget: b, mu: mu, byID: map[uint64]*connection{}, byClient: map[netip.Addr]int64{}, empty: sync.NewCond(mu)}
}

// add takes room for conn, or says why there is none.
func (c *connections) add(conn *connection) error {
	toPort := conn.front.open.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	client := conn.from.Addr()
	if err := c.budget.takeConnection(toPort, c.byClient[client]+1); err != nil {
		conn.front.open.Add(-1)
		return err
	}
	c.byClient[client]++
	c.byID[conn.id] = conn
	return nil
}

func (c *connections) remove(conn *connection) {
	conn.front.open.Add(-1)
	c.budget.connections.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, conn.id)
	client := conn.from.Addr()
	if c.byClient[client]--; c.byClient[client] == 0 {
		delete(c.byClient, client)
	}
	if len(c.byID) == 0 {
		c.empty.Broadcast()
	}
}

// drained returns a channel that is closed when no connection is open.
func (c *connections) drained() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for len(c.byID) > 0 {
			c.empty.Wait()
		}
		close(done)
	}()
	return done
}

// breakAll breaks every connection and returns how many there were.
func (c *connections) breakAll() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.byID {
		if flow := conn.flow.Load(); flow != nil {
			(*flow).Break()
		}
	}
	return len(c.byID)
}
