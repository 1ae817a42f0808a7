package kernel

import (
	"net/netip"

	"github.com/usherproxy/usher/portal"
)

// The landings: local addresses of the node by a route on lo, as the VIPs of
// mode address are. The one of IPv4 is in the block for protocol assignments,
// which nobody routes (RFC 6890: neither source nor destination nor
// forwardable), and where nothing has been assigned near it. It cannot be a
// link-local, loopback or benchmarking address: to the kernel's SCTP
// (sctp_v4_scope) the former are too near for clients with a private address, and
// the latter, before Linux 5.14, is none at all. The one of IPv6 is a unique local
// address (RFC 4193) with "usher" for its global ID.
var (
	landing4 = netip.MustParseAddr("192.0.0.117")
	landing6 = netip.MustParseAddr("fd75:7368:6572::1")
)

// IsLanding reports whether addr is where packets are led. Nobody else is there.
func IsLanding(addr netip.Addr) bool { return addr == landing4 || addr == landing6 }

// LandingOf returns the landing of a family.
func LandingOf(family portal.Family) netip.Addr {
	if family.Is6() {
		return landing6
	}
	return landing4
}

// AnswerMark returns the mark of answers that start on this node: mark with the lowest
// bit that it has not.
func AnswerMark(mark uint32) uint32 { return mark | (^mark & (mark + 1)) }
