package portal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// addressPortal makes VIPs local addresses of the node, so that the kernel
// itself brings what is sent to them to listeners on VIP:port. It needs no
// netfilter.
//
// A rejected target keeps its route: without a listener the kernel refuses. A
// dropped target is refused as well, since routes cannot drop one port of an
// address; if its clients on this node are to be served, the listener decides
// who is. A target of a local VIP that has no rule is refused too, where other
// portals would let it pass.
//
// The route for a VIP without rules goes when no connection needs it any more,
// whosever that is: usher's, a predecessor's that is draining, or the kernel's
// alone, which still sends what a closed socket has left. Each Check looks; until
// the route goes, new connections are refused.
//
// Since a VIP is a local address, the node answers ARP and neighbour discovery
// for it, as IPVS proxies do. Where a load balancer announces VIPs in the
// node's own network, set net.ipv4.conf.all.arp_ignore=1.
type addressPortal struct {
	mode   Mode
	log    logrus.FieldLogger
	opts   Options
	routes *localRoutes

	mu      sync.Mutex // guards all below
	rules   map[Target]Rule
	users   map[netip.Addr]int   // how many rules have this VIP
	routed  map[netip.Addr]bool  // VIPs with a route of ours; the others are local by themselves
	missing map[netip.Addr]error // VIPs that could not be made local
	leaving map[netip.Addr]bool  // VIPs without rules that are routed for the connections they have
	// listened is what Listen last answered for node ports that have a listener
	// for each address.
	listened map[Target][]netip.Addr
	applied  bool
}

// addressMode is the mode that makes VIPs addresses of the node.
var addressMode = Mode{Name: addressName, Traits: addressTraits, Open: openAddress, List: listAddress, Remove: removeAddress}

// openAddress makes sure that routes can be made, by making one and taking it
// out again.
func openAddress(_ context.Context, self Mode, opts Options) (Portal, error) {
	if err := needNetAdmin(); err != nil {
		return nil, err
	}
	opts.Log = opts.Log.WithField("portal", self.Name)
	routes, err := openRoutes()
	if err != nil {
		return nil, err
	}
	// An address for documentation (RFC 5737, RFC 3849): nobody has it.
	probe := netip.MustParseAddr("192.0.2.117")
	if opts.NoIPv4 {
		probe = netip.MustParseAddr("2001:db8::117")
	}
	if err := routes.probe(probe); err != nil {
		routes.close()
		return nil, err
	}
	return &addressPortal{
		mode: self, log: opts.Log, opts: opts, routes: routes,
		rules: map[Target]Rule{}, users: map[netip.Addr]int{},
		routed: map[netip.Addr]bool{}, missing: map[netip.Addr]error{}, leaving: map[netip.Addr]bool{},
		listened: map[Target][]netip.Addr{},
	}, nil
}

// listAddress returns the VIPs that are routed.
func listAddress(context.Context, Options) ([]Rule, error) {
	routes, err := openRoutes()
	if err != nil {
		return nil, err
	}
	defer routes.close()
	addrs, err := routes.list()
	var vips []Rule
	for _, addr := range addrs {
		if !IsLanding(addr) {
			vips = append(vips, Rule{Target: Target{Addr: addr}})
		}
	}
	return vips, err
}

// removeAddress takes out the routes for VIPs, and with all set for landings too.
func removeAddress(_ context.Context, _ Options, all bool) ([]string, error) {
	return removeRoutes(func(addr netip.Addr) bool { return all || !IsLanding(addr) })
}

func (p *addressPortal) Mode() string { return p.mode.Name }

func (p *addressPortal) Traits() Traits { return p.mode.Traits }

// Listen asks for one listener per target, at the very address that clients use.
// For SCTP that holds for node ports too: a listener on all addresses would tell
// its clients all of them, and some may be out of their reach.
func (p *addressPortal) Listen(_ string, targets []Target) []Bind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var binds []Bind
	for _, group := range byListener(targets) {
		for _, t := range group {
			addrs := []netip.Addr{t.Addr}
			if t.Addr.IsUnspecified() && (t.Protocol == SCTP || len(p.opts.NodePortAddresses) > 0) {
				addrs = p.nodeAddresses(FamilyOf(t.Addr))
				p.listened[t] = addrs
			}
			for _, addr := range addrs {
				binds = append(binds, Bind{Addr: netip.AddrPortFrom(addr, t.Port), Targets: []Target{t}})
			}
		}
	}
	return binds
}

