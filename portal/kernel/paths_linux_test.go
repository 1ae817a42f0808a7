package kernel_test

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("Interfaces", func() {
	It("have behind them the addresses that are currently routed over one of them", func() {
		node := NewHost()
		add := func(name string) {
			node.Connect(name, NewHost())
			node.Sh("ip link set " + name + " up")
		}
		add("cni0")
		add("cali1")
		add("eth0")
		node.Sh(`ip addr add 10.1.0.1/24 dev cni0; ip addr add fd01::1/64 dev cni0 nodad; ip route add blackhole 10.1.0.8
			ip route add 10.1.0.7 dev cali1; ip -6 route add fd01::7 dev cali1; ip route add default dev eth0; ip -6 route add default dev eth0`)
		whoIsBehind := func(interfaces portal.Interfaces) (all []string) {
			node.Do(func() {
				is, err := kernel.Behind(interfaces)
				Expect(err).NotTo(HaveOccurred())
				for _, a := range []string{"10.1.0.2", "fd01::2", "10.1.0.7", "fd01::7", "10.1.0.8", "10.1.0.1", "10.1.0.255", "127.0.0.1", "192.0.2.1", "2001:db8::1", "fe80::2%cali1", "fe80::2%eth0"} {
					if is(netip.MustParseAddr(a)) {
						all = append(all, a)
					}
				}
			})
			return all
		}
		Expect(whoIsBehind("cni0")).To(Equal([]string{"10.1.0.2", "fd01::2"}))
		Expect(whoIsBehind("cali+")).To(Equal([]string{"10.1.0.7", "fd01::7", "fe80::2%cali1"}))
		Expect(whoIsBehind("veth+")).To(BeEmpty())
		node.Do(func() {
			is, err := kernel.Behind("cali+")
			Expect(err).NotTo(HaveOccurred())
			Expect(portal.Interfaces("cali+").Exist()).To(BeTrue())
			node.Sh("ip link del cali1")
			Expect(is(netip.MustParseAddr("10.1.0.7"))).To(BeFalse(), "a removed Pod")
			Expect(portal.Interfaces("cali+").Exist()).To(BeFalse())
			add("cali2")
			node.Sh("ip route add 10.1.0.7 dev cali2")
			Expect(is(netip.MustParseAddr("10.1.0.7"))).To(BeTrue(), "a Pod that appears later")
		})
	})
})
