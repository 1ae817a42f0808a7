package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
)

// frontEnd serves one service port in one IP family: it has the listeners, the
// portal rules that lead to them, and the endpoints. All but view and the
// counters are written with both locks of a change, and read with either.
type frontEnd struct {
	proxy    *Proxy
	protocol config.Protocol

	// view is what connections see of the configuration.
	view     atomic.Pointer[view]
	affinity *affinity.Table
	open     atomic.Int64 // connections
	sessions atomic.Int64 // UDP sessions
	tally    tally

	pool      balance.Pool
	listeners []listener
	trouble   *Problem      // what update could not do; nil if all is well
	owned     []ownedTarget // in no order; see Proxy.owners
}

// ownedTarget is a target that a front end serves. There are one to some tens, in
// each of thousands of front ends: a slice takes a fraction of what maps would.
type ownedTarget struct {
	portal.Target
	rule portal.Rule // that the portal was given; the zero Rule if it has none
}

// own returns the entry for t, or nil if t is not the front end's.
func (f *frontEnd) own(t portal.Target) *ownedTarget {
	for i := range f.owned {
		if f.owned[i].Target == t {
			return &f.owned[i]
		}
	}
	return nil
}

// listener takes in what clients send to some targets of a service port. Each
// protocol has its own: tcp.go, udp_linux.go.
type listener interface {
	// addr returns where it listens.
	addr() netip.AddrPort
	// serves reports whether it is the listener that b asks for.
	serves(b portal.Bind) bool
	// setTargets says which targets lead to it.
	setTargets(targets []portal.Target)
	// handOver returns copies of the sockets that a successor can go on with.
	handOver() []handover.Socket
	// endpointsChanged is called after the front end's view was replaced.
	endpointsChanged()
	// close stops taking in new clients, and returns when nobody does any more.
	close()
}

// fits reports whether a listener at addr is what b asks for: the same one, or one
// on another port where b does not insist on its own.
func fits(b portal.Bind, addr netip.AddrPort, redirected bool) bool {
	samePort := addr.Port() == b.Addr.Port() || b.Addr.Port() == 0 || b.Preferred
	return samePort && addr.Addr() == b.Addr.Addr() && redirected == b.Redirected
}

// listenFor opens what b asks for: by listen, which is given b's address, or, if its
// port is taken and b does not insist on it, the same address with another port.
func listenFor[T any](p *Proxy, b portal.Bind, listen func(netip.AddrPort) (T, error)) (T, error) {
	l, err := listen(b.Addr)
	if b.Preferred {
		for _, port := range p.otherPorts() {
			if !portTaken(err) {
				break
			}
			l, err = listen(netip.AddrPortFrom(b.Addr.Addr(), port))
		}
	}
	if err != nil {
		return l, fmt.Errorf("cannot listen on %s: %w", b.Addr, plainError(err))
	}
	return l, nil
}

// openListener opens the listener for b, and starts it.
func (f *frontEnd) openListener(b portal.Bind) (listener, error) {
	if err := f.proxy.budget.roomForListener(); err != nil {
		return nil, err
	}
	if why := f.proxy.TCPOnly; why != nil && f.protocol != config.TCP {
		return nil, fmt.Errorf("%w: %w", errTCPOnly, why)
	}
	switch f.protocol {
	case config.TCP:
		return openTCP(f, b)
	case config.SCTP:
		return openSCTP(f, b)
	case config.UDP:
		return openUDP(f, b)
	}
	return nil, fmt.Errorf("%w %s", errProtocol, f.protocol)
}

// Why a protocol is not served: this version cannot carry it, or what connects to
// the endpoints cannot.
var (
	errProtocol = errors.New("this version of usher does not serve the protocol")
	errTCPOnly  = errors.New("only TCP is served")
)

// listenReason returns the word for an error of openListener.
func listenReason(err error) Reason {
	switch {
	case errors.Is(err, errProtocol), errors.Is(err, errTCPOnly), errors.Is(err, errNoSCTP):
		return ReasonProtocol
	case errors.Is(err, errSCTPOff):
		return ReasonSCTPOff
	}
	return ReasonListen
}

// view is a front end's configuration at one moment: a value that is replaced,
// never changed.
type view struct {
	port     config.ServicePort
	all      []*balance.Endpoint // usable or not
	cluster  *balance.Set
	internal *balance.Set
	external *balance.Set
	limits   *forward.Limits
	replaced chan struct{} // closed when another view takes this one's place
}

