package modes

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal/kernel"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("a host firewall", func() {
	It("is found if it drops redirected packets that it does not name", func() {
		n := NewNet()
		found := func(iptables bool) (drops []string) {
			n.Node.Do(func() {
				var err error
				drops, err = kernel.InputDrops(iptables)
				Expect(err).NotTo(HaveOccurred())
			})
			return drops
		}
		Expect(found(false)).To(BeEmpty())
		n.Node.Sh("iptables-nft -P INPUT DROP; ip6tables-nft -A INPUT -p tcp --dport 22 -j ACCEPT; ip6tables-nft -A INPUT -j DROP")
		Expect(found(false)).To(ConsistOf("chain INPUT of table ip filter", "chain INPUT of table ip6 filter"))
		Expect(found(true)).To(BeEmpty(), "usher's own rules come first there")
		n.Node.Sh("iptables-nft -A INPUT -d 192.0.0.117 -j ACCEPT; ip6tables-nft -I INPUT -d fd75:7368:6572::1 -j ACCEPT")
		Expect(found(false)).To(BeEmpty())
	})
})
