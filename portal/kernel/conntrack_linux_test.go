package kernel

import (
	"net"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// TestNodePortFlowsMatchOnlyNodeAddresses expects that rejecting a node port without endpoints deletes no flows to
// other hosts: its target has no address.
func TestNodePortFlowsMatchOnlyNodeAddresses(t *testing.T) {
	g := NewWithT(t)
	node, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")
	stale := staleFlows{
		want:   map[portal.Target]int{{Protocol: portal.UDP, Addr: portal.IPv4.Any(), Port: 30053}: 0},
		family: portal.IPv4, nodePorts: true, local: []netip.Prefix{netip.PrefixFrom(node, 32)},
	}
	flow := func(to netip.Addr, port uint16, from string, fromPort uint16) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: to.AsSlice(), DstPort: port},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(from).To4(), SrcPort: fromPort},
		}
	}
	g.Expect(stale.MatchConntrackFlow(flow(node, 30053, "192.0.0.117", 40001))).To(BeTrue())
	g.Expect(stale.MatchConntrackFlow(flow(node, 30054, "192.0.0.117", 40001))).To(BeFalse())
	g.Expect(stale.MatchConntrackFlow(flow(other, 30053, other.String(), 30053))).To(BeFalse())
	g.Expect(stale.MatchConntrackFlow(flow(other, 30053, "10.244.0.9", 5300))).To(BeFalse())
}
