package proxy

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
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
	remembered chan struct{} // has a value when affinities has new or refreshed entries
	prober     *health.Prober
	counters   counters
	sync       syncState
	reading    sync.Mutex // held while PortalStatus reads the kernel

	initialSync chan struct{} // closed once the first Apply has ended

	// ctx ends when Drain returns; nothing in the kernel is changed after that.
	ctx context.Context
	end context.CancelFunc

	// changes and mu are both held during a change, but mu is released during slow kernel operations: see reconcile.
	// Readers take mu alone, so they never wait for a handover to a successor, or for another program that holds the
	// xtables lock.
	changes sync.Mutex
	mu      sync.Mutex // taken after changes
	started bool       // the first Apply has begun
	stopped bool
	// handedOver is set once a successor has the listeners' sockets.
	handedOver     bool
	keeping        keeping
	changeRecorder changeRecorder
	services       map[types.NamespacedName]map[config.PortID]*frontEnd
	owners         map[portal.Target]*frontEnd   // the one front end that serves a VIP
	dirty          []*frontEnd                   // front ends that reconcile has to plan, in this order
	rules          map[portal.Target]portal.Rule // the wanted rules
	differ         map[portal.Target]bool        // targets whose rules changed since the last call of the portal
	unused         []frontend.Listener           // listeners to close once no rule redirects to them
	reconciling    time.Time                     // start of the last reconcile
	applyDue       bool                          // call the portal even if no rule differs
	failed         map[*frontEnd]*Problem        // front ends that could not be planned
	listening      map[portal.Target]bool        // protocols and ports of listeners; nil until isFrontEnd needs it
	released       bool                          // a front end has released a target since the last markFailed
	problems       map[config.PortID]*Problem
	words          config.Words // limits messages about problems
	leftOut        int          // number of service ports that exceeded the open-files limit at the last report
	noPort         int          // the same for the limit of local ports
	// pendingAffinities holds the affinities of service ports that do not exist yet: see Inherit.
	pendingAffinities map[config.PortID][]affinity.Entry
	predecessor       *net.UnixConn // until InheritRest; nil if no predecessor hands connections over
	// refused holds the targets for which the portal could not install a rule.
	refused map[portal.Target]error

	healthChecks map[types.NamespacedName]uint16 // health check node ports
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
		Options:     o,
		node:        node,
		streams:     stream.New(node, pollers, o.Options),
		datagrams:   datagram.New(node, pollers),
		affinities:  &affinity.Limits{PerTable: o.AffinityPerPort, Total: o.AffinityTotal, Changed: remembered},
		remembered:  remembered,
		initialSync: make(chan struct{}),
		services:    map[types.NamespacedName]map[config.PortID]*frontEnd{},
		owners:      map[portal.Target]*frontEnd{},
		rules:       map[portal.Target]portal.Rule{},
		differ:      map[portal.Target]bool{},
		failed:      map[*frontEnd]*Problem{},
		refused:     map[portal.Target]error{},

		healthChecks: map[types.NamespacedName]uint16{},
	}
	p.words.LeftOut = func(namespace string, n int) {
		p.Log.WithFields(logrus.Fields{"namespace": namespace, "count": n}).Warn("Messages suppressed for objects of a namespace: too many; 'usher get services' shows current problems")
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.prober = health.New(node, p.DirectDial)
	return p
}

// lock takes both locks of a change and returns a function that releases them.
func (p *Proxy) lock() (unlock func()) {
	p.changes.Lock()
	p.mu.Lock()
	return func() {
		p.mu.Unlock()
		p.changes.Unlock()
	}
}

// unlocked releases mu while f, a part of a change, runs.
func (p *Proxy) unlocked(f func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	f()
}

// SetPodNetworks sets the networks of this node's Pods, in addition to those that Options.IsPod knows. The
// policies for external clients do not apply to Pods.
func (p *Proxy) SetPodNetworks(pods []netip.Prefix) {
	defer p.lock()()
	p.node.Locality.SetPods(pods)
	p.Portal.Set(func(s *portal.Settings) { s.LocalSources = pods })
	p.settingChanged()
}

// SetServiceCIDRs sets the networks of cluster IPs: see portal.Settings.
func (p *Proxy) SetServiceCIDRs(cidrs []netip.Prefix) {
	defer p.lock()()
	p.Portal.Set(func(s *portal.Settings) { s.ServiceCIDRs = cidrs })
	p.settingChanged()
}

// SetNodePortAddresses sets the networks within which this node's addresses have node ports, as
// portal.Options.NodePortAddresses does.
func (p *Proxy) SetNodePortAddresses(within []netip.Prefix) {
	defer p.lock()()
	p.Portal.Set(func(s *portal.Settings) { s.NodePortAddresses = within })
	p.node.Locality.SetNodePorts(within)
	p.markNodeAddresses()
	// The addresses of node port listeners may depend on the setting.
	for t, f := range p.owners {
		if t.Addr.IsUnspecified() {
			p.mark(f)
		}
	}
	p.settingChanged()
}

// settingChanged makes the portal apply a changed setting. The caller holds both locks of a change.
func (p *Proxy) settingChanged() {
	if p.started && !p.stopped {
		p.applyDue = true
		p.reconcile(p.ctx, false)
	}
}