// nodeAddresses returns this node's addresses of one family that have node
// ports, in order. A link-local address of IPv6 is none without an
// interface.
func (p *addressPortal) nodeAddresses(family Family) (addrs []netip.Addr) {
	all, err := p.routes.addresses(family)
	if err != nil {
		p.log.WithError(err).Error("This node's addresses cannot be listed: node ports are not served at those that are missing")
	}
	for _, addr := range all {
		within := len(p.opts.NodePortAddresses) == 0 || containsAddr(p.opts.NodePortAddresses, addr)
		if within && !(addr.Is6() && addr.IsLinkLocalUnicast()) {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// moved returns nil while Listen would answer as it did.
func (p *addressPortal) moved() error {
	now := map[netip.Addr][]netip.Addr{}
	again := map[Target]bool{}
	for t, then := range p.listened {
		if _, known := now[t.Addr]; !known {
			now[t.Addr] = p.nodeAddresses(FamilyOf(t.Addr))
		}
		if !slices.Equal(then, now[t.Addr]) {
			again[t] = true
		}
	}
	if len(again) == 0 {
		return nil
	}
	return &ListenAgainError{Targets: sortedTargets(again)}
}

// Mark is none: what is sent to a VIP goes to whoever listens there.
func (p *addressPortal) Mark() uint32 { return 0 }

// SetLocalSources changes nothing: nothing is dropped here.
func (p *addressPortal) SetLocalSources([]netip.Prefix) {}

func (p *addressPortal) SetNodePortAddresses(within []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opts.NodePortAddresses = plainPrefixes(within)
}

func (p *addressPortal) Apply(ctx context.Context, set []Rule, gone []Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := map[Target]bool{}
	for _, r := range set {
		t := r.Target.plain()
		_, before[t] = p.rules[t]
	}
	touched := map[netip.Addr]bool{}
	for _, t := range gone {
		t = t.plain()
		_, before[t] = p.rules[t]
		delete(p.listened, t)
	}
	for _, r := range set {
		if r.LocalPort == 0 { // there is no listener any more
			delete(p.listened, r.Target.plain())
		}
	}
	_, refused := merge(p.rules, set, gone)
	for t, was := range before {
		_, is := p.rules[t]
		if t.Addr.IsValid() && !t.Addr.IsUnspecified() && was != is {
			if is {
				p.users[t.Addr]++
			} else {
				p.users[t.Addr]--
			}
			touched[t.Addr] = true
		}
	}
	var err error
	if p.applied {
		_, err = p.settle(ctx, slices.SortedFunc(maps.Keys(touched), netip.Addr.Compare))
	} else {
		_, err = p.settleAll(ctx)
	}
	if err == nil && !p.applied {
		p.applied = true
		if len(p.opts.RemoveOthers(ctx)) > 0 {
			forgetRedirected(maps.Keys(p.rules), p.log)
		}
	}
	for _, r := range set {
		p.explain(r.Target.plain(), refused)
	}
	return errors.Join(err, ruleError(refused))
}

// explain puts into refused why a target's VIP is not local, if so.
func (p *addressPortal) explain(t Target, refused map[Target]error) {
	if err := p.missing[t.Addr]; err != nil && refused[t] == nil {
		refused[t] = err
	}
}

func (p *addressPortal) Check(ctx context.Context) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.applied && len(p.rules) == 0 {
		return 0, nil
	}
	repaired, err := p.settleAll(ctx)
	if len(repaired) > 0 {
		p.log.WithFields(logrus.Fields{"count": len(repaired), "what": some(repaired)}).Warn("portal repaired")
	}
	refused := map[Target]error{}
	for t := range p.rules {
		p.explain(t, refused)
	}
	return len(repaired), errors.Join(err, ruleError(refused), p.moved())
}

// settleAll reads which routes of ours there are, and makes all VIPs right.
func (p *addressPortal) settleAll(ctx context.Context) (changed []string, err error) {
	if err := p.routes.loDown(); err != nil {
		return nil, err
	}
	routed, err := p.routes.list()
	if err != nil {
		return nil, err
	}
	addrs := map[netip.Addr]bool{}
	clear(p.routed)
	for _, addr := range routed {
		// Connections that came in by a landing may still be draining.
		if !IsLanding(addr) {
			p.routed[addr] = true
			addrs[addr] = true
		}
	}
	for vip := range p.users {
		addrs[vip] = true
	}
	return p.settle(ctx, slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare))
}

// settle makes the VIPs that a rule has local, and those that none has not, once
// they have no connections either. That these have ended is no change.
func (p *addressPortal) settle(ctx context.Context, vips []netip.Addr) (changed []string, err error) {
	for _, vip := range vips { // what opens first, so that nothing is away meanwhile
		if p.users[vip] <= 0 {
			continue
		}
		delete(p.leaving, vip)
		if p.routed[vip] {
			continue
		}
		delete(p.missing, vip)
		if err := ctx.Err(); err != nil {
			return changed, fmt.Errorf("making VIPs local: %w", err)
		}
		if err := p.usable(vip); err != nil {
			p.missing[vip] = err
			continue
		}
		if p.routes.isLocal(vip) {
			continue
		}
		switch err := p.routes.add(vip); {
		case err == nil:
			p.routed[vip] = true
			changed = append(changed, vip.String())
		case !errors.Is(err, unix.EEXIST):
			p.missing[vip] = err
		}
	}
	var unused []netip.Addr
	for _, vip := range vips {
		if p.users[vip] > 0 {
			continue
		}
		delete(p.users, vip)
		delete(p.missing, vip)
		if p.routed[vip] {
			unused = append(unused, vip)
		}
	}
	removed, err := p.leave(unused)
	return append(changed, removed...), err
}

// leave takes out the routes for VIPs that have no connections. It returns those
// that were not to go earlier.
func (p *addressPortal) leave(vips []netip.Addr) (removed []string, err error) {
	if len(vips) == 0 {
		return nil, nil
	}
	needed, err := inUse(vips)
	if err != nil {
		p.log.WithError(err).Warn("Connections to Services that are removed may be cut")
	}
	var errs []error
	for _, vip := range vips {
		if needed[vip] {
			p.leaving[vip] = true
			continue
		}
		if err := p.routes.del(vip); err != nil {
			errs = append(errs, err)
			continue
		}
		if !p.leaving[vip] {
			removed = append(removed, vip.String())
		}
		delete(p.leaving, vip)
		delete(p.routed, vip)
	}
	return removed, errors.Join(errs...)
}

// usable tells why a VIP must not be made local.
func (p *addressPortal) usable(vip netip.Addr) error {
	if p.opts.without(FamilyOf(vip)) {
		return errors.New("this address family is switched off")
	}
	return nil
}

func (p *addressPortal) Remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.rules)
	clear(p.users)
	clear(p.routed)
	clear(p.missing)
	clear(p.leaving)
	clear(p.listened)
	_, err := p.mode.Remove(ctx, p.opts, true)
	return err
}

