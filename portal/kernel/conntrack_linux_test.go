package kernel

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
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
	client := netip.MustParseAddrPort("10.244.0.2:1000")
	flow := func(to netip.Addr, port uint16, from string, fromPort uint16) []byte {
		tuple := func(one uint16, src, dst netip.AddrPort) []byte {
			return flowRequest(nil, 1, portal.UDP, one, src, dst)[unix.SizeofNlMsghdr+nfgenmsgSize:]
		}
		return append(tuple(nl.CTA_TUPLE_ORIG, client, netip.AddrPortFrom(to, port)),
			tuple(nl.CTA_TUPLE_REPLY, netip.AddrPortFrom(netip.MustParseAddr(from), fromPort), client)...)
	}
	g.Expect(stale.matches(flow(node, 30053, "192.0.0.117", 40001))).To(BeTrue())
	g.Expect(stale.matches(flow(node, 30054, "192.0.0.117", 40001))).To(BeFalse())
	g.Expect(stale.matches(flow(other, 30053, other.String(), 30053))).To(BeFalse())
	g.Expect(stale.matches(flow(other, 30053, "10.244.0.9", 5300))).To(BeFalse())
}
