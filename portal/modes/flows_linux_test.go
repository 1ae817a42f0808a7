package modes

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/nftables"
	. "github.com/usherproxy/usher/test/portaltest"
)

// Conntrack would still redirect a UDP client that keeps its port to the previous listener.
var _ = Describe("a UDP client that keeps its port", func() {
	DescribeTable("is no longer redirected", func(mode portal.Mode, goes func(*Net, portal.Portal)) {
		n := NewNet()
		p := n.Open(mode, portal.Options{})
		n.Publish(p, "dns", DNS4)
		Expect(n.Node.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("dns"))
		goes(n, p)
		// The VIP is now an address of the node, where another server answers.
		n.Node.Sh("ip addr add 10.96.0.10/32 dev lo")
		n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(VIP4, 53), Targets: []portal.Target{DNS4}}, "other")
		Expect(n.Node.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("other"))
	},
		Entry("when an iptables rule is removed", iptables.Mode, withdraw),
		Entry("when an nftables rule is removed", nftables.Mode, withdraw),
		Entry("when mode iptables is removed", iptables.Mode, func(n *Net, p portal.Portal) { n.Remove(p) }),
		Entry("when mode nftables is removed", nftables.Mode, func(n *Net, p portal.Portal) { n.Remove(p) }),
		Entry("when a cleanup removes the rules", nftables.Mode, func(n *Net, _ portal.Portal) {
			n.Node.Do(func() { Expect(Cleanup(Background, nil)).NotTo(BeEmpty()) })
		}),
	)

	DescribeTable("is refused when its Service has no endpoint left", func(mode portal.Mode) {
		n := NewNet()
		p := n.Open(mode, portal.Options{})
		_, rules := n.Publish(p, "dns", DNS4)
		Expect(n.Pod.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("dns"))
		rules[0].LocalPort, rules[0].Action = 0, portal.Reject
		n.Apply(p, rules, nil) // the first server still runs
		Expect(n.Pod.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("refused"))
	},
		Entry("with iptables", iptables.Mode),
		Entry("with nftables", nftables.Mode),
	)

	It("is served when mode address replaces mode nftables", func() {
		n := NewNet()
		n.Publish(choose(n, nftables.Mode.Name, portal.Options{}), "before", DNS4)
		Expect(n.Pod.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("before"))
		n.Publish(choose(n, address.Mode.Name, portal.Options{}), "after", DNS4)
		Expect(n.Pod.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("after"))
	})
})

func withdraw(n *Net, p portal.Portal) {
	GinkgoHelper()
	n.Apply(p, nil, []portal.Target{DNS4})
}
