package portal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol is the number by which the routes of the address portal are
// known as usher's ("proto 117" in the output of ip route). It is none of
// those in linux/rtnetlink.h and iproute2's rt_protos.
const RouteProtocol = 117

// addressPortal makes VIPs local addresses of the node, so that the kernel
// itself brings what is sent to them to listeners on VIP:port. It needs no
// netfilter. The VIPs are not addresses of an interface but `local` routes on lo
// (the kernel's AnyIP), which ip addr does not show.
//
// A rejected target keeps its route: without a listener the kernel refuses. A
// dropped target is refused as well, since routes cannot drop one port of an
// address. A target of a local VIP that has no rule is refused too, where
// other portals would let it pass.
//
// Since a VIP is a local address, the node answers ARP and neighbour discovery
// for it, as IPVS proxies do. Where a load balancer announces VIPs in the
// node's own network, set net.ipv4.conf.all.arp_ignore=1.
type addressPortal struct {
	log    logrus.FieldLogger
	opts   Options
	handle *netlink.Handle
	lo     int // the index of lo

	mu      sync.Mutex // guards all below
	rules   map[Target]Rule
	users   map[netip.Addr]int   // how many rules have this VIP
	routed  map[netip.Addr]bool  // VIPs with a route of ours; the others are local by themselves
	missing map[netip.Addr]error // VIPs that could not be made local
	applied bool
}

// newAddress makes sure that routes can be made, by making one and taking it
// out again.
func newAddress(_ context.Context, opts Options) (Portal, error) {
	if !hasNetAdmin() {
		return nil, errNoNetAdmin
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("asking the kernel for its routes: %w", err)
	}
	lo, err := handle.LinkByName("lo")
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("looking for the interface lo: %w", err)
	}
	p := &addressPortal{
		log: opts.Log.WithField("portal", ModeAddress), opts: opts, handle: handle, lo: lo.Attrs().Index,
		rules: map[Target]Rule{}, users: map[netip.Addr]int{},
		routed: map[netip.Addr]bool{}, missing: map[netip.Addr]error{},
	}
	if err := p.loDown(); err != nil {
		handle.Close()
		return nil, err
	}
	// An address for documentation (RFC 5737, RFC 3849): nobody has it.
	probe := netip.MustParseAddr("192.0.2.117")
	if opts.NoIPv4 {
		probe = netip.MustParseAddr("2001:db8::117")
	}
	err = p.add(probe)
	if err == nil || errors.Is(err, unix.EEXIST) { // it may be there if a process died right here
		err = p.del(probe)
	}
	if err != nil {
		handle.Close()
		return nil, err
	}
	return p, nil
}

func (p *addressPortal) Mode() string { return ModeAddress }

