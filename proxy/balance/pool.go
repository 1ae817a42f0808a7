package balance

import (
	"net/netip"

	"github.com/usherproxy/usher/config"
)

// Pool holds the endpoints of one service port. One goroutine at a time may
// call its methods; the Sets that it hands out may be used from any.
type Pool struct {
	// Watcher, if not nil, is told of the quarantine of endpoints. It is set
	// before the first Update.
	Watcher Watcher

	byAddr map[netip.AddrPort]*Endpoint

	// All are all endpoints, usable or not, in the order of the model.
	All []*Endpoint

	// The usable ones, by who asks: see config.ServicePort. Never nil after
	// Update.
	Cluster, Internal, External *Set
}

// Update makes the pool hold the endpoints of port, keeping what is known of
// those that stay. It returns the endpoints that are gone; one that was
// replaced by another Pod at the same address is among them.
func (p *Pool) Update(port config.ServicePort) (gone []*Endpoint) {
	old := p.byAddr
	p.byAddr = make(map[netip.AddrPort]*Endpoint, len(port.Endpoints))
	p.All = make([]*Endpoint, 0, len(port.Endpoints))
	for _, c := range port.Endpoints {
		e := old[c.Addr]
		switch {
		case e == nil:
			e = &Endpoint{c, new(State), p.Watcher}
		case e.Pod != c.Pod:
			gone = append(gone, e)
			e = &Endpoint{c, new(State), p.Watcher}
		case e.Endpoint != c:
			e = &Endpoint{c, e.State, p.Watcher}
		}
		p.byAddr[c.Addr] = e
		p.All = append(p.All, e)
	}
	for addr, e := range old {
		if p.byAddr[addr] == nil {
			gone = append(gone, e)
		}
	}
	p.Cluster = p.set(p.Cluster, port.Cluster)
	p.Internal = p.set(p.Internal, port.Internal)
	p.External = p.set(p.External, port.External)
	return gone
}

// set returns a Set of the endpoints in list that goes on where old was in the
// rotation.
func (p *Pool) set(old *Set, list []config.Endpoint) *Set {
	s := &Set{endpoints: make([]*Endpoint, 0, len(list))}
	if old != nil {
		s.cursor.Store(old.cursor.Load())
	}
	for _, c := range list {
		if e := p.byAddr[c.Addr]; e != nil {
			s.endpoints = append(s.endpoints, e)
		}
	}
	return s
}
