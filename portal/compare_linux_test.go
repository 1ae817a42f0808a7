package portal

import (
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a portal that is compared with the kernel", func() {
	states := func(n *testNet, p Portal) (states []State) {
		GinkgoHelper()
		n.node.do(func() {
			all, err := p.Compare(background)
			Expect(err).NotTo(HaveOccurred())
			for _, c := range all {
				states = append(states, c.State)
			}
		})
		return states
	}

	DescribeTable("tells what others did, and repairs nothing", func(mode Mode, tool, remove string, expected ...State) {
		if _, err := exec.LookPath(tool); err != nil {
			Skip("needs " + tool)
		}
		n := newTestNet()
		p := n.open(mode, Options{})
		rules := []Rule{redirect(web4, 4000), reject(dns4), redirect(web6, 4000)}
		n.apply(p, rules, nil)
		Expect(states(n, p)).To(HaveExactElements(StateOK, StateOK, StateOK))
		n.node.sh(remove)
		Expect(states(n, p)).To(HaveExactElements(expected))
		n.check(p)
		Expect(states(n, p)).To(HaveExactElements(StateOK, StateOK, StateOK))
	},
		Entry("in mode nftables", nftablesMode, "nft", "nft flush map ip usher portals; nft add element ip usher portals { 10.96.0.99 . tcp . 80 : 9 }",
			StateMissing, StateMissing, StateExtra, StateOK),
		Entry("in mode iptables", iptablesMode, "iptables", "iptables -t nat -F; ip6tables -t nat -F USHER-PORTALS",
			StateMissing, StateMissing, StateMissing),
		Entry("in mode address", addressMode, "ip", "ip route del local 10.96.0.10 table local; ip route add local 10.96.0.99 dev lo proto 117 table local",
			StateMissing, StateMissing, StateExtra, StateOK),
	)

	It("in mode address is content with a VIP that is the node's own address", func() {
		n := newTestNet()
		n.node.sh("ip addr add 10.96.0.10/32 dev lo")
		p := n.open(addressMode, Options{})
		n.apply(p, []Rule{redirect(web4, 80)}, nil)
		Expect(states(n, p)).To(HaveExactElements(StateOK))
	})
})
