package address

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
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// addressPortal makes VIPs local addresses, so that the kernel itself delivers packets for them to listeners on
// VIP:port. It needs no netfilter.
//
// A rejected target keeps its route: without a listener the kernel refuses. A dropped target is refused as well, since
// routes cannot drop one port of an address. If it has a listener for clients on this node, the listener itself refuses
// all other clients. The kernel also refuses ports of a local VIP that have no rule; other portals let these packets
// pass.
//
// The route for a VIP without rules stays while a connection needs it: usher's, a draining predecessor's, or one with a
// closed socket whose data the kernel still sends. Each Check removes unneeded routes. Until then, new connections are
// refused.
//
// The node answers ARP for VIPs, as with IPVS proxies. It does not answer neighbor discovery, for which the kernel
// requires an address of an interface. If a load balancer announces VIPs in the node's own network, set
// net.ipv4.conf.all.arp_ignore=1.
type addressPortal struct {
	portal.Plain
	log    logrus.FieldLogger
	opts   portal.Options
	routes *kernel.Routes
	known  kernel.Known // whether routed and networks are valid
	traits portal.Traits

	mu      sync.Mutex // guards all below
	rules   map[portal.Target]portal.Rule
	users   map[netip.Addr]int    // the number of rules with this VIP
	ports   map[portal.Target]int // the number of rules for VIPs with the port of this node port
	routed  map[netip.Addr]bool   // VIPs with a route of usher's; the others are local already
	missing map[netip.Addr]error  // VIPs that could not be made local
	leaving map[netip.Addr]bool   // VIPs without rules that stay routed for open connections

	settings portal.Settings
	networks map[netip.Prefix]bool // with a route of usher's; see kernel.RejectNetwork
	unrouted map[netip.Prefix]bool // whose last change failed, which was logged
	// listened is the last result of Listen for node ports that have a listener for each address.
	listened map[portal.Target][]netip.Addr
	applied  bool
	leftover portal.Others
}

func init() { Mode.Open, Mode.List, Mode.Remove = open, list, remove }

// testVIP is an address for documentation (RFC 5737), which no host has.
var testVIP = netip.MustParseAddr("192.0.2.117")

// withoutRoutes always makes VIPs addresses of an interface. Specs set it.
var withoutRoutes = false

// open tests that routes can be made, by adding and removing one.
func open(_ context.Context, opts portal.Options) (portal.Portal, error) {
	if err := kernel.NeedNetAdmin(); err != nil {
		return nil, err
	}
	opts.Log = opts.Log.WithField("portal", Mode.Name)
	routes, err := kernel.OpenRoutes()
	if err != nil {
		return nil, err
	}
	if err = routes.LoDown(); err == nil {
		err = routes.ChooseAddresses(testVIP, withoutRoutes)
	}
	if err != nil {
		routes.Close()
		return nil, err
	}
	p := &addressPortal{
		log: opts.Log, opts: opts, routes: routes, traits: Mode.Traits, settings: portal.Settings{NodePortAddresses: opts.NodePortAddresses},
	}
	if routes.OnVIPLink() {
		p.traits.About = "each cluster IP is an address of interface " + kernel.VIPLink + ",\nand usher listens on it."
	}
	p.clear()
	return p, nil
}

// clear forgets all VIPs and networks.
func (p *addressPortal) clear() {
	p.rules, p.listened = map[portal.Target]portal.Rule{}, map[portal.Target][]netip.Addr{}
	p.users, p.ports = map[netip.Addr]int{}, map[portal.Target]int{}
	p.routed, p.missing, p.leaving = map[netip.Addr]bool{}, map[netip.Addr]error{}, map[netip.Addr]bool{}
	p.networks, p.unrouted = map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
}

// list returns the VIPs that usher processes have made local.
func list(context.Context, portal.Options) ([]portal.Rule, error) {
	routes, err := kernel.OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer routes.Close()
	table, err := routes.Table()
	var vips []portal.Rule
	for _, addr := range table.Local {
		if !kernel.IsRedirectAddr(addr) {
			vips = append(vips, portal.Rule{Target: portal.Target{Addr: addr}})
		}
	}
	return vips, err
}

// remove removes the routes for VIPs, and the interface whose addresses they are. With all set, it also removes routes
// for redirect addresses.
func remove(_ context.Context, _ portal.Options, all bool) (removed []string, err error) {
	onLink, linkErr := kernel.RemoveVIPLink()
	removed, err = kernel.RemoveRoutes(func(addr netip.Addr) bool { return all || !kernel.IsRedirectAddr(addr) })
	return slices.Concat(onLink, removed), errors.Join(linkErr, err)
}

