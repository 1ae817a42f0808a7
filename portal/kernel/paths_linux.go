package kernel

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// Path describes how packets from this node to an address leave it. The zero Path is for an address without a route.
type Path struct {
	Local     bool   // the address is the node's: they do not leave
	Direct    bool   // they go to the address itself, and not to a router
	Uplink    bool   // they leave by the same interface as packets without a more specific route
	Interface int    // the index of the interface by which they leave
	Name      string // the interface's name
	// Neighbours describes the traffic between two addresses behind the interface.
	Neighbours Neighbours
}

// Known reports whether all of p is valid. For an interface that is not known yet, only Direct and Interface are.
func (p Path) Known() bool { return p.Interface == 0 || p.Name != "" }

// Neighbours is the path of packets between two addresses behind one interface.
type Neighbours uint8

// The paths between neighbors.
const (
	Unseen  Neighbours = iota // not seen by netfilter, or unknown
	Bridged                   // over a bridge, and seen by netfilter
	Apart                     // not through this node's network stack, like their traffic to others
)

// Paths finds paths. It queries the kernel for the route, and caches the answer for pathTime. A query takes some 20 µs
// and, since Linux 4.14, not the rtnl lock, which other programs can hold for seconds. Paths never queries an
// interface: see links. It is safe for concurrent use, by event loops too.
type Paths struct {
	routes     *netlink.Handle
	interfaces *links
	known      *lru.Cache[netip.Addr, knownPath]
	links      *lru.Cache[linkOf, knownPath] // the common part for all addresses behind an interface
}

type knownPath struct {
	Path
	until time.Time
}

type linkOf struct {
	index  int
	family portal.Family
}

const (
	pathTime = 2 * time.Second
	maxPaths = 8192 // about 200 bytes each
)

// OpenPaths returns the paths of the calling thread's network namespace. It keeps two sockets open permanently.
func OpenPaths() (*Paths, error) { return openPaths(requestLinks) }

func openPaths(request func(*nl.NetlinkSocket) error) (*Paths, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	interfaces, err := watchLinks(request)
	if err != nil {
		routes.Close()
		return nil, err
	}
	known, _ := lru.New[netip.Addr, knownPath](maxPaths) // fails only for a size below 1
	links, _ := lru.New[linkOf, knownPath](maxPaths)
	return &Paths{routes: routes, interfaces: interfaces, known: known, links: links}, nil
}

// Of returns the path to addr, as it was at most twice pathTime ago. It is Known, unless it uses an interface that was
// just added.
func (p *Paths) Of(addr netip.Addr, now time.Time) Path {
	if k, ok := p.known.Get(addr); ok && now.Before(k.until) {
		return k.Path
	}
	path := p.ask(addr, now)
	if path.Known() {
		p.known.Add(addr, knownPath{path, now.Add(pathTime)})
	}
	return path
}

func (p *Paths) ask(addr netip.Addr, now time.Time) (path Path) {
	found, err := p.routes.RouteGet(addr.AsSlice())
	if err != nil || len(found) == 0 {
		return Path{}
	}
	switch route := found[0]; route.Type {
	case unix.RTN_LOCAL:
		return Path{Local: true, Direct: true}
	case unix.RTN_UNICAST:
		path = Path{Direct: route.Gw == nil && route.Via == nil && len(route.MultiPath) == 0, Interface: route.LinkIndex}
	default:
		return Path{}
	}
	at := linkOf{path.Interface, portal.FamilyOf(addr)}
	link, ok := p.links.Get(at)
	if !ok || !now.Before(link.until) {
		l, ok := p.interfaces.byIndex(at.index)
		if !ok {
			return path
		}
		link = knownPath{p.over(l, at), now.Add(pathTime)}
		p.links.Add(at, link)
	}
	path.Name, path.Neighbours, path.Uplink = link.Name, link.Neighbours, link.Uplink
	return path
}

// far are addresses that no host has (RFC 1112, RFC 6666): packets for them take the route for packets without a more
// specific one.
var far = [len(portal.Families)]netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("100::1")}

// over returns the part of the path over a link that is common to all addresses.
func (p *Paths) over(l link, at linkOf) (path Path) {
	path.Name = l.name
	found, err := p.routes.RouteGet(far[at.family].AsSlice())
	path.Uplink = err == nil && len(found) > 0 && found[0].LinkIndex == at.index
	switch l.kind {
	case "bridge":
		if bridgeShown(path.Name, at.family) {
			path.Neighbours = Bridged
		}
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
		path.Neighbours = Apart
	}
	return path
}

// bridgeShown reports whether netfilter sees the packets of a family that a bridge forwards: br_netfilter passes them
// to it, for all bridges or for this one.
func bridgeShown(bridge string, family portal.Family) bool {
	all, one := "bridge-nf-call-iptables", "nf_call_iptables"
	if family.Is6() {
		all, one = "bridge-nf-call-ip6tables", "nf_call_ip6tables"
	}
	for _, file := range []string{"/proc/sys/net/bridge/" + all, "/sys/class/net/" + bridge + "/bridge/" + one} {
		if text, err := os.ReadFile(file); err == nil && bytes.Equal(bytes.TrimSpace(text), []byte("1")) {
			return true
		}
	}
	return false
}

// BridgeNetworks returns the networks in which bridges of this node have an address.
func BridgeNetworks(family portal.Family) (networks []netip.Prefix, err error) {
	addrs, err := netlink.AddrList(nil, netlinkFamily(family))
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		network := prefixOf(a.IPNet)
		if network.Addr().IsLinkLocalUnicast() || network.IsSingleIP() {
			continue
		}
		if link, err := netlink.LinkByIndex(a.LinkIndex); err == nil && link.Type() == "bridge" {
			networks = append(networks, network)
		}
	}
	return portal.PlainPrefixes(networks), nil
}

// Behind returns a function that reports whether the route from this node to an address uses one of the interfaces. It
// queries the kernel each time, so it follows route changes at once. A call takes some ten microseconds with any number
// of routes (since Linux 4.14 without the lock for changes to interfaces and routes). For an address without a route,
// it returns false.
//
// The function acts on the network namespace of the calling thread, and keeps two sockets open permanently.
func Behind(i portal.Interfaces) (func(netip.Addr) bool, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	names, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		routes.Close()
		return nil, fmt.Errorf("listing interface names: %w", err)
	}
	return func(addr netip.Addr) bool {
		if zone := addr.Zone(); zone != "" { // a route to a link-local address may use any interface
			return i.Has(zone)
		}
		found, err := routes.RouteGet(addr.Unmap().AsSlice())
		if err != nil || len(found) == 0 || found[0].Type != unix.RTN_UNICAST {
			return false
		}
		request, err := unix.NewIfreq("")
		if err != nil {
			return false
		}
		request.SetUint32(uint32(found[0].LinkIndex)) // netdevice(7), SIOCGIFNAME
		return unix.IoctlIfreq(names, unix.SIOCGIFNAME, request) == nil && i.Has(request.Name())
	}, nil
}
