package proxy

import (
	"sync"
	"sync/atomic"

	"github.com/usherproxy/usher/portal/handover"
)

// reserved returns how many descriptors are kept for what is neither a connection
// nor a listener: standard files, epoll, netlink, admin clients, iptables' pipes,
// and the copies of listeners of which a handover makes so many at a time. Where
// few are allowed, a quarter has to do.
func (c *connections) reserved() int64 {
	return min(mostReserved, c.descriptors/4)
}

const mostReserved = 256 + handover.SocketsAtOnce

// connections are all that are open, and the bound on them.
type connections struct {
	max         int64 // as the user set it, or 0
	descriptors int64 // that the process may have
	listeners   atomic.Int64
	loops       atomic.Int64 // descriptors that the TCP loops may have, pipes included
	udp         atomic.Int64 // descriptors that UDP has: sessions, loops, sockets beyond one for each listener
	open        atomic.Int64
	next        atomic.Uint64

	mu    *sync.Mutex
	byID  map[uint64]*connection
	empty *sync.Cond
}

func newConnections(max int64) connections {
	mu := new(sync.Mutex)
	return connections{max: max, descriptors: openFilesLimit(), mu: mu, byID: map[uint64]*connection{}, empty: sync.NewCond(mu)}
}

// limit returns how many connections may be open at once. Each takes two
// descriptors.
func (c *connections) limit() int64 {
	limit := max(1, (c.descriptors-c.reserved()-c.listeners.Load()-c.loops.Load()-c.udp.Load())/2)
	if c.max > 0 {
		limit = min(limit, c.max)
	}
	return limit
}

// add makes room for conn and gives it its number, or reports that there is no
// room.
func (c *connections) add(conn *connection, perPort int64) bool {
	if c.open.Add(1) > c.limit() {
		c.open.Add(-1)
		return false
	}
	if n := conn.front.open.Add(1); perPort > 0 && n > perPort {
		conn.front.open.Add(-1)
		c.open.Add(-1)
		return false
	}
	c.mu.Lock()
	c.byID[conn.id] = conn
	c.mu.Unlock()
	return true
}

func (c *connections) remove(conn *connection) {
	conn.front.open.Add(-1)
	c.open.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, conn.id)
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
