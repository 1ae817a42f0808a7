package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// Options are what a Proxy is made of. Portal, Trace and Log are required;
// Defaults gives values for the others.
type Options struct {
	Portal portal.Portal
	Trace  *trace.Log
	Log    logrus.FieldLogger

	// Schedule is how long each attempt to connect may take.
	Schedule   []time.Duration
	Quarantine balance.Quarantine

	// HalfClosed ends a connection of which one direction has ended and the
	// other is silent; 0 means never.
	HalfClosed time.Duration
	// Keepalive is how long a connection is silent before it is probed, on
	// both sides.
	Keepalive time.Duration

	// Affinity bounds how many clients are remembered.
	AffinityPerPort, AffinityTotal int64

	// MaxConnections bounds the connections that are open at once. 0 means as
	// many as file descriptors allow, which is the bound in any case: a
	// little under half of them.
	MaxConnections int64
	// MaxConnectionsPerPort bounds those of one service port; 0 means no
	// bound of its own.
	MaxConnectionsPerPort int64

	// UDPIdleTimeout is how long a UDP session lasts without a datagram, unless
	// the Service says otherwise.
	UDPIdleTimeout time.Duration
	// MaxUDPSessions bounds the UDP sessions that are open at once. A quarter
	// of the file descriptors is the bound in any case.
	MaxUDPSessions int64
	// MaxUDPSessionsPerPort bounds those of one service port; 0 means half of
	// what all may have together.
	MaxUDPSessionsPerPort int64

	// CheckInterval is how often the portal's rules are compared with the
	// kernel's, and what could not be served is tried again.
	CheckInterval time.Duration

	// OnProblem, if not nil, is told when a service port gets a problem, when
	// that becomes another one, and, with nil, when it is over. It must return
	// quickly.
	OnProblem func(config.PortID, *Problem)
	// OnSync, if not nil, is told how long it took to carry out a change.
	OnSync func(took time.Duration)
}

// Defaults returns the options that usher has without flags.
func Defaults() Options {
	return Options{
		Schedule:        slices.Clone(DefaultSchedule),
		Quarantine:      balance.Quarantine{First: 10 * time.Second, Max: 2 * time.Minute},
		HalfClosed:      10 * time.Minute,
		Keepalive:       3 * time.Minute,
		AffinityPerPort: 65536,
		AffinityTotal:   1 << 20,
		UDPIdleTimeout:  time.Minute,
		MaxUDPSessions:  65536,
		CheckInterval:   10 * time.Second,
	}
}

// Proxy serves Services.
type Proxy struct {
	Options
	forwarder   *forward.Forwarder
	affinities  *affinity.Limits
	connections connections
	udp         udpEngine
	locality    locality
	counters    counters
	sync        syncState

	// ctx ends when connections are to be given up; see Drain.
	ctx    context.Context
	giveUp context.CancelFunc

	mu       sync.Mutex
	stopped  bool
	services map[types.NamespacedName]map[config.PortID]*frontEnd
	owners   map[portal.Target]*frontEnd // who serves a VIP: one only
	problems map[config.PortID]*Problem
	// refused are the targets for which the portal could not put in a rule.
	refused map[portal.Target]error
}

// New returns a Proxy that serves nothing yet.
func New(options Options) *Proxy {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		Options:     options,
		forwarder:   forward.New(forward.Options{HalfClosed: options.HalfClosed}),
		affinities:  &affinity.Limits{PerTable: options.AffinityPerPort, Total: options.AffinityTotal},
		connections: newConnections(options.MaxConnections),
		udp:         udpEngine{limits: sessionLimits{total: options.MaxUDPSessions, perPort: options.MaxUDPSessionsPerPort}},
		ctx:         ctx,
		giveUp:      cancel,
		services:    map[types.NamespacedName]map[config.PortID]*frontEnd{},
		owners:      map[portal.Target]*frontEnd{},
		problems:    map[config.PortID]*Problem{},
		refused:     map[portal.Target]error{},
		counters:    counters{ends: map[trace.End]int64{}, sessionEnds: map[trace.End]int64{}},
	}
	p.udp.proxy = p
	p.locality.refresh()
	return p
}

// SetPodNetworks says in which networks the Pods of this node have their
// addresses: the policies for clients from outside do not apply to them.
func (p *Proxy) SetPodNetworks(pods []netip.Prefix) { p.locality.setPods(pods) }

// Apply makes the proxy serve the given Services as they are now, and leaves
// all others as they were. The first call is the full picture, see
// config.Source: what an earlier process left in the kernel and is not wanted
// any more goes then.
//
// A port that cannot be served does not keep others from being served: it
// becomes a [Problem], and is tried again.
func (p *Proxy) Apply(services []config.Service) {
	started := time.Now()
	p.sync.queued(started)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.counters.serviceChanges.Add(int64(len(services)))
	var c change
	// Those that go come first, so that what they leave can be taken over.
	for _, s := range services {
		p.removePorts(s, &c)
	}
	for _, s := range services {
		p.updatePorts(s, &c)
	}
	p.commit(&c)
	p.retry()
	if p.OnSync != nil {
		p.OnSync(time.Since(started))
	}
}

// removePorts closes the front ends that s no longer has, and makes the others
// give up the VIPs that are no longer theirs.
func (p *Proxy) removePorts(s config.Service, c *change) {
	wanted := map[config.PortID]config.ServicePort{}
	for _, port := range s.Ports {
		wanted[port.ID] = port
	}
	fronts := p.services[s.Name]
	for id, f := range fronts {
		port, ok := wanted[id]
		if ok && port.Protocol == f.protocol {
			f.releaseOthers(port, c)
			continue
		}
		f.remove(c)
		delete(fronts, id)
		p.solved(id)
	}
	if len(fronts) == 0 {
		delete(p.services, s.Name)
	}
}