func (p *addressPortal) Mode() string { return Mode.Name }

func (p *addressPortal) Traits() portal.Traits { return p.traits }

// Listen requests listeners at the exact addresses that clients use. A node port has one listener on all addresses. But
// it may have one for each address: see onEach.
func (p *addressPortal) Listen(_ string, targets []portal.Target) []portal.Bind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var binds []portal.Bind
	for _, group := range portal.ByListener(targets) {
		for _, t := range group {
			if p.routes.OnVIPLink() && !t.Addr.IsUnspecified() {
				p.addForListener(t.Addr)
			}
			addrs := []netip.Addr{t.Addr}
			if t.Addr.IsUnspecified() && p.onEach(t, group) {
				addrs = p.nodeAddresses(portal.FamilyOf(t.Addr))
				p.listened[t] = addrs
				addrs = slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool { // an external IP
					return slices.Contains(group, portal.Target{Protocol: t.Protocol, Addr: addr, Port: t.Port})
				})
			}
			for _, addr := range addrs {
				binds = append(binds, portal.Bind{Addr: netip.AddrPortFrom(addr, t.Port), Targets: []portal.Target{t}})
			}
		}
	}
	return binds
}

// onEach reports whether node port t, one of group, has a listener for each address. There are three reasons. Only some
// addresses have node ports. A VIP has the same port: only one of the two could listen; once that VIP is removed, the
// listeners stay, so that clients notice nothing. Or the protocol is SCTP: a listener on all addresses would announce
// them all to its clients, and some may be unreachable for them.
func (p *addressPortal) onEach(t portal.Target, group []portal.Target) bool {
	_, is := p.listened[t]
	samePort := func(other portal.Target) bool { return other != t && nodePortOf(other) == t }
	return is || t.Protocol == portal.SCTP || len(p.settings.NodePortAddresses) > 0 || p.ports[t] > 0 || slices.ContainsFunc(group, samePort)
}

// nodePortOf returns the node port with t's protocol and port.
func nodePortOf(t portal.Target) portal.Target {
	t.Addr = portal.FamilyOf(t.Addr).Any()
	return t
}

// blocking returns the node ports whose listener on all addresses takes the port of a VIP in set, or would take it.
func (p *addressPortal) blocking(set []portal.Rule) []portal.Target {
	all := map[portal.Target]bool{}
	for _, r := range set {
		t := nodePortOf(r.Target.Plain())
		_, wanted := p.rules[t]
		if _, each := p.listened[t]; wanted && !each && p.ports[t] > 0 {
			all[t] = true
		}
	}
	return portal.SortedTargets(all)
}

// addForListener makes a VIP local before Apply does: where local routes have no effect, sockets can only be bound to
// local addresses. If it fails, so does Apply, which returns the error.
func (p *addressPortal) addForListener(vip netip.Addr) {
	if !p.routes.IsLocal(vip) && p.routes.Add(vip) == nil {
		p.routed[vip] = true
	}
}

