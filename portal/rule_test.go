package portal

import (
	"errors"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a RuleError", func() {
	refused := errors.New("refused")
	It("names the first target and how many there are", func() {
		a, b := target(TCP, "10.0.0.1:80"), target(TCP, "10.0.0.2:80")
		Expect((&RuleError{Refused: map[Target]error{a: refused}}).Error()).To(
			Equal("the portal rule for 10.0.0.1:80/tcp was refused: refused"))
		Expect((&RuleError{Refused: map[Target]error{b: refused, a: refused}}).Error()).To(
			Equal("2 portal rules were refused, the first for 10.0.0.1:80/tcp: refused"))
	})
	DescribeTable("refuses what no portal can carry", func(r Rule, why string) {
		Expect(r.check()).To(MatchError(ContainSubstring(why)))
	},
		Entry("no address", Rule{}, "no address"),
		Entry("no port", redirect(target(TCP, "10.0.0.1:0"), 5), "port 0"),
		Entry("another protocol", redirect(target(50, "10.0.0.1:1"), 5), "protocol 50"),
		Entry("no local port", redirect(target(TCP, "10.0.0.1:1"), 0), "local port"),
		Entry("multicast", redirect(target(TCP, "224.0.0.1:1"), 1), "multicast"),
	)
	It("takes an IPv4 address in an IPv6 one's clothes for what it is", func() {
		wanted := map[Target]Rule{}
		changed, bad := merge(wanted, []Rule{redirect(target(TCP, "[::ffff:10.0.0.1]:80"), 5)}, nil)
		Expect(bad).To(BeEmpty())
		Expect(changed).To(ConsistOf(target(TCP, "10.0.0.1:80")))
		Expect(wanted).To(HaveKey(target(TCP, "10.0.0.1:80")))
	})
})

var _ = Describe("a book of ports", func() {
	It("never promises a port twice while it is in use", func() {
		book := newPortBook(PortRange{First: 100, Last: 102})
		ports := map[uint16]bool{}
		for i := range 3 {
			ports[book.propose(Target{TCP, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80})] = true
		}
		Expect(ports).To(HaveLen(3))
		full := target(TCP, "10.0.0.9:80")
		Expect(book.propose(full)).To(BeZero())
		book.forget(target(TCP, "10.0.0.1:80"))
		Expect(book.propose(full)).NotTo(BeZero())
	})
})
