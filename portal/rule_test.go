package portal_test

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("a rule", func() {
	DescribeTable("is refused with", func(r portal.Rule, why string) {
		Expect(r.Check()).To(MatchError(ContainSubstring(why)))
	},
		Entry("no address", portal.Rule{}, "no address"),
		Entry("no port", Redirect(Target(portal.TCP, "10.0.0.1:0"), 5), "port 0"),
		Entry("an unsupported protocol", Redirect(Target(50, "10.0.0.1:1"), 5), "protocol 50"),
		Entry("no local port", Redirect(Target(portal.TCP, "10.0.0.1:1"), 0), "local port"),
		Entry("a multicast address", Redirect(Target(portal.TCP, "224.0.0.1:1"), 1), "multicast"),
	)
	It("with an IPv4-mapped IPv6 address becomes an IPv4 rule", func() {
		wanted := map[portal.Target]portal.Rule{}
		changed, bad := portal.Merge(wanted, []portal.Rule{Redirect(Target(portal.TCP, "[::ffff:10.0.0.1]:80"), 5)}, nil)
		Expect(bad).To(BeEmpty())
		Expect(changed).To(ConsistOf(Target(portal.TCP, "10.0.0.1:80")))
		Expect(wanted).To(HaveKey(Target(portal.TCP, "10.0.0.1:80")))
	})
})

var _ = Describe("a port book", func() {
	It("never proposes a port that is in use", func() {
		book := portal.NewPortAllocator(portal.PortRange{First: 100, Last: 102})
		ports := map[uint16]bool{}
		for i := range 3 {
			ports[book.Propose(To(portal.TCP, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80))] = true
		}
		Expect(ports).To(HaveLen(3))
		full := Target(portal.TCP, "10.0.0.9:80")
		Expect(book.Propose(full)).To(BeZero())
		book.Forget(Target(portal.TCP, "10.0.0.1:80"))
		Expect(book.Propose(full)).NotTo(BeZero())
	})
})