// nodeAddresses returns this node's addresses of one family that have node ports, in order. It omits link-local IPv6
// addresses, which are ambiguous without an interface.
func (p *addressPortal) nodeAddresses(family portal.Family) (addrs []netip.Addr) {
	all, err := p.routes.Addresses(family)
	if err != nil {
		p.log.WithError(err).Error("Cannot list this node's addresses; node ports are not served on missing ones")
	}
	for _, addr := range all {
		within := len(p.settings.NodePortAddresses) == 0 || kernel.ContainsAddr(p.settings.NodePortAddresses, addr)
		if within && !(addr.Is6() && addr.IsLinkLocalUnicast()) {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// listensElsewhere returns the targets for which Listen would now return another result.
func (p *addressPortal) listensElsewhere() []portal.Target {
	now := map[netip.Addr][]netip.Addr{}
	again := map[portal.Target]bool{}
	for t, then := range p.listened {
		if _, known := now[t.Addr]; !known {
			now[t.Addr] = p.nodeAddresses(portal.FamilyOf(t.Addr))
		}
		if !slices.Equal(then, now[t.Addr]) {
			again[t] = true
		}
	}
	return portal.SortedTargets(again)
}

func (p *addressPortal) Set(change func(*portal.Settings)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings.Set(change)
}

func (p *addressPortal) Apply(ctx context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := map[portal.Target]portal.Rule{}
	for _, r := range set {
		t := r.Target.Plain()
		before[t] = p.rules[t]
	}
	touched := map[netip.Addr]bool{}
	for _, t := range gone {
		t = t.Plain()
		before[t] = p.rules[t]
		delete(p.listened, t)
	}
	for _, r := range set {
		if r.LocalPort == 0 { // the listener is closed
			delete(p.listened, r.Target.Plain())
		}
	}
	_, refused := portal.Merge(p.rules, set, gone)
	for t, was := range before {
		vip, is := t.Addr, p.rules[t]
		if !vip.IsValid() || vip.IsUnspecified() {
			continue
		}
		if now := is.Target.Addr.IsValid(); now != was.Target.Addr.IsValid() {
			touched[vip] = true
			n := -1
			if now {
				n = 1
			}
			p.users[vip] += n
			port := nodePortOf(t)
			if p.ports[port] += n; p.ports[port] == 0 {
				delete(p.ports, port)
			}
		}
	}
	var err error
	if p.applied {
		_, err = p.updateVIPs(ctx, slices.SortedFunc(maps.Keys(touched), netip.Addr.Compare))
	} else {
		p.known.Doubtful(time.Now()) // the state is read now
		_, err = p.updateAll(ctx, true)
	}
	if err != nil {
		p.known.Doubt()
	}
	if err == nil && !p.applied {
		p.applied = true
		p.removeOthers(ctx)
		_, _ = kernel.ForgetAnswers(0) // on error, leftovers of these or of the next misroute nothing
		_, _ = kernel.ForgetLastRoutes()
		if clashes := p.clashes(); len(clashes) > 0 {
			p.log.WithField("clashes", portal.Shorten(clashes)).Warn("Processes that listen on all addresses take ports of VIPs; make them listen on single addresses")
		}
	}
	for _, r := range set {
		p.explain(r.Target.Plain(), refused)
	}
	return portal.Result{Refused: refused, Moved: p.blocking(set), Err: err}
}

// explain adds to refused the reason why a target's VIP is not local, if so.
func (p *addressPortal) explain(t portal.Target, refused map[portal.Target]error) {
	if err := p.missing[t.Addr]; err != nil && refused[t] == nil {
		refused[t] = err
	}
}

func (p *addressPortal) Check(ctx context.Context) portal.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.applied && len(p.rules) == 0 {
		return portal.Result{}
	}
	doubtful := p.known.Doubtful(time.Now())
	repaired, err := p.updateAll(ctx, doubtful)
	if err != nil {
		p.known.Doubt()
	}
	if len(repaired) > 0 {
		p.log.WithFields(logrus.Fields{"count": len(repaired), "changed": portal.Shorten(repaired)}).Warn("Portal repaired")
	}
	if p.applied {
		p.removeOthers(ctx)
	}
	refused := map[portal.Target]error{}
	for t := range p.rules {
		p.explain(t, refused)
	}
	return portal.Result{Refused: refused, Moved: p.listensElsewhere(), Repaired: repaired, Err: err}
}

func (p *addressPortal) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leftover = portal.Others{}
}

// removeOthers removes leftovers of other portals, and the flows that their rules have made.
func (p *addressPortal) removeOthers(ctx context.Context) {
	if len(p.leftover.Remove(ctx, p.opts)) > 0 {
		kernel.ForgetRedirected(maps.Keys(p.rules), p.log)
	}
}

// updateAll updates all VIPs or, if the routes are not doubtful, only those with pending changes.
func (p *addressPortal) updateAll(ctx context.Context, doubtful bool) (changed []string, err error) {
	if err := p.routes.LoDown(); err != nil {
		return nil, err
	}
	vips := slices.AppendSeq(slices.Collect(maps.Keys(p.missing)), maps.Keys(p.leaving))
	if doubtful {
		if err := p.readRoutes(); err != nil {
			return nil, err
		}
		vips = slices.AppendSeq(slices.AppendSeq(vips, maps.Keys(p.users)), maps.Keys(p.routed))
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	return p.updateVIPs(ctx, slices.Compact(vips))
}

// readRoutes reads usher's routes.
func (p *addressPortal) readRoutes() error {
	table, err := p.routes.Table()
	if err != nil {
		return err
	}
	p.networks = table.Networks
	clear(p.routed)
	for _, addr := range table.Local {
		// A redirect address stays: connections that came in by it may still be draining.
		if !kernel.IsRedirectAddr(addr) {
			p.routed[addr] = true
		}
	}
	return nil
}

// updateVIPs makes VIPs with rules local, and removes the routes of those without rules once they have no
// connections. A removal that was deferred for connections does not count as a change.
func (p *addressPortal) updateVIPs(ctx context.Context, vips []netip.Addr) (changed []string, err error) {
	for _, vip := range vips { // first the additions, so that nothing is missing meanwhile
		if p.users[vip] <= 0 {
			continue
		}
		delete(p.leaving, vip)
		delete(p.missing, vip)
		if p.routed[vip] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return changed, fmt.Errorf("making VIPs local addresses: %w", err)
		}
		if p.routes.IsLocal(vip) {
			continue
		}
		switch err := p.routes.Add(vip); {
		case err == nil:
			p.routed[vip] = true
			changed = append(changed, vip.String())
		case errors.Is(err, unix.EEXIST):
			p.missing[vip] = fmt.Errorf("%w: another program has a route for it; see ip route show table local %s", err, vip)
		default:
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
	return slices.Concat(changed, removed, p.updateNetworks()), err
}

// leave removes the routes of VIPs without connections. It returns those whose removal was not deferred before.
func (p *addressPortal) leave(vips []netip.Addr) (removed []string, err error) {
	if len(vips) == 0 {
		return nil, nil
	}
	needed, err := kernel.InUse(vips)
	if err != nil {
		p.log.WithError(err).Warn("Connections to removed Services may be cut")
	}
	var errs []error
	for _, vip := range vips {
		if needed[vip] {
			p.leaving[vip] = true
			continue
		}
		if err := p.routes.Delete(vip); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(p.routed, vip)
		if !p.leaving[vip] {
			removed = append(removed, vip.String())
		}
		delete(p.leaving, vip)
	}
	return removed, errors.Join(errs...)
}

func (p *addressPortal) Remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	_, err := Mode.Remove(ctx, p.opts, true)
	return err
}

func (p *addressPortal) Compare(ctx context.Context) ([]portal.Comparison, error) {
	p.mu.Lock()
	wanted := maps.Clone(p.rules)
	p.mu.Unlock()
	installed, err := portal.ListAll(ctx, slices.Concat([]portal.Mode{Mode}, p.opts.Others), p.opts)
	if err != nil {
		return nil, err
	}
	routed := map[netip.Addr]bool{}
	for _, i := range installed {
		routed[i.Rule.Target.Addr] = routed[i.Rule.Target.Addr] || i.Mode == Mode.Name
	}
	return compare(wanted, func(vip netip.Addr) bool { return routed[vip] || p.routes.IsLocal(vip) }, installed), nil
}

// compare is the comparison for mode address: all rules of a VIP are in effect if it is an address of this node. Node
// ports need nothing from the kernel.
func compare(wanted map[portal.Target]portal.Rule, isLocal func(netip.Addr) bool, installed []portal.Comparison) (all []portal.Comparison) {
	vips := map[netip.Addr]bool{}
	for t, want := range wanted {
		local, known := vips[t.Addr]
		if !known {
			local = t.Addr.IsUnspecified() || isLocal(t.Addr)
			vips[t.Addr] = local
		}
		c := portal.Comparison{Mode: Mode.Name, Traits: Mode.Traits, Rule: want, State: portal.StateMissing}
		if local {
			c.State = portal.StateOK
		}
		all = append(all, c)
	}
	for _, i := range installed {
		if _, is := vips[i.Rule.Target.Addr]; i.Mode != Mode.Name || !is {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, portal.Comparison.Compare)
	return all
}

func (p *addressPortal) Watch(ctx context.Context) (<-chan struct{}, error) {
	return kernel.Watch(ctx, p.known.By(func() (kernel.Subscription, error) { return kernel.RouteEvents(p.lost) }))
}

// lost reports whether Check must soon handle a change of a route, and marks the state as doubtful if another process
// made the change. ours says that the route is an usher process's. If this process changed it, an added VIP has a user,
// and a removed one has none and is not in routed. Link-local addresses change with every interface, and no VIP is one.
func (p *addressPortal) lost(addr netip.Addr, gone, ours bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := p.users[addr] > 0
	for network := range p.networks {
		if ours && addr == network.Addr() {
			if gone {
				p.known.Doubt()
			}
			return gone
		}
	}
	if !ours && !addr.IsLinkLocalUnicast() || ours && (gone && (used || p.routed[addr]) || !gone && !used) {
		p.known.Doubt()
	}
	return used && (gone || !ours) || !ours && len(p.listened) > 0
}

// clashes describes the VIPs and ports that another process on the node uses.
func (p *addressPortal) clashes() (list []string) {
	listeners, err := kernel.Listeners()
	if err != nil {
		return []string{err.Error()}
	}
	listeners = slices.DeleteFunc(listeners, func(l kernel.Listener) bool { return l.Mine })
	for _, t := range portal.SortedTargets(p.rules) {
		if t.Addr.IsUnspecified() {
			continue
		}
		for _, l := range listeners {
			if l.Takes(t) {
				list = append(list, fmt.Sprintf("%s with %s on %s", t, l.Process, l.At))
				break
			}
		}
	}
	return list
}

var _ portal.Watcher = (*addressPortal)(nil)
