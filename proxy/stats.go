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

// counters count configuration changes since the start. The front ends count clients.
type counters struct {
	serviceChanges, endpointChanges   atomic.Int64
	servicesApplied, endpointsApplied atomic.Int64 // of these changes, those that are in the kernel
	repaired, portalFailures          atomic.Int64
}

// Stats are figures about a Proxy; counters count since its start.
type Stats struct {
	frontend.Stats

	Services, Ports int
	Listeners       int64
	Saved           int64 // open TCP connections of which the keeper has copies, to survive a crash
	AffinityClients int64
	Problems        map[Reason]int

	ServiceChanges, EndpointChanges   int64
	ServicesPending, EndpointsPending int64 // changes not yet applied to the kernel
	Repaired                          int64 // rules, routes and chains that another program had removed or changed
	PortalFailures                    int64 // failed calls of Portal.Apply and Portal.Check

	// NoLocalEndpoints counts service ports with policy Local that have endpoints, but none on this node.
	NoLocalEndpoints map[config.Family]NoLocal

	// Descriptors is the number in use by listeners, connections and sessions; DescriptorLimit is the maximum.
	Descriptors, DescriptorLimit int64
}

// NoLocal counts service ports without local endpoints, by the traffic policy that requires these.
type NoLocal struct{ Internal, External int }

// Stats returns the current figures.
func (p *Proxy) Stats() Stats {
	c := &p.counters
	// Read before the totals, so that no difference is negative.
	servicesApplied, endpointsApplied := c.servicesApplied.Load(), c.endpointsApplied.Load()
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

// SyncStatus is the state of applying the source's changes.
type SyncStatus struct {
	LastQueued  time.Time // when the source last passed a change; zero if never
	LastApplied time.Time // when the kernel was last brought up to date; zero if never
	LastChecked time.Time // when the portal was last compared with the kernel; zero if never
	Pending     time.Time // since when a change waits to be applied; zero if none does
	Err         error     // why the last update of the portal failed; nil if it succeeded

	families [len(portal.Families)]FamilySync
}

// FamilySync is the part of a SyncStatus for one IP family.
type FamilySync struct{ LastApplied, Pending time.Time }

// Of returns the status of a family.
func (s *SyncStatus) Of(family config.Family) FamilySync {
	if family == config.IPv6 {
		return s.families[portal.IPv6]
	}
	return s.families[portal.IPv4]
}

// queued records that a change is wanted.
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

// applied records the result of a reconcile that started at began, for each family. A change that was queued later is
// still pending.
func (s *SyncStatus) applied(began, at time.Time, res *portal.Result) {
	var pending time.Time
	if s.LastQueued.After(began) {
		pending = s.LastQueued
	}
	if s.Err = res.Err; res.Err == nil {
		s.LastApplied, s.Pending = at, pending
	}
	for _, family := range portal.Families {
		if res.Err == nil || res.Unaffected[family] {
			s.families[family] = FamilySync{at, pending}
		}
	}
}

// syncState is a SyncStatus with a lock.
type syncState struct {
	mu  sync.Mutex
	now SyncStatus
}

func (s *syncState) note(change func(*SyncStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

// SyncStatus returns the current status. It never waits for a change in progress.
func (p *Proxy) SyncStatus() SyncStatus {
	p.sync.mu.Lock()
	defer p.sync.mu.Unlock()
	return p.sync.now
}

// PortalStatus holds the portal's wanted rules and their state in the kernel.
type PortalStatus struct {
	Mode     string
	Sync     SyncStatus
	Repaired int64 // rules, routes and chains that another program had removed or changed, since the start
	// Rules are the wanted or installed rules. The comment of a wanted rule is the service port's PortID.String.
	Rules []portal.Comparison
	Parts []portal.Part // shared by all Services
}

// PortalStatus reads the kernel's rules and compares them with the wanted ones. It does not block changes. Concurrent
// calls wait for each other, so that the kernel serves one read at a time.
func (p *Proxy) PortalStatus(ctx context.Context) (PortalStatus, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	status := PortalStatus{Mode: p.Portal.Mode()}
	if err := ctx.Err(); err != nil { // the caller gave up while waiting
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
