package balance

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
)

// Pool holds the endpoints of one service port. One goroutine at a time may call its exported methods;
// its Sets are safe for concurrent use.
type Pool struct {
	// Watcher, if not nil, is notified of the quarantine of endpoints. Set it before the first Update.
	Watcher Watcher

	// FirstTurn returns the index, modulo the number of endpoints, at which the rotation of the first Update's Sets
	// begins. Nil means 0. Set it before the first Update.
	FirstTurn func() uint32

	// All holds every endpoint, usable or not, in the order of config.ServicePort.Endpoints.
	All []*Endpoint

	// The usable endpoints by kind of client: see config.ServicePort. Never nil after Update.
	Cluster, Internal, External *Set

	// Leaving holds the endpoints that terminate, and removed ones that had connections at the last Update. It is empty
	// for UDP.
	Leaving []Leaving

	bound   atomic.Int64             // maximum number of connections to each endpoint; 0 = no limit
	waiting atomic.Int64             // number of clients in all queues
	queues  atomic.Pointer[[3]group] // by Set.group; nil before the first client waits
}

// Update replaces the endpoints by those of port, and keeps the state of those that stay. It returns the
// removed ones, including any that another Pod replaced at the same address.
func (p *Pool) Update(port config.ServicePort, now time.Time) (gone []*Endpoint) {
	first, old, left := p.Cluster == nil, byAddr(p.All), p.left()
	p.bound.Store(int64(port.EndpointLimit))
	listed := make(map[netip.AddrPort]*Endpoint, len(port.Endpoints))
	p.All = make([]*Endpoint, len(port.Endpoints))
	endpoints := make([]Endpoint, len(port.Endpoints))
	for i := range port.Endpoints {
		c, e := &port.Endpoints[i], &endpoints[i]
		e.Endpoint, e.pool = c, p
		known := old[c.Addr]
		switch {
		case known == nil:
			e.State = cmp.Or(left[identity{c.Addr, c.Pod}].reinstate(), new(State))
		case known.Pod != c.Pod:
			gone = append(gone, known)
			e.State = cmp.Or(left[identity{c.Addr, c.Pod}].reinstate(), new(State))
		default:
			e.State = known.State
		}
		if !first && c.Ready && (known == nil || known.State != e.State || !known.Ready) {
			e.ensureRare().readyAt.Store(now.UnixNano())
		}
		listed[c.Addr], p.All[i] = e, e
	}
	for addr, e := range old {
		if listed[addr] == nil {
			gone = append(gone, e)
		}
	}
	if port.Protocol != config.UDP {
		p.leave(gone, now)
	}
	p.Cluster = p.newSet(p.Cluster, port.Cluster, listed)
	p.Internal = p.newSet(p.Internal, port.Internal, listed)
	p.External = p.newSet(p.External, port.External, listed)
	schedule(schedulers[cmp.Or(port.Scheduler, config.RoundRobin)], p.Cluster, p.Internal, p.External)
	for _, s := range []*Set{p.Cluster, p.Internal, p.External} {
		s.timeout = port.QueueTimeout
		s.slow, s.limited = newSlowStart(s, &port, now), port.EndpointLimit > 0
	}
	return gone
}

// byAddr returns list by address. The map is not kept, to save memory: each of thousands of service ports has a Pool.
func byAddr(list []*Endpoint) map[netip.AddrPort]*Endpoint {
	m := make(map[netip.AddrPort]*Endpoint, len(list))
	for _, e := range list {
		m[e.Addr] = e
	}
	return m
}

// newSet returns a Set of the endpoints in list, which it looks up by address in the map named all. It continues old's
// rotation.
func (p *Pool) newSet(old *Set, list []config.Endpoint, all map[netip.AddrPort]*Endpoint) *Set {
	s := &Set{pool: p, endpoints: make([]*Endpoint, 0, len(list))}
	switch {
	case old != nil:
		s.cursor.Store(old.cursor.Load())
		s.order = old.order // until schedule replaces it
	case p.FirstTurn != nil:
		s.cursor.Store(p.FirstTurn())
	}
	for _, c := range list {
		if e := all[c.Addr]; e != nil {
			s.endpoints = append(s.endpoints, e)
		}
	}
	s.sorted = slices.IsSortedFunc(s.endpoints, func(a, b *Endpoint) int { return a.Addr.Compare(b.Addr) })
	return s
}

// schedule sets the order, made by a scheduler, and the group of each Set. Sets that have the same endpoints share
// both.
func schedule(by scheduler, sets ...*Set) {
	for i, s := range sets {
		s.reason = by.reason
		same := func(o *Set) bool { return slices.Equal(o.endpoints, s.endpoints) }
		if j := slices.IndexFunc(sets[:i], same); j >= 0 {
			s.order, s.group = sets[j].order, j
		} else {
			s.order, s.group = by.order(s), i
		}
	}
}
