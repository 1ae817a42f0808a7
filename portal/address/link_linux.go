package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// linkName is the name of both ends of the link.
const linkName = "usher0"

// link is the connection from the node into a space: a pair of interfaces. They have no addresses, so the node gets no
// additional ones. Instead, routes use gateways with permanent neighbor entries, which need no resolution.
type link struct {
	node  *netlink.Handle
	space *space
	index int // of the node's end; 0 while there is no link, as far as connect knows
}

// The two ends, each with its addresses as a gateway and its hardware address. The IPv4 gateways are in the block for
// protocol assignments (RFC 6890; see redirect addresses in package kernel), those of IPv6 are link-local. udev does
// not change a hardware address that is set on creation.
var (
	nodeEnd  = end{netip.MustParseAddr("192.0.0.118"), netip.MustParseAddr("fe80::7573:6865:7201"), net.HardwareAddr{2, 'u', 's', 'h', 'e', 1}}
	spaceEnd = end{netip.MustParseAddr("192.0.0.119"), netip.MustParseAddr("fe80::7573:6865:7202"), net.HardwareAddr{2, 'u', 's', 'h', 'e', 2}}
)

type end struct {
	ip4, ip6 netip.Addr
	mac      net.HardwareAddr
}

// gateway returns the end's address for routes.
func (e end) gateway(family portal.Family) netip.Addr {
	if family.Is6() {
		return e.ip6
	}
	return e.ip4
}

// connect ensures that the link exists and connects the space, for these families. It reports whether it had to create
// the link.
func (l *link) connect(families []portal.Family) (made bool, err error) {
	l.index = 0
	outer, inner, err := l.ends()
	if err != nil {
		return false, err
	}
	if made = outer == nil; made {
		if outer, inner, err = l.make(); err != nil {
			return false, err
		}
	}
	l.index = outer.Attrs().Index
	mtu := l.mtu()
	for _, at := range []struct {
		handle *netlink.Handle
		netlink.Link
	}{{l.space.handle, inner}, {l.node, outer}} {
		if at.Attrs().MTU != mtu {
			if err := at.handle.LinkSetMTU(at.Link, mtu); err != nil {
				return made, fmt.Errorf("setting MTU of %s to %d: %w", linkName, mtu, err)
			}
		}
		if at.Attrs().Flags&net.FlagUp == 0 {
			if err := at.handle.LinkSetUp(at.Link); err != nil {
				return made, fmt.Errorf("bringing %s up: %w", linkName, err)
			}
		}
	}
	if made {
		if err := l.activated(); err != nil {
			return made, err
		}
	}
	for _, family := range families {
		if err := l.node.NeighSet(neighbour(outer, spaceEnd, family)); err != nil {
			return made, fmt.Errorf("%s on %s: %w", family, linkName, err)
		}
		if err := l.furnish(inner, family); err != nil {
			return made, fmt.Errorf("%s in the namespace: %w", family, err)
		}
	}
	return made, nil
}

// activated waits until both ends send. The end that was brought up first starts to send only some time after the other
// is up: until then the kernel drops its packets.
func (l *link) activated() error {
	const soon, least = 5 * time.Second, time.Millisecond
	for deadline := time.Now().Add(soon); ; time.Sleep(least) {
		silent := false
		for _, h := range []*netlink.Handle{l.node, l.space.handle} {
			at, err := h.LinkByName(linkName)
			if err != nil {
				return err
			}
			silent = silent || at.Attrs().OperState != netlink.OperUp
		}
		switch {
		case !silent:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("interface %s does not start sending", linkName)
		}
	}
}

// ends returns both ends of the link, or nil if it does not exist. It removes a leftover link to another namespace:
// that of a killed usher process whose connections the kernel still has.
func (l *link) ends() (outer, inner netlink.Link, err error) {
	if outer, err = find(l.node); err != nil {
		return nil, nil, err
	}
	if inner, err = find(l.space.handle); err != nil {
		return nil, nil, err
	}
	switch {
	case outer != nil && inner != nil && inner.Attrs().ParentIndex == outer.Attrs().Index:
		return outer, inner, nil
	case outer != nil:
		if _, err := removeLink(l.node); err != nil {
			return nil, nil, err
		}
	}
	if inner != nil {
		_ = l.space.handle.LinkDel(inner) // the other end is removed, so the kernel soon removes this one too
	}
	return nil, nil, nil
}

