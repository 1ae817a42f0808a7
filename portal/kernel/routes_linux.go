package kernel

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// RouteProtocol marks the routes that portals make as usher's ("proto 117" in the output of ip route). It is not used
// in linux/rtnetlink.h or iproute2's rt_protos.
const RouteProtocol = 117

// Routes makes addresses local to the node by `local` routes on lo (the kernel's AnyIP). ip addr does not show such
// addresses. Where these routes have no effect, Routes adds the addresses to an interface; see ChooseAddresses.
type Routes struct {
	handle    *netlink.Handle
	lo        int // the index of lo
	onVIPLink bool
}

// OpenRoutes returns the Routes of the calling thread's network namespace.
func OpenRoutes() (*Routes, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	lo, err := handle.LinkByName("lo")
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("looking up interface lo: %w", err)
	}
	return &Routes{handle: handle, lo: lo.Attrs().Index}, nil
}

// Close closes the descriptor. It removes no route.
func (r *Routes) Close() { r.handle.Close() }

// ProbeRedirectAddr tests that a redirect address can receive packets: it does the same as Land, and undoes it. An
// address that was local before stays so.
func ProbeRedirectAddr(redirectAddr netip.Addr) error {
	routes, err := OpenRoutes()
	if err != nil {
		return err
	}
	defer routes.Close()
	if err = routes.LoDown(); err == nil {
		err = routes.Add(redirectAddr)
	}
	switch {
	case err == nil:
		return routes.Delete(redirectAddr)
	case errors.Is(err, unix.EEXIST):
		return nil
	}
	return err
}

// Land makes a redirect address an address of the node, and returns the parts that it had to install.
func Land(redirectAddr netip.Addr) (made []string, err error) {
	routes, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer routes.Close()
	switch err := routes.Add(redirectAddr); {
	case err == nil:
		return []string{"route " + redirectAddr.String()}, nil
	case errors.Is(err, unix.EEXIST):
		return nil, nil
	default:
		return nil, err
	}
}

// route returns the route that makes addr local.
func (r *Routes) route(addr netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: r.lo,
		Dst:       Alone(addr),
		Table:     unix.RT_TABLE_LOCAL,
		Type:      unix.RTN_LOCAL,
		Scope:     netlink.SCOPE_HOST,
		Protocol:  RouteProtocol,
	}
}

// Add makes addr local. The error is EEXIST if it already is.
func (r *Routes) Add(addr netip.Addr) error {
	if r.onVIPLink {
		return r.addAddress(addr)
	}
	err := r.handle.RouteAdd(r.route(addr))
	switch {
	case err == nil:
		return nil
	case addr.Is6() && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES)):
		err = fmt.Errorf("%w (IPv6 is switched off here: see net.ipv6.conf.lo.disable_ipv6)", err)
	}
	return fmt.Errorf("adding a local route on lo for %s: %w", addr, err)
}

// Delete reverts Add. It is no error if the address is not local.
func (r *Routes) Delete(addr netip.Addr) error {
	if r.onVIPLink {
		return r.deleteAddress(addr)
	}
	if err := r.handle.RouteDel(r.route(addr)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing local route for %s: %w", addr, err)
	}
	return nil
}

// Table has the routes of the kernel's local table, which is looked up first, and the Networks.
type Table struct {
	Local    []netip.Addr          // made local by portals, of this or another process
	Networks map[netip.Prefix]bool // whose unused addresses are rejected; see RejectNetwork
}

