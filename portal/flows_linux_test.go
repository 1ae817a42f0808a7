package portal

import (
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A UDP client that keeps its port would go on talking to where the rules once led.
var _ = Describe("a UDP client that keeps its port, when rules that led it go", func() {
	DescribeTable("is led there no more", func(mode Mode, goes func(*testNet, Portal)) {
		n := newTestNet()
		p := n.open(mode, Options{})
		n.publish(p, "dns", dns4)
		Expect(n.node.askFrom(dns4, 5353, time.Second)).To(Equal("dns"))
		goes(n, p)
		// It is the node's own address now, where another server answers.
		n.node.sh("ip addr add 10.96.0.10/32 dev lo")
		n.node.serve(Bind{Addr: netip.AddrPortFrom(vip4, 53), Targets: []Target{dns4}}, "other")
		Expect(n.node.askFrom(dns4, 5353, time.Second)).To(Equal("other"))
	},
		Entry("when a rule of iptables goes", iptablesMode, withdraw),
		Entry("when a rule of nftables goes", nftablesMode, withdraw),
		Entry("when mode iptables is removed", iptablesMode, func(n *testNet, p Portal) { n.remove(p) }),
		Entry("when mode nftables is removed", nftablesMode, func(n *testNet, p Portal) { n.remove(p) }),
		Entry("when what is left is cleaned up", nftablesMode, func(n *testNet, _ Portal) {
			n.node.do(func() { Expect(Cleanup(background, nil)).NotTo(BeEmpty()) })
		}),
	)

	It("is served when mode address takes the place of mode nftables", func() {
		n := newTestNet()
		n.publish(choose(n, nftablesMode.Name, Options{}), "before", dns4)
		Expect(n.pod.askFrom(dns4, 5353, time.Second)).To(Equal("before"))
		n.publish(choose(n, addressMode.Name, Options{}), "after", dns4)
		Expect(n.pod.askFrom(dns4, 5353, time.Second)).To(Equal("after"))
	})
})

func withdraw(n *testNet, p Portal) {
	GinkgoHelper()
	n.apply(p, nil, []Target{dns4})
}
