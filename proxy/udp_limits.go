package proxy

import "sync/atomic"

// sessionLimits bounds how many UDP sessions are open.
type sessionLimits struct {
	total, perPort int64 // as the user set them; perPort may be 0
	open           atomic.Int64
}

// limit returns how many UDP sessions may be open at once. Anybody can send
// datagrams from addresses that are not theirs, so however many come, three
// quarters of the descriptors stay for connections.
func (e *udpEngine) limit() int64 {
	return min(e.limits.total, max(1, (e.proxy.connections.descriptors-e.proxy.connections.reserved())/4))
}

// limitPerPort returns how many of those one service port may have.
func (e *udpEngine) limitPerPort() int64 {
	if e.limits.perPort > 0 {
		return e.limits.perPort
	}
	return max(1, e.limit()/2)
}

// fullness says whether there is room for another session.
type fullness uint8

const (
	notFull  fullness = iota
	portFull          // the service port has its share
	allFull           // all sessions, or the descriptors, are in use
)

// reserve takes room for one more session of f, if there is some.
func (e *udpEngine) reserve(f *frontEnd) fullness {
	c := &e.proxy.connections
	e.take(f)
	used := c.reserved() + c.listeners.Load() + c.loops.Load() + c.udp.Load() + 2*c.open.Load()
	var full fullness
	switch {
	case f.sessions.Load() > e.limitPerPort():
		full = portFull
	case e.limits.open.Load() > e.limit() || used > c.descriptors:
		full = allFull
	default:
		return notFull
	}
	e.release(f)
	return full
}

// take takes room for one more session of f. Each takes one descriptor.
func (e *udpEngine) take(f *frontEnd) {
	f.sessions.Add(1)
	e.limits.open.Add(1)
	e.proxy.connections.udp.Add(1)
}

// release gives back what take has taken.
func (e *udpEngine) release(f *frontEnd) {
	f.sessions.Add(-1)
	e.limits.open.Add(-1)
	e.proxy.connections.udp.Add(-1)
}
