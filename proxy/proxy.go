package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/datagram"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/health"
	"github.com/usherproxy/usher/proxy/search"
	"github.com/usherproxy/usher/proxy/stream"
)

// Proxy serves Services.
type Proxy struct {
	Options
	node       *frontend.Node
	streams    *stream.Server
	datagrams  *datagram.Server
	affinities *affinity.Limits
	remembered chan struct{} // has a value when there is something new in affinities
	prober     *health.Prober
	counters   counters
	sync       syncState
	reading    sync.Mutex // held while PortalStatus reads the kernel

	// ctx ends with Drain: nothing is changed in the kernel any more.
	ctx context.Context
	end context.CancelFunc

	// changes is held by who changes something, and then mu too, but while the
	// kernel is at work: see reconcile. So who only looks, and takes mu alone, never
	// waits for another program that holds the xtables lock, say, or for a successor.
	changes sync.Mutex
	mu      sync.Mutex // taken after changes
	started bool       // there was a first full picture
	stopped bool
	// handedOver says that a successor has the listeners' sockets.
	handedOver bool
	keeping    keeping
	telling    telling
	services   map[types.NamespacedName]map[config.PortID]*frontEnd
	owners     map[portal.Target]*frontEnd   // who serves a VIP: one only
	dirty      []*frontEnd                   // that reconcile has to plan, in this order
	rules      map[portal.Target]portal.Rule // that are wanted
	differ     map[portal.Target]bool        // targets whose rules are others, or gone, since the portal was called
	unused     []frontend.Listener           // to be closed once the rules lead elsewhere
	due        bool                          // the portal must be called though no rule differs: first, with another setting, after it failed
	failed     map[*frontEnd]*Problem        // what could not be planned
	problems   map[config.PortID]*Problem
	leftOut    int // service ports that the limit on open files did not hold when that was last reported
	// had is which endpoints clients had of service ports that are not there yet: see Inherit.
	had         map[config.PortID][]affinity.Entry
	predecessor *stream.Inherited // until InheritRest; nil without one that hands connections over
	// refused are the targets for which the portal could not put in a rule.
	refused map[portal.Target]error

	healthChecks map[types.NamespacedName]uint16 // node ports
}

