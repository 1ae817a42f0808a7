package localhost

import (
	"net/netip"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
)

// servers returns the servers reachable on a loopback address by a socket that listens at an address. One that listens
// on all addresses is reachable on loopback, too. But such a UDP socket with an ephemeral port belongs to a client.
func servers(protocol portal.Protocol, at netip.AddrPort, ephemeral portal.PortRange) (all []server) {
	is := config.TCP
	if protocol == portal.UDP {
		is = config.UDP
		if at.Addr().IsUnspecified() && ephemeral.First <= at.Port() && at.Port() <= ephemeral.Last {
			return nil
		}
	}
	for _, addr := range loopback(at.Addr()) {
		all = append(all, server{is, netip.AddrPortFrom(addr, at.Port())})
	}
	return all
}

// loopback returns the loopback addresses at which a socket bound to addr is reachable. A socket on all IPv6
// addresses also accepts IPv4, unless it is IPv6-only, which the file does not show.
func loopback(addr netip.Addr) []netip.Addr {
	v4 := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	switch {
	case addr == netip.IPv6Unspecified():
		return []netip.Addr{netip.IPv6Loopback(), v4}
	case addr.IsUnspecified():
		return []netip.Addr{v4}
	case addr.IsLoopback():
		return []netip.Addr{addr}
	}
	return nil
}
