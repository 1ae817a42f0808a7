package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/stream"
)

// frontEnd is a front end with the listeners, VIPs and endpoints of its service port. Writers hold both locks of a
// change; readers hold either.
type frontEnd struct {
	*frontend.FrontEnd
	proxy *Proxy

	pool      balance.Pool
	listeners []frontend.Listener
	draining  *time.Timer // fires when the next drain timeout expires; nil if there is none
	dirty     bool        // in Proxy.dirty
	removed   bool        // the service port no longer exists
	// owned holds the targets that the front end serves, unordered; see Proxy.owners. A map would take several times
	// the memory of a slice: there may be thousands of front ends, each with up to several dozen targets.
	owned []portal.Target
}

// open opens and starts the listener for b.
func (f *frontEnd) open(b portal.Bind) (frontend.Listener, error) {
	if err := f.Budget.AdmitListener(f.ID().Namespace, f.Protocol == config.UDP, b.Redirected && f.Node.Ports.First == 0); err != nil {
		return nil, err
	}
	if why := f.proxy.TCPOnly; why != nil && f.Protocol != config.TCP {
		return nil, fmt.Errorf("%w: %w", errTCPOnly, why)
	}
	switch f.Protocol {
	case config.TCP:
		return f.proxy.streams.ListenTCP(f.FrontEnd, b)
	case config.SCTP:
		return f.proxy.streams.ListenSCTP(f.FrontEnd, b)
	case config.UDP:
		return f.proxy.datagrams.Listen(f.FrontEnd, b)
	}
	return nil, fmt.Errorf("%w %s", frontend.ErrProtocol, f.Protocol)
}

// errTCPOnly is the error for other protocols if Options.TCPOnly is set.
var errTCPOnly = errors.New("only TCP is supported")

// listenReason returns the Reason of a Problem for an error of listen.
func listenReason(err error) Reason {
	switch {
	case errors.Is(err, frontend.ErrProtocol), errors.Is(err, errTCPOnly), errors.Is(err, stream.ErrNoSCTP):
		return ReasonProtocol
	case errors.Is(err, stream.ErrSCTPOff):
		return ReasonSCTPOff
	}
	return ReasonListen
}

func newFrontEnd(p *Proxy, port config.ServicePort) *frontEnd {
	f := &frontEnd{
		FrontEnd: frontend.New(p.node, port, affinity.NewTable(p.affinities, port.AffinityTimeout)),
		proxy:    p,
	}
	f.pool.Watcher, f.pool.FirstTurn = f, p.FirstTurn
	f.restore(p.pendingAffinities[port.ID])
	delete(p.pendingAffinities, port.ID)
	return f
}

// swapView makes new connections use port and its endpoints. planned reports whether reconcile need not plan the front
// end: it owns all its VIPs, and the change does not affect its listeners and rules.
func (f *frontEnd) swapView(port config.ServicePort) (planned bool) {
	if f.proxy.Dial != nil {
		port.Probe = config.Probe{} // no probes through a tunnel: see FrontEnd.Policy
	}
	f.Affinity.SetTimeout(port.AffinityTimeout)
	before := len(f.pool.All)
	gone := f.pool.Update(port, time.Now())
	came := len(f.pool.All) - (before - len(gone))
	f.proxy.counters.endpointChanges.Add(int64(came + len(gone)))
	v := &frontend.View{
		Port:     port,
		All:      f.pool.All,
		Cluster:  f.pool.Cluster,
		Internal: f.pool.Internal,
		External: f.pool.External,
		Limits:   &forward.Limits{HalfClosed: port.HalfClosedTimeout, Idle: port.IdleTimeout, Age: port.MaxAge},
	}
	old := f.Swap(v)
	same := sameButEndpoints(old.Port, port)
	f.recordEndpoints(old, v, same)
	if old.Port.Probe.Check.Kind != 0 || port.Probe.Check.Kind != 0 {
		f.proxy.prober.Update(f.FrontEnd, old, v)
	}
	if len(f.pool.Leaving) > 0 || f.draining != nil {
		f.drain()
	}
	if len(gone) > 0 {
		left := make(map[netip.AddrPort]bool, len(gone))
		for _, endpoint := range gone {
			left[endpoint.Addr] = true
		}
		f.Affinity.ForgetEndpoints(left)
	}
	for _, l := range f.listeners {
		l.ViewReplaced()
	}
	return same && len(f.owned) == len(port.VIPs) && v.SameEmptySets(old)
}

