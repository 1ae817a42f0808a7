package balance

import (
	"net/netip"
	"slices"
	"time"

	"github.com/usherproxy/usher/config"
)

// Leaving is an endpoint that terminates, or that was removed with connections open.
type Leaving struct {
	*Endpoint
	Since time.Time // when it began to terminate or was removed
	Gone  bool      // it was removed
	Ended bool      // its connections were ended; set by the caller that ended them
}

// leave updates p.Leaving. The parameter gone holds the endpoints that were just removed.
func (p *Pool) leave(gone []*Endpoint, now time.Time) {
	before := p.Leaving
	had := make(map[*State]*Leaving, len(before)) // the previous entries; those found below are deleted
	for i := range before {
		had[before[i].State] = &before[i]
	}
	p.Leaving = nil
	add := func(e *Endpoint, isGone bool) {
		l := Leaving{Endpoint: e, Since: now, Gone: isGone}
		if was := had[e.State]; was != nil {
			l.Since, l.Ended = was.Since, was.Ended && !isGone
		}
		p.Leaving = append(p.Leaving, l)
	}
	for _, e := range p.All {
		if e.Terminating {
			add(e, false)
		}
		delete(had, e.State)
	}
	for _, e := range gone {
		if e.Active.Load() > 0 {
			add(e, true)
		}
		delete(had, e.State)
	}
	for _, l := range before {
		if had[l.State] != nil && l.Active.Load() > 0 {
			p.Leaving = append(p.Leaving, l)
		}
	}
}

// identity distinguishes endpoints that had the same address one after the other.
type identity struct {
	addr netip.AddrPort
	pod  string
}

// left returns the States of the endpoints in p.Leaving. It builds a map: call it once per Update.
func (p *Pool) left() map[identity]*State {
	left := make(map[identity]*State, len(p.Leaving))
	for _, l := range slices.Backward(p.Leaving) {
		left[identity{l.Addr, l.Pod}] = l.State
	}
	return left
}

// reinstate returns s for a removed endpoint that is listed again. It resets its health, Outlier, Since and Drained,
// and keeps its counters. It returns nil if s is nil.
func (s *State) reinstate() *State {
	if s == nil {
		return nil
	}
	r := s.ensureRare()
	r.drained.Store(0)
	r.breaks.Store(nil)
	s.health.Store(nil)
	s.ends.Store(0)
	s.stateSince.Store(0)
	return s
}

// EndConnections sets the time by which connections of a removed endpoint must end. The caller ends the open ones; an
// attempt that is under way may still succeed, and its connection must end by this time, too. See Drained.
func (s *State) EndConnections(by time.Time) { s.ensureRare().drained.Store(by.UnixNano()) }

// Inherit returns the endpoint with the address and Pod of c, to which a previous process has connections. If it is
// neither in p.All nor in p.Leaving, Inherit adds it to p.Leaving. The parameter since is when it began to leave in the
// previous process; zero if it was not leaving. The caller calls Take of the returned endpoint before the next Update.
func (p *Pool) Inherit(c *config.Endpoint, since time.Time, now time.Time) *Endpoint {
	if since.IsZero() || since.After(now) {
		since = now
	}
	since = now.Add(since.Sub(now)) // with now's monotonic clock reading
	for i := range p.Leaving {
		if l := &p.Leaving[i]; l.Addr == c.Addr && l.Pod == c.Pod {
			if since.Before(l.Since) {
				l.Since = since
			}
			return l.Endpoint
		}
	}
	for _, e := range p.All {
		if e.Addr == c.Addr && e.Pod == c.Pod {
			return e
		}
	}
	e := &Endpoint{Endpoint: c, State: new(State), pool: p}
	p.Leaving = append(p.Leaving, Leaving{Endpoint: e, Since: since, Gone: true})
	return e
}
