package translate

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// ParseAddr parses an address as Kubernetes does: it reads numbers with leading zeros as decimal, and converts an
// IPv4-mapped IPv6 address to IPv4. Objects stored by old API servers may contain both.
func ParseAddr(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" { // usually; it is five times as fast
		return a.Unmap(), true
	}
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return a.Unmap(), ok
}

// parsePrefix parses a network in the same way: an IPv4-mapped IPv6 network is the IPv4 one.
func parsePrefix(s string) (netip.Prefix, bool) {
	_, n, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if a.Is4In6() {
		a, bits = a.Unmap(), bits-96
	}
	network := netip.PrefixFrom(a, bits)
	return network, network.IsValid()
}

// forbidden are the addresses that no endpoint may have.
type forbidden struct {
	loopback bool // forbid loopback addresses too
	networks []netip.Prefix
	// Cluster IPs: the Service's own, and all. usher would receive its own connection to one.
	own []netip.Addr
	all ClusterIPs
}

// address returns why a is forbidden as an endpoint's address, or nil. Unless f.loopback is set, loopback addresses are
// allowed, except those in f.networks.
func (f forbidden) address(path *field.Path, a netip.Addr) *field.Error {
	for _, network := range f.networks {
		if network.Contains(a) {
			return field.Invalid(path, a.String(), "may not be in "+network.String()+": see --forbidden-endpoint-cidrs")
		}
	}
	switch {
	case a.IsLoopback() && !f.loopback:
		return nil
	case slices.Contains(f.own, a):
		return field.Invalid(path, a.String(), "may not be an address of the Service itself")
	case f.all[a] > 0:
		return field.Invalid(path, a.String(), "may not be an address of a Service")
	}
	return Special(path, a)
}

// Special returns why a cannot be the address of one other host, or nil. In addition to the API server's rules, it
// refuses all multicast addresses and the broadcast address.
func Special(path *field.Path, a netip.Addr) *field.Error {
	detail := SpecialAddress(a)
	switch {
	case detail != "":
	case a.IsMulticast():
		detail = "may not be in the multicast range (224.0.0.0/4, ff00::/8)"
	case a == broadcast:
		detail = "may not be the broadcast address"
	default:
		return nil
	}
	return field.Invalid(path, a.String(), detail)
}

// SpecialAddress returns the API server's objection to a as the address of an endpoint or an external IP, or "".
func SpecialAddress(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "may not be unspecified (" + a.String() + ")"
	case a.IsLoopback():
		return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsLinkLocalMulticast():
		return "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	}
	return ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