// claim makes the front end the owner of its port's VIPs, and returns the first failure as a Problem, or nil. A VIP
// stays with the service port that already serves it, with two exceptions. Another service port whose VIP takes
// precedence gets it; see config.VIP.Precedes. A VIP on an address of this node is released if its port is in use
// there; see inUseOnNode. claim marks the front ends that lose a VIP, and those that conflict with a new node port.
func (f *frontEnd) claim() (problem *Problem) {
	port := f.View().Port
	for _, vip := range port.VIPs {
		t := frontend.Target(f.Protocol, vip)
		if inUse := f.inUseOnNode(vip); inUse != nil {
			f.release(t)
			// If an endpoint has this address and port, it answers there itself.
			if !slices.ContainsFunc(port.Endpoints, func(e config.Endpoint) bool { return e.Addr == vip.AddrPort() }) {
				problem = &Problem{Reason: ReasonNode, Err: inUse}
			}
			continue
		}
		if owner := f.proxy.owners[t]; owner != nil && owner != f {
			if theirs, is := owner.View().VIPOf(t); is && !vip.Precedes(*theirs) {
				problem = &Problem{Reason: ReasonConflict, Err: fmt.Errorf("%s %s is already served for %s", vip.Kind, t, owner.ID())}
				continue
			}
			owner.release(t)
			f.proxy.mark(owner)
		}
		if f.proxy.owners[t] != f {
			f.proxy.owners[t] = f
			f.owned = append(f.owned, t)
			f.proxy.displaceOnNode(t)
		}
		f.Targets.Store(t, nil)
	}
	return problem
}

// releaseOthers releases the VIPs that do not belong to port.
func (f *frontEnd) releaseOthers(port config.ServicePort) {
	keep := map[portal.Target]bool{}
	for _, vip := range port.VIPs {
		keep[frontend.Target(f.Protocol, vip)] = true
	}
	f.owned = slices.DeleteFunc(f.owned, func(t portal.Target) bool {
		if keep[t] {
			return false
		}
		f.disown(t)
		return true
	})
}

// release releases t, if the front end serves it.
func (f *frontEnd) release(t portal.Target) {
	if f.proxy.owners[t] == f {
		f.owned = slices.DeleteFunc(f.owned, func(other portal.Target) bool { return other == t })
		f.disown(t)
	}
}

// disown removes t from the rest of the Proxy's state. The caller removes it from f.owned.
func (f *frontEnd) disown(t portal.Target) {
	p := f.proxy
	p.released = true
	delete(p.owners, t)
	f.Targets.Delete(t)
	if _, has := p.rules[t]; has {
		delete(p.rules, t)
		p.differ[t] = true
	}
}

// bind opens the missing listeners for the VIPs that the front end owns, and sets their rules; reconcile closes the
// unused listeners. Open connections continue. VIPs without endpoints have no listener: the portal's rule rejects or
// drops their clients, or the kernel refuses them because nothing listens.
func (f *frontEnd) bind() error {
	v := f.View()
	var served []portal.Target
	for _, vip := range v.Port.VIPs {
		t := frontend.Target(f.Protocol, vip)
		switch {
		case f.proxy.owners[t] != f:
		case v.Endpoints(&vip, true).Len() > 0:
			served = append(served, t)
		default:
			f.rule(portal.Rule{Target: t, Action: v.Action(&vip)})
		}
	}

	var failed error
	var refused []portal.Target
	redirected := map[portal.Target]bool{} // by at least one listener: a node port may have several
	old := f.listeners
	f.listeners = nil
	for _, b := range f.proxy.Portal.Listen(f.ID().ServiceName().String(), served) {
		l, err := f.listen(b, &old)
		if err != nil {
			failed, refused = err, append(refused, b.Targets...)
			continue
		}
		l.SetTargets(b.Targets)
		f.listeners = append(f.listeners, l)
		for _, t := range b.Targets {
			redirected[t] = true
			f.rule(v.Redirect(t, l.Addr().Port()))
		}
	}
	for _, t := range refused {
		if !redirected[t] {
			f.rule(portal.Rule{Target: t, Action: portal.Reject})
		}
	}
	f.proxy.unused = append(f.proxy.unused, old...)
	return failed
}

// listen returns the listener for b. It moves a suitable one out of old, or opens a new one and gives copies of its
// sockets to Options.Store.
func (f *frontEnd) listen(b portal.Bind, old *[]frontend.Listener) (frontend.Listener, error) {
	for i, l := range *old {
		if l.Serves(b) {
			*old = slices.Delete(*old, i, i+1)
			return l, nil
		}
	}
	l, err := f.open(b)
	if err == nil {
		f.proxy.keep(l, f.Protocol)
		if f.proxy.listening != nil {
			f.proxy.listening[f.listensOn(l)] = true
		}
	}
	return l, err
}

// rule makes r the wanted rule for r.Target. A portal that redirects may reject the unused ports of a cluster IP,
// unless it is an address of this node, where processes listen.
func (f *frontEnd) rule(r portal.Rule) {
	p := f.proxy
	r.Comment = f.ID().String()
	if vip, is := f.View().VIPOf(r.Target); is {
		r.Sole = vip.Kind == config.ClusterIP && !(p.Portal.Traits().Redirects && p.node.Locality.IsNode(vip.Addr))
	}
	if p.rules[r.Target] != r {
		p.rules[r.Target], p.differ[r.Target] = r, true
	}
}

// remove takes the front end out of service. Open connections continue.
func (f *frontEnd) remove() {
	f.removed = true
	delete(f.proxy.failed, f)
	f.releaseOthers(config.ServicePort{})
	f.proxy.unused = append(f.proxy.unused, f.listeners...)
	f.listeners = nil
	f.Affinity.Close()
	// Connections that are still looking for an endpoint find none.
	gone := config.ServicePort{ID: f.ID(), Protocol: f.Protocol, VIPs: f.View().Port.VIPs, Policy: f.View().Port.Policy}
	f.swapView(gone)
}
