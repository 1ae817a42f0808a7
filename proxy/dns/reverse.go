package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// parseReverse returns the address that a name such as 10.0.96.10.in-addr.arpa. is
// about (RFC 1035, 3.5; for ip6.arpa., RFC 3596, 2.5).
func parseReverse(name string) (netip.Addr, bool) {
	if s, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		return parseOctets(strings.Split(s, "."))
	}
	if s, ok := strings.CutSuffix(name, ".ip6.arpa."); ok {
		return parseNibbles(strings.Split(s, "."))
	}
	return netip.Addr{}, false
}

// parseOctets reads an IPv4 address, the last octet first.
func parseOctets(labels []string) (netip.Addr, bool) {
	if len(labels) != 4 {
		return netip.Addr{}, false
	}
	slices.Reverse(labels)
	a, err := netip.ParseAddr(strings.Join(labels, "."))
	return a, err == nil && a.Is4()
}

// parseNibbles reads an IPv6 address, the last four bits first.
func parseNibbles(labels []string) (netip.Addr, bool) {
	if len(labels) != 32 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i, l := range labels {
		n, err := strconv.ParseUint(l, 16, 4)
		if err != nil || len(l) != 1 {
			return netip.Addr{}, false
		}
		b[15-i/2] |= byte(n) << (4 * (i % 2))
	}
	return netip.AddrFrom16(b), true
}