// Compare implements Portal.
func (p *addressPortal) Compare(ctx context.Context) ([]Comparison, error) {
	p.mu.Lock()
	wanted := maps.Clone(p.rules)
	p.mu.Unlock()
	installed, err := ListAll(ctx, slices.Concat([]Mode{p.mode}, p.opts.Others), p.opts)
	if err != nil {
		return nil, err
	}
	routed := map[netip.Addr]bool{}
	for _, i := range installed {
		routed[i.Rule.Target.Addr] = routed[i.Rule.Target.Addr] || i.Mode == p.mode.Name
	}
	return compareLocal(p.mode, wanted, func(vip netip.Addr) bool { return routed[vip] || p.routes.isLocal(vip) }, installed), nil
}

// compareLocal is compare for mode address, in which all rules of a VIP are in
// effect if that is an address of this node. Node ports need nothing of the
// kernel.
func compareLocal(mode Mode, wanted map[Target]Rule, isLocal func(netip.Addr) bool, installed []Installed) (all []Comparison) {
	vips := map[netip.Addr]bool{}
	for t, want := range wanted {
		local, known := vips[t.Addr]
		if !known {
			local = t.Addr.IsUnspecified() || isLocal(t.Addr)
			vips[t.Addr] = local
		}
		c := Comparison{Mode: mode.Name, Traits: mode.Traits, Rule: want, State: StateMissing}
		if local {
			c.State = StateOK
		}
		all = append(all, c)
	}
	for _, i := range installed {
		if _, is := vips[i.Rule.Target.Addr]; i.Mode != mode.Name || !is {
			all = append(all, i.extra())
		}
	}
	slices.SortFunc(all, Comparison.Compare)
	return all
}

// Watch implements Watcher.
func (p *addressPortal) Watch(ctx context.Context) (<-chan struct{}, error) {
	return watch(ctx, func() (subscription, error) { return routeEvents(p.lost) })
}

// lost tells whether a change of a local route is one that Check has to do with.
// A route that this portal took out itself has no user any more.
func (p *addressPortal) lost(addr netip.Addr, gone, ours bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return gone && p.users[addr] > 0 || !ours && len(p.listened) > 0
}

var _ Watcher = (*addressPortal)(nil)