// Table reads the table.
func (r *Routes) Table() (t Table, err error) {
	for range 10 { // a change interrupts a dump, which is then incomplete
		if t, err = r.readTable(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return t, err
	}
	onLink, err := r.vipLinkAddresses()
	t.Local = append(t.Local, onLink...)
	return t, err
}

// readTable reads the routes of both families. It iterates, since there may be tens of thousands of routes.
func (r *Routes) readTable() (Table, error) {
	t := Table{Networks: map[netip.Prefix]bool{}}
	for _, family := range portal.Families {
		// The routes of all tables.
		err := r.handle.RouteListFilteredIter(netlinkFamily(family), &netlink.Route{}, netlink.RT_FILTER_TABLE, t.add)
		if err != nil {
			return t, fmt.Errorf("listing local routes: %w", err)
		}
	}
	return t, nil
}

// add adds a route to the table; it returns true to continue.
func (t *Table) add(route netlink.Route) bool {
	switch {
	case route.Dst == nil || route.Protocol != RouteProtocol:
	case route.Table == unix.RT_TABLE_MAIN && route.Type == unix.RTN_PROHIBIT:
		t.Networks[prefixOf(route.Dst)] = true
	case route.Table == unix.RT_TABLE_LOCAL && route.Type == unix.RTN_LOCAL:
		t.Local = append(t.Local, prefixOf(route.Dst).Addr())
	}
	return true
}

// RejectNetwork adds a route that makes the kernel reject packets to addresses of a network with "administratively
// prohibited", an error that UDP clients get too. All other routes to such an address have precedence: those for it
// alone, for a part of the network and, by their metric, for the same network.
func (r *Routes) RejectNetwork(network netip.Prefix) error {
	if err := r.handle.RouteAdd(toNetwork(network)); err != nil {
		return fmt.Errorf("adding a route for %s: %w", network, err)
	}
	return nil
}

// DeleteNetwork reverts RejectNetwork. It is no error if the route does not exist.
func (r *Routes) DeleteNetwork(network netip.Prefix) error {
	if err := r.handle.RouteDel(toNetwork(network)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing route for %s: %w", network, err)
	}
	return nil
}

func toNetwork(network netip.Prefix) *netlink.Route {
	return &netlink.Route{Dst: ipNet(network), Table: unix.RT_TABLE_MAIN, Type: unix.RTN_PROHIBIT, Priority: math.MaxInt32, Protocol: RouteProtocol}
}

// IsLocal reports whether the kernel delivers addr to this node, for any reason.
func (r *Routes) IsLocal(addr netip.Addr) bool {
	if r.onVIPLink { // routes then do not matter
		return canBind(addr) && r.isListed(addr)
	}
	routes, err := r.handle.RouteGet(addr.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// LoDown returns an error if lo is down, as in a new network namespace. The kernel then accepts local routes, but
// nothing arrives by them.
func (r *Routes) LoDown() error {
	lo, err := r.handle.LinkByIndex(r.lo)
	if err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		err = errors.New("lo is down in this network namespace; run ip link set lo up")
	}
	if err != nil {
		return fmt.Errorf("checking interface lo: %w", err)
	}
	return nil
}

// RemoveRoutes removes the local routes and the network routes of all portals, of this or another process. which
// selects them by address; a network, by its first address.
func RemoveRoutes(which func(netip.Addr) bool) (removed []string, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	table, err := r.Table()
	if err != nil {
		return nil, err
	}
	var errs []error
	count := 0
	for _, addr := range table.Local {
		if !which(addr) {
			continue
		}
		if err := r.Delete(addr); err != nil {
			errs = append(errs, err)
			continue
		}
		count++
	}
	if count > 0 {
		removed = append(removed, fmt.Sprintf("routes: %d local routes of protocol %d", count, RouteProtocol))
	}
	for network := range table.Networks {
		if !which(network.Addr()) {
			continue
		}
		if err := r.DeleteNetwork(network); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, fmt.Sprintf("routes: route for %s", network))
	}
	return removed, errors.Join(errs...)
}

// Addresses returns the addresses of this node's interfaces, without VIPs.
func (r *Routes) Addresses(family portal.Family) (addrs []netip.Addr, err error) {
	all, err := r.handle.AddrList(nil, netlinkFamily(family))
	vips, err2 := r.vipLinkAddresses()
	for _, a := range all {
		if addr := prefixOf(a.IPNet).Addr(); !slices.Contains(vips, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, errors.Join(err, err2)
}

// ipNet converts a network for netlink's messages.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Alone returns the network that contains only addr.
func Alone(addr netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(addr, addr.BitLen())) }

// Everywhere returns the network of all addresses of a family.
func Everywhere(family portal.Family) *net.IPNet { return ipNet(netip.PrefixFrom(family.Any(), 0)) }

// prefixOf converts a network of netlink's.
func prefixOf(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// netlinkFamily returns netlink's number for a family.
func netlinkFamily(family portal.Family) int {
	if family.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// InterfacesWithoutIPv4 names the interfaces that are up and have no IPv4 address. It skips loopback, and ports of
// another interface, such as a bridge.
func InterfacesWithoutIPv4() ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
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
