package kernel

import (
	"net"
	"net/netip"
	"slices"

	"github.com/usherproxy/usher/portal"
)

// The redirect addresses are local to the node by a route on lo, like the VIPs of mode address. The IPv4 one is in an
// unassigned part of the block for protocol assignments, which is not routed (RFC 6890: neither source nor destination
// nor forwardable). The kernel's SCTP (sctp_v4_scope) rules out other special blocks. For clients with a private
// address, link-local and loopback addresses have too narrow a scope. Benchmarking addresses are unusable before Linux
// 5.14. The IPv6 one is a unique local address (RFC 4193) with "usher" for its global ID.
var (
	redirectAddr4 = netip.MustParseAddr("192.0.0.117")
	redirectAddr6 = netip.MustParseAddr("fd75:7368:6572::1")
)

// IsRedirectAddr reports whether addr is a redirect address. No other host has these addresses.
func IsRedirectAddr(addr netip.Addr) bool { return addr == redirectAddr4 || addr == redirectAddr6 }

// RedirectAddr returns the redirect address of a family.
func RedirectAddr(family portal.Family) netip.Addr {
	if family.Is6() {
		return redirectAddr6
	}
	return redirectAddr4
}

// AnswerMark returns the mark of answers that start on this node: mark plus its lowest unset bit.
func AnswerMark(mark uint32) uint32 { return mark | (^mark & (mark + 1)) }

// LocalAddrs returns the addresses of this machine's interfaces.
func LocalAddrs() (addrs []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs, err
}

// ContainsAddr reports whether an address is in one of the prefixes.
func ContainsAddr(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// ClientFlow identifies the packets that usher sends to an endpoint from a client's address and any port.
type ClientFlow struct {
	Protocol portal.Protocol
	Client   netip.Addr
	Endpoint netip.AddrPort
}

// SourceTo returns the source address of packets that a local process sends to the address to. Connecting a UDP socket
// makes the kernel look it up, and sends nothing.
func SourceTo(to netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