// updatePorts brings the front ends of s up to date and makes the new ones.
func (p *Proxy) updatePorts(s config.Service, c *change) {
	for _, port := range s.Ports {
		fronts := p.services[s.Name]
		if fronts == nil {
			fronts = map[config.PortID]*frontEnd{}
			p.services[s.Name] = fronts
		}
		f := fronts[port.ID]
		if f == nil {
			f = newFrontEnd(p, port)
			fronts[port.ID] = f
		}
		f.update(port, c)
	}
}

// change collects what has to be done in the kernel: listeners are open
// already, then come the rules, then the listeners that nobody needs any more.
type change struct {
	set   map[portal.Target]portal.Rule
	gone  map[portal.Target]bool
	close []listener
}

func (c *change) add(r portal.Rule) {
	if c.set == nil {
		c.set = map[portal.Target]portal.Rule{}
	}
	c.set[r.Target] = r
	delete(c.gone, r.Target)
}

func (c *change) drop(t portal.Target) {
	if c.gone == nil {
		c.gone = map[portal.Target]bool{}
	}
	c.gone[t] = true
	delete(c.set, t)
}

// commit carries out c.
func (p *Proxy) commit(c *change) {
	rules := slices.SortedFunc(maps.Values(c.set), func(a, b portal.Rule) int { return a.Target.Compare(b.Target) })
	gone := slices.SortedFunc(maps.Keys(c.gone), portal.Target.Compare)
	err := p.Portal.Apply(p.ctx, rules, gone)
	for _, t := range gone {
		delete(p.refused, t)
	}
	for _, r := range rules {
		delete(p.refused, r.Target)
	}
	p.portalAnswered(err)
	for _, l := range c.close {
		l.close()
	}
}

// portalAnswered takes note of what the portal could not do.
func (p *Proxy) portalAnswered(err error) {
	var refused *portal.RuleError
	if errors.As(err, &refused) {
		maps.Copy(p.refused, refused.Refused)
	}
	// With nothing but refused rules, everything else is in force.
	if err == nil || err == error(refused) {
		p.sync.applied(time.Now())
	} else {
		p.counters.portalFailures.Add(1)
		p.Log.WithError(err).Errorf("The %s portal could not be brought up to date; trying again every %s", p.Portal.Mode(), p.CheckInterval)
	}
	for t, err := range p.refused {
		if f := p.owners[t]; f != nil {
			p.problem(f.id, ReasonPortal, fmt.Errorf("%s: %w", t, err))
		}
	}
}

// retry tries again what could not be served.
func (p *Proxy) retry() {
	var c change
	for id, problem := range p.problems {
		f := p.services[id.ServiceName()][id]
		if f == nil || problem.Reason == ReasonPortal {
			continue
		}
		f.update(f.view.Load().port, &c)
	}
	if len(c.set)+len(c.gone)+len(c.close) > 0 {
		p.commit(&c)
	}
}

// Run keeps the portal in repair and tries again what could not be served,
// until ctx ends.
func (p *Proxy) Run(ctx context.Context) {
	ticker := time.NewTicker(p.CheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.check(ctx)
		}
	}
}

func (p *Proxy) check(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.locality.refresh()
	repaired, err := p.Portal.Check(ctx)
	if repaired > 0 {
		p.counters.repaired.Add(int64(repaired))
		p.Log.WithField("repaired", repaired).Warnf("Rules of the %s portal were missing or changed, and have been repaired", p.Portal.Mode())
	}
	for t := range p.refused {
		delete(p.refused, t)
		if f := p.owners[t]; f != nil && p.problems[f.id] != nil && p.problems[f.id].Reason == ReasonPortal {
			p.solved(f.id)
		}
	}
	p.portalAnswered(err)
	p.retry()
}

// Stop stops accepting, and from then on nothing is changed in the kernel any
// more. The portal's rules stay as they are. Connections that are open go on;
// UDP sessions end.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for _, fronts := range p.services {
		for _, f := range fronts {
			f.closeListeners()
		}
	}
	p.udp.stop()
}

// Drain waits until the connections that are open have ended, and breaks those
// that are still there when ctx ends. It returns how many it had to break. Stop
// comes first.
func (p *Proxy) Drain(ctx context.Context) (broken int) {
	drained := p.connections.drained()
	select {
	case <-drained:
	case <-ctx.Done():
	}
	p.giveUp()
	broken = p.connections.breakAll()
	<-drained
	return broken
}

// Connections returns how many connections are open.
func (p *Proxy) Connections() int64 { return p.connections.open.Load() }

// PortStatus tells how a service port is served.
type PortStatus struct {
	Port config.ServicePort
	// Listeners are where usher listens for it: none if it has no endpoints.
	Listeners []netip.AddrPort
	Problem   *Problem // nil if all is well
}

// Status returns how each service port is served, in the order of PortID.
func (p *Proxy) Status() []PortStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []PortStatus
	for _, fronts := range p.services {
		for id, f := range fronts {
			s := PortStatus{Port: f.view.Load().port, Problem: p.problems[id]}
			for _, l := range f.listeners {
				s.Listeners = append(s.Listeners, l.addr())
			}
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b PortStatus) int { return a.Port.ID.Compare(b.Port.ID) })
	return list
}