// Apply makes the proxy serve the given Services in their current form, and leaves all others unchanged. The first call
// is the initial sync (see config.Source): it also removes unwanted kernel state of an earlier process.
//
// A port that cannot be served does not affect others: it becomes a [Problem] and is retried.
func (p *Proxy) Apply(services []config.Service) {
	started := time.Now()
	p.sync.note(func(s *SyncStatus) { s.queued(started) })
	defer p.lock()()
	if p.stopped {
		return
	}
	p.changeRecorder.begin()
	full := !p.started
	// Not set earlier: a Check before the first Apply would then remove an earlier process's rules.
	p.started, p.applyDue = true, p.applyDue || full
	p.counters.serviceChanges.Add(int64(len(services)))
	// Removals come first, so that other service ports can take over the released VIPs.
	for _, s := range services {
		p.changeRecorder.service(p, s)
		p.removePorts(s)
	}
	for _, s := range services {
		p.updatePorts(s)
	}
	p.changeRecorder.end(p.Trace)
	p.setHealthChecks(services)
	p.reconcile(p.ctx, false)
	if full {
		close(p.initialSync)
	}
	p.synced(started, full)
}

// InitialSync returns a channel that is closed once the first Apply has ended.
func (p *Proxy) InitialSync() <-chan struct{} { return p.initialSync }

// setHealthChecks passes all health check node ports to the portal if any have changed.
func (p *Proxy) setHealthChecks(services []config.Service) {
	changed := false
	for _, s := range services {
		changed = changed || p.healthChecks[s.Name] != s.HealthCheckNodePort
		if p.healthChecks[s.Name] = s.HealthCheckNodePort; s.HealthCheckNodePort == 0 {
			delete(p.healthChecks, s.Name)
		}
	}
	if changed {
		p.Portal.Set(func(s *portal.Settings) { s.HealthChecks = slices.Sorted(maps.Values(p.healthChecks)) })
		p.applyDue = true
	}
}

func (p *Proxy) synced(started time.Time, full bool) {
	if p.OnSync != nil {
		p.OnSync(time.Since(started), full)
	}
}

// removePorts removes the front ends that s no longer has, and makes the others release the VIPs that they no longer
// have.
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

// staying returns the front ends that s keeps, each with its port in s. A port keeps the front end that serves its
// first VIP, even if it was renamed: clients do not use the name. Otherwise the port keeps the front end with its name
// and protocol.
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

// updatePorts creates the new front ends of s, and makes new connections to all its front ends use the current
// configuration. It marks the front ends whose listeners or rules reconcile has to adapt.
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

// Run calls Check periodically, and when the kernel reports a change by another program, until ctx ends. It also
// returns memory to the system after a burst of clients.
func (p *Proxy) Run(ctx context.Context) {
	changed := p.watchPortal(ctx)
	ticker := time.NewTicker(p.CheckInterval)
	defer ticker.Stop()
	var bursts burstEnd
	burstTimer := time.NewTimer(burstPeriod)
	defer burstTimer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-burstTimer.C:
			if bursts.over(now, p.turnover()) {
				bursts.tidy()
			}
			burstTimer.Reset(bursts.pause())
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

// watchPortal returns a channel on which the portal requests checks, or nil if the portal does not support that.
func (p *Proxy) watchPortal(ctx context.Context) <-chan struct{} {
	w, ok := p.Portal.(portal.Watcher)
	if !ok {
		return nil
	}
	changed, err := w.Watch(ctx)
	if err != nil {
		p.Log.WithError(err).WithFields(logrus.Fields{"portal": p.Portal.Mode(), "interval": p.CheckInterval}).Info("The kernel does not report changes of the portal; checking it periodically")
		return nil
	}
	return changed
}

// Check compares the portal's rules with the kernel's, repairs them, and retries service ports that failed.
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

// Withdraw removes the portal's rules for all VIPs, except the parts that open connections need. did is false if the
// portal does not support this, or a successor has the rules. New clients then need another service proxy on the node;
// the listeners still accept clients that were redirected before. The proxy makes no further changes. Call Stop next.
func (p *Proxy) Withdraw(ctx context.Context) (did bool, err error) {
	w, can := p.Portal.(portal.Withdrawer)
	if !can {
		return false, nil
	}
	unlock := p.lock()
	p.stopped = true
	handedOver := p.handedOver
	unlock()
	if handedOver {
		return false, nil
	}
	return true, w.Withdraw(ctx)
}

// Stop stops accepting clients. From then on the proxy changes nothing in the kernel and probes no endpoint. The
// portal's rules stay. Open connections continue. UDP sessions end at once. After a handover, they end when no client
// waits for a reply any longer, at the latest after two seconds.
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
			for _, l := range f.listeners {
				l.Close(why)
			}
			f.listeners = nil
		}
	}
	if p.handedOver {
		p.clearStore()
	}
}

// Drain waits until open connections have ended, and resets the rest when ctx ends. It returns the number of
// connections that it reset. Call Stop before.
func (p *Proxy) Drain(ctx context.Context) (broken int) {
	defer p.end()
	return p.streams.Drain(ctx)
}

// Connections returns the number of open connections.
func (p *Proxy) Connections() int64 { return p.node.Budget.Connections.Load() }
