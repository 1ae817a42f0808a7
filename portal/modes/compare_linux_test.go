package modes

import (
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/nftables"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("a portal that is compared with the kernel", func() {
	states := func(n *Net, p portal.Portal) (states []portal.State) {
		GinkgoHelper()
		n.Node.Do(func() {
			all, err := p.Compare(Background)
			Expect(err).NotTo(HaveOccurred())
			for _, c := range all {
				states = append(states, c.State)
			}
		})
		return states
	}

	DescribeTable("reports changes by other programs, and repairs nothing", func(mode portal.Mode, tool, remove string, expected ...portal.State) {
		if _, err := exec.LookPath(tool); err != nil {
			Skip("needs " + tool)
		}
		n := NewNet()
		p := n.Open(mode, portal.Options{})
		rules := []portal.Rule{Redirect(Web4, 4000), Reject(DNS4), Redirect(Web6, 4000)}
		n.Apply(p, rules, nil)
		Expect(states(n, p)).To(HaveExactElements(portal.StateOK, portal.StateOK, portal.StateOK))
		n.Node.Sh(remove)
		Expect(states(n, p)).To(HaveExactElements(expected))
		n.Check(p)
		Expect(states(n, p)).To(HaveExactElements(portal.StateOK, portal.StateOK, portal.StateOK))
	},
		Entry("in mode nftables", nftables.Mode, "nft", "nft flush map ip usher portals; nft add element ip usher portals { 10.96.0.99 . tcp . 80 : 9 }",
			portal.StateMissing, portal.StateMissing, portal.StateExtra, portal.StateOK),
		Entry("in mode iptables", iptables.Mode, "iptables", "iptables -t nat -F; ip6tables -t nat -F USHER-PORTALS",
			portal.StateMissing, portal.StateMissing, portal.StateMissing),
		Entry("in mode address", address.Mode, "ip", "ip route del local 10.96.0.10 table local; ip route add local 10.96.0.99 dev lo proto 117 table local",
			portal.StateMissing, portal.StateMissing, portal.StateExtra, portal.StateOK),
	)

	It("in mode address accepts a VIP that is an address of the node", func() {
		n := NewNet()
		n.Node.Sh("ip addr add 10.96.0.10/32 dev lo")
		p := n.Open(address.Mode, portal.Options{})
		n.Apply(p, []portal.Rule{Redirect(Web4, 80)}, nil)
		Expect(states(n, p)).To(HaveExactElements(portal.StateOK))
	})
})
