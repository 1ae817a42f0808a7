package balance

import (
	"net/netip"
	"time"
)

// CouldGoOn reports whether an endpoint has a free slot for a waiting client.
func (s *Set) CouldGoOn(a Request, had netip.AddrPort, now time.Time) bool {
	a.Now = now
	if c, kept := s.Again(had, a); kept {
		return !c.Full()
	}
	c, _, ok := s.Peek(0, a)
	return ok || !c.Full()
}