// endpoints returns the endpoints for clients that came to vip.
func (v *view) endpoints(vip *config.VIP, nodeLocal bool) *balance.Set {
	switch {
	case !vip.External():
		return v.internal
	case nodeLocal:
		return v.cluster
	}
	return v.external
}

// vipAt returns the VIP with that very address and port.
func (v *view) vipAt(at netip.AddrPort) (*config.VIP, bool) {
	for i := range v.port.VIPs { // one to some tens
		if vip := &v.port.VIPs[i]; vip.AddrPort() == at {
			return vip, true
		}
	}
	return nil, false
}

// vipOf returns the VIP that is a portal's target.
func (v *view) vipOf(t portal.Target) (*config.VIP, bool) {
	return v.vipAt(netip.AddrPortFrom(t.Addr, t.Port))
}

// redirect returns the rule that leads from t to a listener.
func (v *view) redirect(t portal.Target, port uint16) portal.Rule {
	vip, _ := v.vipOf(t)
	r := portal.Rule{Target: t, Action: portal.Redirect, LocalPort: port}
	if len(vip.Sources) > 0 {
		// Where the VIP is an address of this node, its processes come from there:
		// the listener knows whether they may; see locality.admits.
		itself := netip.PrefixFrom(vip.Addr, vip.Addr.BitLen())
		r.Sources = portal.SourcesOf(append(slices.Clip(vip.Sources), itself))
	}
	if vip.External() && v.external.Len() == 0 {
		// The policy is Local, and there are endpoints on other nodes only: they
		// are for clients of this node.
		r.Action = portal.Drop
	}
	return r
}

func newFrontEnd(p *Proxy, port config.ServicePort) *frontEnd {
	f := &frontEnd{
		proxy:    p,
		protocol: port.Protocol,
		affinity: affinity.NewTable(p.affinities, port.AffinityTimeout),
	}
	f.pool.Watcher, f.pool.FirstTurn = f, p.FirstTurn
	f.view.Store(&view{port: config.ServicePort{ID: port.ID}, replaced: make(chan struct{})})
	return f
}

// id returns which service port the front end serves. It is another one once that
// has been renamed.
func (f *frontEnd) id() config.PortID { return f.view.Load().port.ID }

// update makes the front end serve port. Connections that are open go on.
func (f *frontEnd) update(port config.ServicePort, c *change) {
	f.swapView(port)
	targets, problem := f.claim(port, c)
	if err := f.bind(targets, c); err != nil && problem == nil {
		problem = &Problem{Reason: listenReason(err), Err: err}
	}
	f.trouble = problem
	f.proxy.review(f)
}

// swapView makes new connections see port and its endpoints.
func (f *frontEnd) swapView(port config.ServicePort) {
	f.affinity.SetTimeout(port.AffinityTimeout)
	before := len(f.pool.All)
	gone := f.pool.Update(port)
	came := len(f.pool.All) - (before - len(gone))
	f.proxy.counters.endpointChanges.Add(int64(came + len(gone)))
	v := &view{
		port:     port,
		all:      f.pool.All,
		cluster:  f.pool.Cluster,
		internal: f.pool.Internal,
		external: f.pool.External,
		limits:   f.proxy.limits(port),
		replaced: make(chan struct{}),
	}
	old := f.view.Swap(v)
	close(old.replaced)
	f.tellEndpoints(old, v)
	for _, endpoint := range gone {
		f.affinity.ForgetEndpoint(endpoint.Addr)
	}
	for _, l := range f.listeners {
		l.endpointsChanged()
	}
}

// claim makes the front end the owner of port's VIPs and returns those that it
// owns: a VIP that another service port has already stays with that one. But a
// cluster IP, which Kubernetes gives to one Service, is taken from who has it as an
// external or load balancer IP, which anybody may write; those are c's losers.
func (f *frontEnd) claim(port config.ServicePort, c *change) (own []portal.Target, problem *Problem) {
	for _, vip := range port.VIPs {
		t := target(f.protocol, vip)
		owner := f.proxy.owners[t]
		if owner != nil && owner != f && !vip.External() && owner.yield(t) {
			c.lost(owner)
			owner = nil
		}
		if owner != nil && owner != f {
			problem = &Problem{Reason: ReasonConflict, Err: fmt.Errorf("%s %s is served for %s already", vip.Kind, t, owner.id())}
			continue
		}
		f.proxy.owners[t] = f
		if f.own(t) == nil {
			f.owned = append(f.owned, ownedTarget{Target: t})
		}
		f.proxy.targets.Store(t, nil)
		own = append(own, t)
	}
	return own, problem
}