// New returns a Proxy that serves nothing yet.
func New(o Options) *Proxy {
	if len(o.Schedule) == 0 {
		o.Schedule = search.DefaultSchedule
	}
	node := &frontend.Node{Settings: o.Settings, Budget: budget.New(o.Limits), Tunneled: o.Dial != nil}
	node.Init()
	pollers, remembered := new(forward.Pollers), make(chan struct{}, 1)
	p := &Proxy{
		Options:    o,
		node:       node,
		streams:    stream.New(node, pollers, o.Options),
		datagrams:  datagram.New(node, pollers, o.UDPIdleTimeout),
		affinities: &affinity.Limits{PerTable: o.AffinityPerPort, Total: o.AffinityTotal, Changed: remembered},
		remembered: remembered,
		due:        true,
		services:   map[types.NamespacedName]map[config.PortID]*frontEnd{},
		owners:     map[portal.Target]*frontEnd{},
		rules:      map[portal.Target]portal.Rule{},
		differ:     map[portal.Target]bool{},
		failed:     map[*frontEnd]*Problem{},
		refused:    map[portal.Target]error{},

		healthChecks: map[types.NamespacedName]uint16{},
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.prober = health.New(node, p.DirectDial)
	return p
}

// lock takes the locks for a change, and returns what gives them back.
func (p *Proxy) lock() (unlock func()) {
	p.changes.Lock()
	p.mu.Lock()
	return func() {
		p.mu.Unlock()
		p.changes.Unlock()
	}
}

// unlocked lets others look while f, which is part of a change, is at work.
func (p *Proxy) unlocked(f func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	f()
}

// SetPodNetworks says in which networks the Pods of this node have their
// addresses, besides those that Options.IsPod knows: the policies for clients from
// outside do not apply to them.
func (p *Proxy) SetPodNetworks(pods []netip.Prefix) {
	defer p.lock()()
	p.node.Locality.SetPods(pods)
	p.Portal.SetLocalSources(pods)
	p.settingChanged()
}

// SetServiceCIDRs sets the networks of cluster IPs, of which the portal rejects what no Service
// has, if it can.
func (p *Proxy) SetServiceCIDRs(cidrs []netip.Prefix) {
	defer p.lock()()
	if r, can := p.Portal.(portal.ServiceCIDRRejecter); can {
		r.SetServiceCIDRs(cidrs)
		p.settingChanged()
	}
}

// SetNodePortAddresses says within which networks this node's addresses have node
// ports, as portal.Options.NodePortAddresses does.
func (p *Proxy) SetNodePortAddresses(within []netip.Prefix) {
	defer p.lock()()
	p.Portal.SetNodePortAddresses(within)
	// Where listeners have to be may depend on it, and what fails is tried again
	// by checks.
	for t, f := range p.owners {
		if t.Addr.IsUnspecified() {
			p.mark(f)
		}
	}
	p.settingChanged()
}

// settingChanged has the portal act upon a setting that it was given. It is called with both locks of a change.
func (p *Proxy) settingChanged() {
	if p.started && !p.stopped {
		p.due = true
		p.reconcile(p.ctx, false)
	}
}

// Apply makes the proxy serve the given Services as they are now, and leaves
// all others as they were. The first call is the full picture, see
// config.Source: what an earlier process left in the kernel and is not wanted
// any more goes then.
//
// A port that cannot be served does not keep others from being served: it
// becomes a [Problem], and is tried again.
func (p *Proxy) Apply(services []config.Service) {
	started := time.Now()
	p.sync.note(func(s *SyncStatus) { s.queued(started) })
	defer p.lock()()
	if p.stopped {
		return
	}
	p.telling.begin()
	full := !p.started
	p.started = true
	p.counters.serviceChanges.Add(int64(len(services)))
	// Those that go come first, so that what they leave can be taken over.
	for _, s := range services {
		p.telling.service(p, s)
		p.removePorts(s)
	}
	for _, s := range services {
		p.updatePorts(s)
	}
	p.telling.end(p.Trace)
	p.setHealthChecks(services)
	p.reconcile(p.ctx, false)
	p.synced(started, full)
}

// setHealthChecks lets the portal know of health check node ports that came or went.
func (p *Proxy) setHealthChecks(services []config.Service) {
	changed := false
	for _, s := range services {
		changed = changed || p.healthChecks[s.Name] != s.HealthCheckNodePort
		if p.healthChecks[s.Name] = s.HealthCheckNodePort; s.HealthCheckNodePort == 0 {
			delete(p.healthChecks, s.Name)
		}
	}
	if a, can := p.Portal.(portal.HealthCheckAccepter); can && changed {
		a.SetHealthChecks(slices.Sorted(maps.Values(p.healthChecks)))
		p.due = true
	}
}

func (p *Proxy) synced(started time.Time, full bool) {
	if p.OnSync != nil {
		p.OnSync(time.Since(started), full)
	}
}

// removePorts closes the front ends that s no longer has, and makes the others
// give up the VIPs that are no longer theirs.
func (p *Proxy) removePorts(s config.Service) {
	stay := p.staying(s)
	for _, f := range p.services[s.Name] {
		if now, stays := stay[f]; stays {
			f.releaseOthers(now)
		} else {
			f.remove()
		}
	}
	delete(p.services, s.Name)
	if len(stay) == 0 {
		return
	}
	fronts := make(map[config.PortID]*frontEnd, len(stay))
	for f, port := range stay {
		fronts[port.ID] = f
	}
	p.services[s.Name] = fronts
}

// staying returns the front ends that s goes on with, and as which of its ports.
// That is the port with the same cluster IP and number, since clients know nothing
// of its name: while a port is renamed its listeners stay, and nobody is refused.
// A front end of which there is no such port goes on as the one with its name.
func (p *Proxy) staying(s config.Service) map[*frontEnd]config.ServicePort {
	stay := map[*frontEnd]config.ServicePort{}
	had := p.services[s.Name]
	var others []config.ServicePort
	for _, port := range s.Ports {
		f := p.owners[frontend.Target(port.Protocol, port.VIPs[0])]
		if f != nil && had[f.ID()] == f {
			stay[f] = port
		} else {
			others = append(others, port)
		}
	}
	for _, port := range others {
		f := had[port.ID]
		if _, taken := stay[f]; f != nil && !taken && f.Protocol == port.Protocol {
			stay[f] = port
		}
	}
	return stay
}

// updatePorts makes the new front ends of s. New connections to all of them see the ports as they
// are now; reconcile has to do the rest.
func (p *Proxy) updatePorts(s config.Service) {
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
		if !f.swapView(port) {
			p.mark(f)
		}
	}
}