// make creates the pair, down.
func (l *link) make() (outer, inner netlink.Link, err error) {
	err = l.node.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: linkName, HardwareAddr: nodeEnd.mac},
		PeerName:  linkName, PeerHardwareAddr: spaceEnd.mac, PeerNamespace: netlink.NsFd(l.space.file.Fd()),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("creating a veth pair: %w", err)
	}
	if outer, err = l.node.LinkByName(linkName); err != nil {
		return nil, nil, err
	}
	if inner, err = l.space.handle.LinkByName(linkName); err != nil {
		return nil, nil, err
	}
	// The kernel must not generate an address either; without IPv6 it generates none.
	_ = l.node.LinkSetIP6AddrGenMode(outer, nl6AddrGenModeNone)
	_ = l.space.handle.LinkSetIP6AddrGenMode(inner, nl6AddrGenModeNone)
	return outer, inner, nil
}

// nl6AddrGenModeNone is IN6_ADDR_GEN_MODE_NONE (linux/if_link.h).
const nl6AddrGenModeNone = 1

// mtu returns the smallest MTU of the node's links. With it, UDP answers are fragmented here to a size that fits all
// links, so none is lost before the path's MTU is known. TCP passes in large segments at any MTU.
func (l *link) mtu() int {
	const least, usual = 1280, 1500 // of IPv6 (RFC 8200), of Ethernet
	links, _ := l.node.LinkList()
	mtu := 0
	for _, other := range links {
		a := other.Attrs()
		if a.Index != l.index && a.Flags&net.FlagUp != 0 && a.Flags&net.FlagLoopback == 0 && a.MTU > 0 && (mtu == 0 || a.MTU < mtu) {
			mtu = a.MTU
		}
	}
	if mtu == 0 {
		mtu = usual
	}
	return max(mtu, least)
}

// furnish makes packets that come in by the inner end local, and routes packets that the space sends out by it.
func (l *link) furnish(inner netlink.Link, family portal.Family) error {
	h, index := l.space.handle, inner.Attrs().Index
	out := &netlink.Route{Family: kernel.NetlinkFamily(family), LinkIndex: index, Table: outwards}
	there, err := h.RouteListFiltered(kernel.NetlinkFamily(family), out, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, unix.ENOENT) || len(there) > 0 { // ENOENT: the table does not exist yet
		return err
	}
	if err := h.NeighSet(neighbour(inner, nodeEnd, family)); err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	everything := kernel.Everywhere(family)
	here := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everything, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
	// The kernel refuses a local address as gateway, and this route makes all addresses local: so it has to be added
	// last. For IPv6 the kernel considers only the interfaces' addresses.
	if err := h.RouteDel(here); err != nil && !errors.Is(err, unix.ESRCH) && !family.Is6() {
		return err
	}
	out.Dst, out.Gw, out.Flags = everything, nodeEnd.gateway(family).AsSlice(), int(netlink.FLAG_ONLINK)
	if err := h.RouteAdd(out); err != nil {
		return err
	}
	return h.RouteAdd(here)
}

// neighbour returns the neighbor entry for an end, as seen from the other one.
func neighbour(from netlink.Link, to end, family portal.Family) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: from.Attrs().Index, Family: kernel.NetlinkFamily(family), State: netlink.NUD_PERMANENT,
		IP: to.gateway(family).AsSlice(), HardwareAddr: to.mac}
}

// find returns an end of the link, or nil if there is none.
func find(h *netlink.Handle) (netlink.Link, error) {
	l, err := h.LinkByName(linkName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up interface %s: %w", linkName, err)
	}
	return l, nil
}

// errNotOurs is why usher keeps an interface with linkName that another program made.
var errNotOurs = errors.New("not created by usher")

// findOurs returns the node's end of any usher process's link, or nil if there is none.
func findOurs(node *netlink.Handle) (netlink.Link, error) {
	outer, err := find(node)
	if outer != nil && (outer.Type() != "veth" || outer.Attrs().HardwareAddr.String() != nodeEnd.mac.String()) {
		return nil, fmt.Errorf("an interface %s exists already: %w", linkName, errNotOurs)
	}
	return outer, err
}

// leads reports whether another usher process has connected the link for that family too.
func leads(node *netlink.Handle, outer netlink.Link, family portal.Family) (bool, error) {
	all, err := node.NeighList(outer.Attrs().Index, kernel.NetlinkFamily(family))
	return slices.ContainsFunc(all, func(n netlink.Neigh) bool { return n.IP.Equal(spaceEnd.gateway(family).AsSlice()) }), err
}

// removeLink removes the link, and reports whether it existed.
func removeLink(node *netlink.Handle) (removed bool, err error) {
	outer, err := findOurs(node)
	if outer == nil || err != nil {
		return false, err
	}
	if err := node.LinkDel(outer); err != nil && !errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("removing interface %s: %w", linkName, err)
	}
	return true, nil
}
