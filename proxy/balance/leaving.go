package balance

import (
	"net/netip"
	"slices"
	"time"
)

// Leaving is an endpoint that terminates, or is gone with connections open.
type Leaving struct {
	*Endpoint
	Since time.Time // when that began
	Gone  bool
	Ended bool // its connections were told to end, for the reader to note
}

// leave brings p.Leaving up to date: those that are gone have just left.
func (p *Pool) leave(gone []*Endpoint) {
	had := p.Leaving
	p.Leaving = nil
	add := func(e *Endpoint, isGone bool) {
		l := Leaving{Endpoint: e, Since: p.now(), Gone: isGone}
		if i := slices.IndexFunc(had, func(l Leaving) bool { return l.State == e.State }); i >= 0 {
			l.Since, l.Ended = had[i].Since, had[i].Ended && !isGone
		}
		p.Leaving = append(p.Leaving, l)
	}
	for _, e := range p.All {
		if e.Terminating {
			add(e, false)
		}
	}
	for _, e := range gone {
		if e.Active.Load() > 0 {
			add(e, true)
		}
	}
	known := func(s *State) bool {
		return slices.ContainsFunc(p.All, func(e *Endpoint) bool { return e.State == s }) || slices.ContainsFunc(gone, func(e *Endpoint) bool { return e.State == s })
	}
	for _, l := range had {
		if l.Active.Load() > 0 && !known(l.State) {
			p.Leaving = append(p.Leaving, l)
		}
	}
}

// back returns the State of an endpoint that was gone, and still has connections; nil if
// there is none. Whatever it failed then is forgotten.
func (p *Pool) back(addr netip.AddrPort, pod string) *State {
	i := slices.IndexFunc(p.Leaving, func(l Leaving) bool { return l.Addr == addr && l.Pod == pod })
	if i < 0 {
		return nil
	}
	s := p.Leaving[i].State
	s.drained.Store(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = nil
	s.ends.Store(0)
	s.acquit()
	return s
}

// EndConnections makes those that are still established to an endpoint that is gone end by
// a time: see Drained.
func (s *State) EndConnections(by time.Time) { s.drained.Store(by.UnixNano()) }

// Drained returns by when a connection that is established now has to end; false if it
// may go on.
func (s *State) Drained() (by time.Time, ok bool) {
	ns := s.drained.Load()
	return time.Unix(0, ns), ns != 0
}
