package redirect

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/usherproxy/usher/test/portaltest"
)

var (
	room4 = netip.MustParsePrefix("198.18.0.0/15")
	room6 = netip.MustParsePrefix("fd75:7368:6572:8000::/49")
)

var _ = Describe("an alias", func() {
	DescribeTable("replaces the prefix of an address with an alias network", func(addr string, room netip.Prefix, alias string) {
		Expect(aliasOf(netip.MustParseAddr(addr), room)).To(Equal(netip.MustParseAddr(alias)))
	},
		Entry(nil, "10.244.1.7", room4, "198.18.1.7"),
		Entry(nil, "10.245.1.7", room4, "198.19.1.7"),
		Entry(nil, "10.244.1.7", netip.MustParsePrefix("0.0.0.0/0"), "10.244.1.7"),
		Entry(nil, "10.244.1.7", netip.MustParsePrefix("198.18.0.1/32"), "198.18.0.1"),
		Entry("that has host bits set", "10.1.2.3", netip.MustParsePrefix("192.0.2.9/24"), "192.0.2.3"),
		Entry(nil, "fd00:10:244:1::7", room6, "fd75:7368:6572:8001::7"),
		Entry(nil, "fd00:10:244:8001::7", room6, "fd75:7368:6572:8001::7"),
	)

	DescribeTable("comes with LastOf, which returns the last address of a network", func(network, last string) {
		Expect(LastOf(netip.MustParsePrefix(network))).To(Equal(netip.MustParseAddr(last)))
	},
		Entry(nil, "10.244.1.0/24", "10.244.1.255"),
		Entry(nil, "198.18.0.0/15", "198.19.255.255"),
		Entry(nil, "0.0.0.0/0", "255.255.255.255"),
		Entry(nil, "192.0.2.1/32", "192.0.2.1"),
		Entry(nil, "fd00::/49", "fd00:0:0:7fff:ffff:ffff:ffff:ffff"),
	)
})

var _ = Describe("the aliases of networks", func() {
	const flannel, second, docker = "10.244.1.0/24", "10.246.1.0/24", "172.16.0.0/16" // their aliases overlap
	all := func(pods, before []netip.Prefix, networks ...string) (of []string) {
		had := aliases(before, nil, room4, nil)
		for _, a := range aliases(Prefixes(networks...), pods, room4, had) {
			Expect(a.As.Bits()).To(Equal(a.Of.Bits()))
			Expect(room4.Contains(a.As.Addr())).To(BeTrue())
			of = append(of, a.Of.String())
		}
		return of
	}

	It("are as large as the networks, and sorted by network", func() {
		Expect(aliases(Prefixes("10.245.0.0/16", flannel), nil, room4, nil)).To(Equal([]Alias{
			{Of: netip.MustParsePrefix(flannel), As: netip.MustParsePrefix("198.18.1.0/24")},
			{Of: netip.MustParsePrefix("10.245.0.0/16"), As: netip.MustParsePrefix("198.19.0.0/16")},
		}))
		Expect(aliases(Prefixes("fd00:10:244:1::/64"), nil, room6, nil)).To(Equal([]Alias{
			{Of: netip.MustParsePrefix("fd00:10:244:1::/64"), As: netip.MustParsePrefix("fd75:7368:6572:8001::/64")}}))
	})

	It("are empty without an alias network, and skip networks larger than that", func() {
		Expect(aliases(Prefixes(flannel), nil, netip.Prefix{}, nil)).To(BeEmpty())
		Expect(all(nil, nil, "10.0.0.0/8", flannel)).To(Equal([]string{flannel}))
	})

	It("belong to the smaller of two colliding networks, or to that of Pods", func() {
		Expect(all(nil, nil, docker, flannel)).To(Equal([]string{flannel}))
		Expect(all(Prefixes("172.16.0.0/12"), nil, docker, flannel)).To(Equal([]string{docker}))
		Expect(all(nil, nil, second, flannel)).To(Equal([]string{flannel}), "the first of two with equal sizes")
	})

	It("stay with their network while it exists, unless Pods need them", func() {
		Expect(all(Prefixes(flannel), Prefixes(docker), docker, flannel)).To(Equal([]string{flannel}), "Pods take precedence")
		Expect(all(nil, Prefixes(second), flannel, second)).To(Equal([]string{second}))
		Expect(all(nil, Prefixes(docker), flannel)).To(Equal([]string{flannel}))
	})
})
