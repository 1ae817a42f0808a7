package kernel_test

import (
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("answers to clients' own addresses", func() {
	const mark = 0x1000
	var node *Host
	BeforeEach(func() {
		node = NewHost()
		node.Sh("ip link set lo up")
	})
	routing := func() string {
		return node.Sh("ip rule; ip -6 rule; ip route show table 117117 2>/dev/null || true; ip -6 route show table 117117 2>/dev/null || true")
	}
	lead := func(mark uint32) (made []string) {
		GinkgoHelper()
		node.Do(func() {
			for _, family := range portal.Families {
				these, err := kernel.RouteAnswers(family, mark)
				Expect(err).NotTo(HaveOccurred())
				made = append(made, these...)
			}
		})
		return made
	}
	forget := func(but uint32) (removed []string) {
		GinkgoHelper()
		node.Do(func() {
			var err error
			removed, err = kernel.ForgetAnswers(but)
			Expect(err).NotTo(HaveOccurred())
		})
		return removed
	}

	It("are routed to this node by four rules and a route, which are added once", func() {
		Expect(lead(mark)).To(HaveLen(2 * 5))
		for _, ip := range []string{"ip", "ip -6"} {
			Expect(node.Sh(ip + " rule")).To(MatchRegexp(`(?s)\n115:\s+from all fwmark 0x1001/0x1001 lookup 117117 .*` +
				`\n116:\s+from all fwmark 0x1000/0x1000 iif lo goto 118 .*\n117:\s+from all fwmark 0x1000/0x1000 lookup 117117 .*\n118:\s+from all nop`))
			Expect(node.Sh(ip + " route show table 117117")).To(MatchRegexp(`^local default dev lo proto 117`))
		}
		Expect(lead(mark)).To(BeEmpty())
		node.Sh("ip rule del pref 116; ip -6 route flush table 117117")
		Expect(lead(mark)).To(ConsistOf("routing rule 116", "route of table 117117"))
	})

	It("are not affected by a probe, which leaves the existing rules unchanged", func() {
		probe := func() {
			GinkgoHelper()
			node.Do(func() {
				for _, family := range portal.Families {
					Expect(kernel.ProbeAnswers(family, mark)).To(Succeed())
				}
			})
		}
		before := routing()
		probe()
		Expect(routing()).To(Equal(before))
		lead(mark)
		node.Sh("ip rule del pref 117")
		before = routing()
		probe()
		Expect(routing()).To(Equal(before))
	})

	It("are no longer routed after ForgetAnswers, which keeps the rules of other programs", func() {
		node.Sh("for f in -4 -6; do ip $f rule add pref 115 fwmark 0x1000/0x1000 lookup 99; ip $f rule add pref 118 from all lookup 98; ip $f rule add pref 200 fwmark 0x1000/0x1000 lookup main; done")
		before := routing()
		lead(mark)
		mine := routing()
		lead(0x40)
		Expect(routing()).NotTo(Equal(mine))
		Expect(forget(mark)).To(ConsistOf(
			"routes: 3 IPv4 rules and routes for answers to clients' own addresses", "routes: 3 IPv6 rules and routes for answers to clients' own addresses"))
		Expect(routing()).To(Equal(mine))
		Expect(forget(mark)).To(BeEmpty())
		Expect(forget(0)).To(HaveLen(2))
		Expect(routing()).To(Equal(before))
		Expect(forget(0)).To(BeEmpty())
	})

	It("are compared with the wanted rules and routes", func() {
		compare := func(mark uint32) (all []string) {
			GinkgoHelper()
			node.Do(func() {
				parts, err := kernel.CompareAnswers(portal.IPv4, mark)
				Expect(err).NotTo(HaveOccurred())
				for _, p := range parts {
					all = append(all, fmt.Sprintf("%s %s: %s", p.State, p.Name, p.Text))
				}
			})
			return all
		}
		Expect(compare(0)).To(BeEmpty())
		Expect(compare(mark)).To(HaveEach(HavePrefix("missing ")))
		lead(mark)
		Expect(compare(mark)).To(Equal([]string{
			"ok route of table 117117: local default dev lo",
			"ok routing rule 115: 115: from all fwmark 0x1001/0x1001 lookup 117117",
			"ok routing rule 116: 116: from all fwmark 0x1000/0x1000 iif lo goto 118",
			"ok routing rule 117: 117: from all fwmark 0x1000/0x1000 lookup 117117",
			"ok routing rule 118: 118: from all nop",
		}))
		Expect(compare(0)).To(And(HaveLen(5), HaveEach(HavePrefix("extra "))))
	})

	DescribeTable("that start on this node have a mark with the lowest free bit added", func(mark, answer uint32) {
		Expect(kernel.AnswerMark(mark)).To(Equal(answer))
	},
		Entry(nil, uint32(0x1000), uint32(0x1001)), Entry(nil, uint32(0x1), uint32(0x3)), Entry(nil, uint32(0x1003), uint32(0x1007)),
	)
})

var _ = Describe("Paths", func() {
	var node *Host
	var paths *kernel.Paths
	of := func(addr string) (path kernel.Path) {
		node.Do(func() { path = paths.Of(netip.MustParseAddr(addr), time.Now()) })
		path.Interface = 0
		return path
	}
	BeforeEach(func() {
		node = NewHost()
		node.Connect("base", NewHost())
		node.Sh(`ip link set lo up; ip link add cni0 type bridge; ip addr add 10.1.0.1/24 dev cni0; ip addr add fd01::1/64 dev cni0 nodad; ip link set cni0 up
			ip link set base up; ip addr add 192.0.2.1/24 dev base; ip route add default via 192.0.2.254; ip route add blackhole 10.3.0.0/24`)
		node.Do(func() {
			var err error
			paths, err = kernel.OpenPaths()
			Expect(err).NotTo(HaveOccurred())
		})
	})

	It("return the interface for an address, and whether the address is local", func() {
		Expect(of("10.1.0.1")).To(And(HaveField("Local", true), HaveField("Direct", true)))
		Eventually(func() bool { return of("fd01::1").Local }).WithTimeout(30 * time.Second).Should(BeTrue())
		Expect(of("192.0.2.7")).To(Equal(kernel.Path{Direct: true, Uplink: true, Name: "base"}))
		Expect(of("198.51.100.7")).To(Equal(kernel.Path{Uplink: true, Name: "base"}), "via a router")
		Expect(of("10.3.0.7")).To(BeZero())
		Expect(of("2001:db8::1")).To(BeZero(), "no route")
	})

	It("are returned without delay while the kernel does not list its interfaces", func() {
		locked := make(chan struct{})
		node.Do(func() {
			var err error
			paths, err = kernel.OpenPathsAsking(func(s *nl.NetlinkSocket) error { <-locked; return kernel.RequestLinks(s) })
			Expect(err).NotTo(HaveOccurred())
		})
		node.Do(func() {
			began := time.Now()
			Expect(paths.Of(netip.MustParseAddr("192.0.2.7"), began).Known()).To(BeFalse())
			Expect(time.Since(began)).To(BeNumerically("<", time.Second))
		})
		Expect(of("10.1.0.1").Local).To(BeTrue())

		By("new interfaces, known by their events")
		node.Sh("ip link add cni1 type bridge; ip addr add 10.4.0.1/24 dev cni1; ip link set cni1 up")
		Eventually(func() string { return of("10.4.0.7").Name }).WithTimeout(30 * time.Second).Should(Equal("cni1"))
		node.Sh("ip link set cni1 down; ip link set cni1 name cni2; ip link set cni2 up")
		Eventually(func() string { return of("10.4.0.7").Name }).WithTimeout(20 * time.Second).Should(Equal("cni2"))

		By("other interfaces, once the kernel lists them")
		close(locked)
		Eventually(func() kernel.Path { return of("192.0.2.7") }).WithTimeout(30 * time.Second).
			Should(Equal(kernel.Path{Direct: true, Uplink: true, Name: "base"}))
	})

	It("identify neighbors on an interface whose packets bypass this node", func() {
		if node.Sh("ip link add vlan0 link base type macvlan 2>&1 || true") != "" {
			Skip("the kernel has no macvlan")
		}
		node.Sh("ip addr add 10.2.0.1/24 dev vlan0; ip link set vlan0 up")
		Expect(of("10.2.0.7")).To(Equal(kernel.Path{Direct: true, Name: "vlan0", Neighbours: kernel.Apart}))
	})

	It("distinguish bridge neighbors that netfilter sees from those that it does not", func() {
		if node.Sh("ls /proc/sys/net/bridge 2>/dev/null || true") == "" {
			Skip("the module br_netfilter is not loaded")
		}
		node.Sh("echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; echo 0 >/proc/sys/net/bridge/bridge-nf-call-ip6tables")
		Expect(of("10.1.0.7")).To(Equal(kernel.Path{Direct: true, Name: "cni0", Neighbours: kernel.Bridged}))
		Expect(of("fd01::7")).To(Equal(kernel.Path{Direct: true, Name: "cni0", Neighbours: kernel.Unseen}))
	})

	It("are cached for a limited time", func() {
		Expect(of("10.3.0.7")).To(BeZero())
		node.Sh("ip route del blackhole 10.3.0.0/24")
		Eventually(func() kernel.Path { return of("10.3.0.7") }).WithTimeout(20 * time.Second).Should(Equal(kernel.Path{Uplink: true, Name: "base"}))
	})

	It("come with BridgeNetworks, which returns the networks of bridge addresses", func() {
		node.Sh("ip addr add 10.9.0.1/32 dev cni0; ip addr add 10.1.0.2/24 dev cni0")
		node.Do(func() {
			Expect(kernel.BridgeNetworks(portal.IPv4)).To(Equal(Prefixes("10.1.0.0/24")))
			Expect(kernel.BridgeNetworks(portal.IPv6)).To(Equal(Prefixes("fd01::/64")))
		})
	})
})