// yield makes the front end no longer the owner of t, unless that is its cluster IP.
// The rule stays for the next owner to replace.
func (f *frontEnd) yield(t portal.Target) bool {
	if vip, is := f.view.Load().vipOf(t); is && !vip.External() {
		return false
	}
	f.owned = slices.DeleteFunc(f.owned, func(o ownedTarget) bool { return o.Target == t })
	return true
}

// releaseOthers gives up the VIPs that are not port's.
func (f *frontEnd) releaseOthers(port config.ServicePort, c *change) {
	keep := map[portal.Target]bool{}
	for _, vip := range port.VIPs {
		keep[target(f.protocol, vip)] = true
	}
	f.owned = slices.DeleteFunc(f.owned, func(o ownedTarget) bool {
		if keep[o.Target] {
			return false
		}
		delete(f.proxy.owners, o.Target)
		f.proxy.targets.Delete(o.Target)
		if o.rule != (portal.Rule{}) {
			c.drop(o.Target)
		}
		return true
	})
}

// bind opens the listeners that are missing for targets, and puts into c the
// rules that differ and the listeners that are left over. Targets without
// endpoints have no listener: they are refused, by the portal's rule or because
// nobody listens.
func (f *frontEnd) bind(targets []portal.Target, c *change) error {
	v := f.view.Load()
	var served []portal.Target
	for _, t := range targets {
		vip, _ := v.vipOf(t)
		if v.endpoints(vip, true).Len() > 0 {
			served = append(served, t)
			continue
		}
		action := portal.Reject
		if v.cluster.Len() > 0 {
			// The policy is Local. Another node may have an endpoint.
			action = portal.Drop
		}
		f.rule(portal.Rule{Target: t, Action: action}, c)
	}

	var failed error
	old := f.listeners
	f.listeners = nil
	for _, b := range f.proxy.Portal.Listen(f.id().ServiceName().String(), served) {
		l, err := f.listen(b, &old)
		if err != nil {
			failed = err
			for _, t := range b.Targets {
				f.rule(portal.Rule{Target: t, Action: portal.Reject}, c)
			}
			continue
		}
		l.setTargets(b.Targets)
		f.listeners = append(f.listeners, l)
		for _, t := range b.Targets {
			f.rule(v.redirect(t, l.addr().Port()), c)
		}
	}
	c.close = append(c.close, old...)
	return failed
}

// listen returns the listener for b: one of old, which is taken from there, or
// a new one.
func (f *frontEnd) listen(b portal.Bind, old *[]listener) (listener, error) {
	for i, l := range *old {
		if l.serves(b) {
			*old = slices.Delete(*old, i, i+1)
			return l, nil
		}
	}
	return f.openListener(b)
}

// rule puts r into c if the portal does not have it like that already.
func (f *frontEnd) rule(r portal.Rule, c *change) {
	r.Comment = f.id().String()
	own := f.own(r.Target)
	if own.rule == r && c.set[r.Target] == (portal.Rule{}) {
		return
	}
	own.rule = r
	c.add(r)
}

// remove takes the front end out of service. Connections that are open go on.
func (f *frontEnd) remove(c *change) {
	f.releaseOthers(config.ServicePort{}, c)
	c.close = append(c.close, f.listeners...)
	f.listeners = nil
	f.affinity.Close()
	// Whoever is still looking for an endpoint finds none.
	gone := config.ServicePort{ID: f.id(), Protocol: f.protocol, VIPs: f.view.Load().port.VIPs}
	f.swapView(gone)
}

// closeListeners stops accepting.
func (f *frontEnd) closeListeners() {
	for _, l := range f.listeners {
		l.close()
	}
	f.listeners = nil
}

// target returns the portal's name for vip.
func target(protocol config.Protocol, vip config.VIP) portal.Target {
	return portal.Target{Protocol: portalProtocols[protocol], Addr: vip.Addr, Port: vip.Port}
}

var portalProtocols = map[config.Protocol]portal.Protocol{
	config.TCP:  portal.TCP,
	config.UDP:  portal.UDP,
	config.SCTP: portal.SCTP,
}
