package balance

import "time"

// CouldGoOn reports whether there is an endpoint with room for a client in line.
func (p *Place) CouldGoOn(now time.Time) bool {
	l := &p.set.pool.line
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := p.peek(now)
	return ok || !c.Full()
}
