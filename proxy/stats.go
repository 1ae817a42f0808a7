package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/frontend"
)

// counters count changes since the start. What clients do is counted by the front ends.
type counters struct {
	serviceChanges, endpointChanges   atomic.Int64
	servicesApplied, endpointsApplied atomic.Int64 // of those
	repaired, portalFailures          atomic.Int64
}

// appliedChanges notes that the kernel has taken all changes so far.
func (c *counters) appliedChanges() {
	c.servicesApplied.Store(c.serviceChanges.Load())
	c.endpointsApplied.Store(c.endpointChanges.Load())
}

// Stats are numbers about a Proxy: those that count do so since its start.
type Stats struct {
	frontend.Stats

	Services, Ports int
	Listeners       int64
	Saved           int64 // open TCP connections that survive a crash of this process: its keeper has copies of their sockets
	AffinityClients int64
	Problems        map[Reason]int

	ServiceChanges, EndpointChanges   int64
	ServicesPending, EndpointsPending int64 // of those, that the kernel has not taken yet
	Repaired                          int64 // rules, routes and chains that somebody had removed or changed
	PortalFailures                    int64 // changes that the portal could not make

	// NoLocalEndpoints is how many service ports have policy Local, endpoints,
	// and none of them on this node.
	NoLocalEndpoints map[config.Family]NoLocal

	// Descriptors are those in use by listeners, connections and sessions, of which there may
	// be DescriptorLimit.
	Descriptors, DescriptorLimit int64
}

// NoLocal counts service ports by the policy that leaves them without endpoints.
type NoLocal struct{ Internal, External int }

// Stats returns the numbers as they are now.
func (p *Proxy) Stats() Stats {
	c := &p.counters
	servicesApplied, endpointsApplied := c.servicesApplied.Load(), c.endpointsApplied.Load() // before what they are of
	s := Stats{
		Stats:            p.node.Stats(),
		Listeners:        p.node.Budget.Listeners.Load(),
		Saved:            p.streams.Saved(),
		AffinityClients:  p.affinities.Used(),
		Problems:         map[Reason]int{},
		ServiceChanges:   c.serviceChanges.Load(),
		EndpointChanges:  c.endpointChanges.Load(),
		Repaired:         c.repaired.Load(),
		PortalFailures:   c.portalFailures.Load(),
		NoLocalEndpoints: map[config.Family]NoLocal{config.IPv4: {}, config.IPv6: {}},
	}
	s.Descriptors, s.DescriptorLimit = p.node.Budget.Used()
	s.ServicesPending = s.ServiceChanges - servicesApplied
	s.EndpointsPending = s.EndpointChanges - endpointsApplied

	p.mu.Lock()
	defer p.mu.Unlock()
	s.Services = len(p.services)
	for _, fronts := range p.services {
		s.Ports += len(fronts)
		for _, f := range fronts {
			v := f.View()
			if f.Protocol == config.SCTP {
				s.Associations.Open += f.Open.Load()
			}
			without := s.NoLocalEndpoints[v.Port.ID.Family]
			if v.Port.InternalLocal && v.Internal.Len() == 0 && v.Cluster.Len() > 0 {
				without.Internal++
			}
			if v.Port.ExternalLocal && v.External.Len() == 0 && v.Cluster.Len() > 0 {
				without.External++
			}
			s.NoLocalEndpoints[v.Port.ID.Family] = without
		}
	}
	for _, problem := range p.problems {
		s.Problems[problem.Reason]++
	}
	return s
}

// SyncStatus says whether what the source wants is in force.
type SyncStatus struct {
	LastQueued  time.Time // when the source last handed over a change; zero if it never did
	LastApplied time.Time // when the kernel was last brought up to date; zero if it never was
	LastChecked time.Time // when the portal was last compared with the kernel; zero if it never was
	Pending     time.Time // since when a change waits to be applied; zero if none does
	Err         error     // why the portal could not be brought up to date the last time; nil if it was

	families [len(portal.Families)]FamilySync
}

// FamilySync is what a SyncStatus says of one IP family.
type FamilySync struct{ LastApplied, Pending time.Time }

// Of returns what s says of a family.
func (s *SyncStatus) Of(family config.Family) FamilySync {
	if family == config.IPv6 {
		return s.families[portal.IPv6]
	}
	return s.families[portal.IPv4]
}

// queued notes that a change is wanted.
func (s *SyncStatus) queued(at time.Time) {
	s.LastQueued = at
	if s.Pending.IsZero() {
		s.Pending = at
	}
	for i := range s.families {
		if f := &s.families[i]; f.Pending.IsZero() {
			f.Pending = at
		}
	}
}

// applied notes that the kernel has what is wanted, but for what failed.
func (s *SyncStatus) applied(at time.Time, res *portal.Result) {
	if s.Err = res.Err; res.Err == nil {
		s.LastApplied, s.Pending = at, time.Time{}
	}
	for _, family := range portal.Families {
		if res.Err == nil || res.Unaffected[family] {
			s.families[family] = FamilySync{LastApplied: at}
		}
	}
}

// syncState is a SyncStatus that is kept up to date.
type syncState struct {
	mu  sync.Mutex
	now SyncStatus
}

// note changes it.
func (s *syncState) note(change func(*SyncStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

// SyncStatus returns how it is now. It never waits for a change that is being
// made.
func (p *Proxy) SyncStatus() SyncStatus {
	p.sync.mu.Lock()
	defer p.sync.mu.Unlock()
	return p.sync.now
}

// PortalStatus tells what the portal wants, and what of it is in the kernel.
type PortalStatus struct {
	Mode     string
	Sync     SyncStatus
	Repaired int64 // rules, routes and chains that somebody had removed or changed, since the start
	// Rules are those that are wanted or installed. The comment of one that is
	// wanted is the service port's PortID.String.
	Rules []portal.Comparison
	Parts []portal.Part // what there is for all Services together
}

// PortalStatus reads the kernel's rules and compares them. It does not hold up
// changes; one read at a time is made, so that many who ask cost no more than one
// after the other.
func (p *Proxy) PortalStatus(ctx context.Context) (PortalStatus, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	status := PortalStatus{Mode: p.Portal.Mode()}
	if err := ctx.Err(); err != nil { // whoever asked has not waited
		return status, err
	}
	rules, err := p.Portal.Compare(ctx)
	if err != nil {
		return status, fmt.Errorf("reading rules of the %s portal: %w", status.Mode, err)
	}
	if c, ok := p.Portal.(portal.PartsComparer); ok {
		if status.Parts, err = c.CompareParts(ctx); err != nil {
			return status, fmt.Errorf("reading the shared rules of the %s portal: %w", status.Mode, err)
		}
	}
	status.Rules, status.Sync, status.Repaired = rules, p.SyncStatus(), p.counters.repaired.Load()
	return status, nil
}