// Run keeps the portal in repair and tries again what could not be served,
// until ctx ends: from time to time, and when the kernel tells that others have
// changed something. It also gives memory back when a rush of clients is over.
func (p *Proxy) Run(ctx context.Context) {
	changed := p.watchPortal(ctx)
	ticker := time.NewTicker(p.CheckInterval)
	defer ticker.Stop()
	var rushes ebb
	looks := time.NewTimer(ebbPeriod)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-looks.C:
			if rushes.over(now, p.turnover()) {
				rushes.tidy()
			}
			looks.Reset(rushes.pause())
		case <-ticker.C:
			p.Check(ctx)
		case _, open := <-changed:
			if !open {
				changed = nil
				continue
			}
			p.Check(ctx)
		}
	}
}

// watchPortal returns a channel on which the portal tells that it should be
// checked: nil if it cannot.
func (p *Proxy) watchPortal(ctx context.Context) <-chan struct{} {
	w, ok := p.Portal.(portal.Watcher)
	if !ok {
		return nil
	}
	changed, err := w.Watch(ctx)
	if err != nil {
		p.Log.WithError(err).Infof("No change events from the kernel for the %s portal; checking it every %s", p.Portal.Mode(), p.CheckInterval)
		return nil
	}
	return changed
}

// Check compares the portal with the kernel, repairs it, and tries again what
// could not be served.
func (p *Proxy) Check(ctx context.Context) {
	defer p.lock()()
	if p.stopped {
		return
	}
	started := time.Now()
	p.node.Locality.Refresh()
	p.reconcile(ctx, true)
	p.synced(started, true)
}

// Withdraw removes the portal's rules for all VIPs, if they are of a kind of which connections
// that are open are independent, and reports whether they were. Listeners go on accepting
// whom the rules led here; who comes afterwards is served by whatever else the node has for that
// VIP. No change is carried out any more. Stop is to follow.
func (p *Proxy) Withdraw(ctx context.Context) (did bool, err error) {
	w, can := p.Portal.(portal.Withdrawer)
	if !can {
		return false, nil
	}
	unlock := p.lock()
	p.stopped = true
	unlock()
	return true, w.Withdraw(ctx)
}

// Stop stops accepting, and from then on nothing is changed in the kernel any
// more, and no endpoint is probed. The portal's rules stay as they are. Connections
// that are open go on; UDP sessions end; after a handover, when the clients that wait
// for a reply have it, or after two seconds.
func (p *Proxy) Stop() {
	p.closeListeners()
	p.prober.Stop()
	p.datagrams.Retired()
	defer p.lock()()
	p.datagrams.Stop()
}

func (p *Proxy) closeListeners() {
	defer p.lock()()
	p.stopped = true
	why := frontend.Stopped
	if p.handedOver {
		why = frontend.HandedOver
	}
	for _, fronts := range p.services {
		for _, f := range fronts {
			f.closeListeners(why)
		}
	}
	if p.handedOver {
		p.keepNothing()
	}
}

// Drain waits until the connections that are open have ended, and breaks those
// that are still there when ctx ends. It returns how many it had to break. Stop
// comes first.
func (p *Proxy) Drain(ctx context.Context) (broken int) {
	defer p.end()
	return p.streams.Drain(ctx)
}

// Connections returns how many connections are open.
func (p *Proxy) Connections() int64 { return p.node.Budget.Connections.Load() }