// Listen asks for one listener per target, at the very address that clients use.
func (p *addressPortal) Listen(targets []Target) []Bind {
	var binds []Bind
	for _, group := range byListener(targets) {
		for _, t := range group {
			binds = append(binds, Bind{Addr: netip.AddrPortFrom(t.Addr, t.Port), Targets: []Target{t}})
		}
	}
	return binds
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
	}
	_, refused := merge(p.rules, set, gone)
	for t, was := range before {
		_, is := p.rules[t]
		if t.Addr.IsValid() && !t.Addr.IsUnspecified() && was != is {
			p.users[t.Addr] += truth(is) - truth(was)
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
		if removed, err := removeIPTables(ctx, p.opts, nil); err != nil {
			p.log.WithError(err).Debug("looking for what another mode of portal has left")
		} else if len(removed) > 0 {
			p.log.WithField("what", some(removed)).Info("removed what another mode of portal had left")
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
	return len(repaired), errors.Join(err, ruleError(refused))
}

// settleAll reads which routes of ours there are, and makes all VIPs right.
func (p *addressPortal) settleAll(ctx context.Context) (changed []string, err error) {
	if err := p.loDown(); err != nil {
		return nil, err
	}
	routes, err := ourRoutes(p.handle)
	if err != nil {
		return nil, err
	}
	addrs := map[netip.Addr]bool{}
	clear(p.routed)
	for _, r := range routes {
		if vip, ok := routeAddr(r); ok {
			p.routed[vip] = true
			addrs[vip] = true
		}
	}
	for vip := range p.users {
		addrs[vip] = true
	}
	return p.settle(ctx, slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare))
}

// settle makes the VIPs that a rule has local, and those that none has not.
func (p *addressPortal) settle(ctx context.Context, vips []netip.Addr) (changed []string, err error) {
	for _, vip := range vips { // what opens first, so that nothing is away meanwhile
		if p.users[vip] <= 0 || p.routed[vip] {
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
		if p.isLocal(vip) {
			continue
		}
		switch err := p.add(vip); {
		case err == nil:
			p.routed[vip] = true
			changed = append(changed, vip.String())
		case !errors.Is(err, unix.EEXIST):
			p.missing[vip] = err
		}
	}
	var errs []error
	for _, vip := range vips {
		if p.users[vip] > 0 {
			continue
		}
		delete(p.users, vip)
		delete(p.missing, vip)
		if p.routed[vip] {
			if err := p.del(vip); err != nil {
				errs = append(errs, err)
				continue
			}
			delete(p.routed, vip)
			changed = append(changed, vip.String())
		}
	}
	return changed, errors.Join(errs...)
}

// usable tells why a VIP must not be made local.
func (p *addressPortal) usable(vip netip.Addr) error {
	if vip.Is4() && p.opts.NoIPv4 || vip.Is6() && p.opts.NoIPv6 {
		return errors.New("this address family is switched off")
	}
	return nil
}

// isLocal tells whether the kernel delivers vip to this node, for whatever reason.
func (p *addressPortal) isLocal(vip netip.Addr) bool {
	routes, err := p.handle.RouteGet(vip.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// route is the route that makes vip local.
func (p *addressPortal) route(vip netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: p.lo,
		Dst:       &net.IPNet{IP: vip.AsSlice(), Mask: net.CIDRMask(vip.BitLen(), vip.BitLen())},
		Table:     unix.RT_TABLE_LOCAL,
		Type:      unix.RTN_LOCAL,
		Scope:     netlink.SCOPE_HOST,
		Protocol:  RouteProtocol,
	}
}

func (p *addressPortal) add(vip netip.Addr) error {
	err := p.handle.RouteAdd(p.route(vip))
	switch {
	case err == nil:
		return nil
	case vip.Is6() && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES)):
		err = fmt.Errorf("%w (IPv6 is switched off here: see net.ipv6.conf.lo.disable_ipv6)", err)
	}
	return fmt.Errorf("making %s a local address by a route on lo: %w", vip, err)
}

// loDown tells when lo is down, as it is in a new network namespace. The
// kernel takes local routes all the same, but nothing arrives by them.
func (p *addressPortal) loDown() error {
	lo, err := p.handle.LinkByIndex(p.lo)
	if err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		err = errors.New("it is down in this network namespace: ip link set lo up")
	}
	if err != nil {
		return fmt.Errorf("looking whether the interface lo is up: %w", err)
	}
	return nil
}

func (p *addressPortal) del(vip netip.Addr) error {
	if err := p.handle.RouteDel(p.route(vip)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing the local route for %s: %w", vip, err)
	}
	return nil
}

func (p *addressPortal) Remove(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.rules)
	clear(p.users)
	clear(p.routed)
	clear(p.missing)
	_, err := removeRoutes()
	return err
}

// ourRoutes lists the routes that an address portal has made.
func ourRoutes(h *netlink.Handle) ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: RouteProtocol}
		const mask = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_TYPE | netlink.RT_FILTER_PROTOCOL
		var routes []netlink.Route
		var err error
		for range 10 { // a dump that a change interrupts is incomplete
			routes, err = h.RouteListFiltered(family, filter, mask)
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf("listing the local routes: %w", err)
		}
		all = append(all, routes...)
	}
	return all, nil
}

// routeAddr returns the VIP that a route of ours is for.
func routeAddr(r netlink.Route) (netip.Addr, bool) {
	if r.Dst == nil {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	return addr.Unmap(), ok
}

// removeRoutes takes out all routes of all address portals.
func removeRoutes() (removed []string, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("asking the kernel for its routes: %w", err)
	}
	defer h.Close()
	routes, err := ourRoutes(h)
	if err != nil {
		return nil, err
	}
	var errs []error
	count := 0
	for _, r := range routes {
		if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the local route %s: %w", r.Dst, err))
			continue
		}
		count++
	}
	if count > 0 {
		removed = append(removed, fmt.Sprintf("routes: %d local routes of protocol %d", count, RouteProtocol))
	}
	return removed, errors.Join(errs...)
}

// interfacesWithoutIPv4 names the interfaces that are up and could bring in
// packets, but have no IPv4 address, neither themselves nor as part of another.
func interfacesWithoutIPv4() ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing the interfaces: %w", err)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses: %w", err)
	}
	has := map[int]bool{}
	for _, a := range addrs {
		has[a.LinkIndex] = true
	}
	var names []string
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagUp != 0 && a.Flags&net.FlagLoopback == 0 && a.MasterIndex == 0 && !has[a.Index] {
			names = append(names, a.Name)
		}
	}
	return names, nil
}
