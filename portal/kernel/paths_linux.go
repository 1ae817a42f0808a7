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

// Path is how what this node sends to an address leaves it. The zero Path is that of an
// address to which there is no route.
type Path struct {
	Local     bool   // it does not: the address is the node's
	Direct    bool   // it goes to the address itself, and not to a router
	Uplink    bool   // it goes where all goes for which there is no better route
	Interface int    // the index of the interface
	Name      string // and its name
	// Neighbours says what becomes of what two that are behind the interface send each
	// other.
	Neighbours Neighbours
}

// Known reports whether all of p holds. Of an interface that is not known yet, only the index does.
func (p Path) Known() bool { return p.Interface == 0 || p.Name != "" }

// Neighbours are two addresses behind one interface.
type Neighbours uint8

// What they send each other,
const (
	Unseen  Neighbours = iota // goes past netfilter, or nobody knows
	Bridged                   // goes over a bridge, and netfilter sees it
	Apart                     // does not come through this node, nor need what they send others
)

// Paths finds paths. It asks the kernel for the route, which takes some twenty microseconds and
// no lock that others hold (since Linux 4.13; before, it takes the rtnl lock), and remembers the
// answers for pathTime. It never asks for an interface: see links. Any goroutine may ask, event loops too.
type Paths struct {
	routes     *netlink.Handle
	interfaces *links
	known      *lru.Cache[netip.Addr, knownPath]
	links      *lru.Cache[linkOf, knownPath] // what is the same for all addresses behind one
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
	maxPaths = 8192 // some 200 bytes each
)

// OpenPaths returns the paths of the network namespace of the calling thread. It keeps two
// sockets open for good.
func OpenPaths() (*Paths, error) { return openPaths(requestLinks) }

func openPaths(request func(*nl.NetlinkSocket) error) (*Paths, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	interfaces, err := watchLinks(request)
	if err != nil {
		return nil, err
	}
	known, err := lru.New[netip.Addr, knownPath](maxPaths)
	if err != nil {
		return nil, err
	}
	links, err := lru.New[linkOf, knownPath](maxPaths)
	return &Paths{routes: routes, interfaces: interfaces, known: known, links: links}, err
}

// Of returns the path to addr, as it is now. It is Known, unless it leaves by an interface that
// has just come.
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

// far are addresses that nobody has (RFC 1112, RFC 6666): what is sent to them goes where
// everything goes for which there is no better route.
var far = [len(portal.Families)]netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("100::1")}

// over returns the path over a link, as far as it is the same for all addresses.
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

// bridgeShown reports whether netfilter sees the packets of a family that a bridge passes
// on: br_netfilter does that, for all bridges or some.
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

// BridgeNetworks returns the networks that bridges of this node have an address in.
func BridgeNetworks(family portal.Family) (networks []netip.Prefix, err error) {
	addrs, err := netlink.AddrList(nil, NetlinkFamily(family))
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
