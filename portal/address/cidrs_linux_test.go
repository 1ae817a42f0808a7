package address

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("portal address, with service CIDRs", func() {
	var (
		n       *Net
		unused4 = netip.MustParseAddr("10.96.7.7")
		unused6 = netip.MustParseAddr("fd96::77")
		unused  = []portal.Target{To(portal.TCP, unused4, 80), To(portal.UDP, unused4, 53), To(portal.TCP, unused6, 80), To(portal.UDP, unused6, 53)}
	)
	BeforeEach(func() {
		n = NewNet()
		n.AddOutside()
		n.Node.Sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip route replace default via 10.2.0.2; ip -6 route del default; ip -6 route add default via fd02::2")
	})
	open := func() portal.Portal {
		p := n.Open(Mode, portal.Options{})
		p.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16", "fd96::/112") })
		return p
	}
	routes := func() string {
		return n.Node.Sh("ip route show table main proto 117; ip -6 route show table main proto 117")
	}

	It("rejects packets to their unused addresses at once, and to no others", func() {
		rejected := Or(HaveSuffix("no route to host"), HaveSuffix("permission denied"))
		before := n.Node.State()
		p := open()
		Expect(n.Node.State()).To(Equal(before), "nothing is served yet")
		_, rules := n.Publish(p, "web", Web4, Web6)
		rejects := func() {
			GinkgoHelper()
			for _, from := range []*Host{n.Node, n.Pod} {
				for _, t := range unused {
					// The kernel limits the rate of ICMP errors per client.
					Eventually(func() string { return from.AskFrom(t, 0, 2*time.Second) }).WithTimeout(20*time.Second).Should(rejected, t.String())
				}
				Expect(from.Ask(Web4)).To(HavePrefix("web"))
				Expect(from.Ask(Web6)).To(HavePrefix("web"))
				for _, outside := range []string{"10.95.255.255", "10.97.0.1", "fd96::1:0"} {
					Expect(from.AskFrom(To(portal.TCP, netip.MustParseAddr(outside), 80), 0, Soon)).To(Equal("silence"), outside)
				}
			}
		}
		rejects()
		Expect(n.Check(p)).To(BeZero())

		By("routes of another program for part of a CIDR and for a whole CIDR")
		n.Node.Sh("ip route add 10.96.7.0/24 via 10.2.0.2; ip route add 10.96.0.0/16 via 10.2.0.2; ip -6 route add fd96::/112 via fd02::2")
		for _, t := range unused {
			Expect(n.Pod.AskFrom(t, 0, Soon)).To(Equal("silence"), t.String())
		}
		n.Node.Sh("ip route del 10.96.7.0/24; ip route del 10.96.0.0/16 via 10.2.0.2; ip -6 route del fd96::/112 via fd02::2")
		rejects()

		By("another program that removes the routes")
		ctx, cancel := context.WithCancel(Background)
		defer cancel()
		var events <-chan struct{}
		n.Node.Do(func() {
			var err error
			events, err = p.(portal.Watcher).Watch(ctx)
			Expect(err).NotTo(HaveOccurred())
		})
		Expect(n.Check(p)).To(BeZero())
		n.Node.Sh("ip route flush table main proto 117; ip -6 route flush table main proto 117")
		Eventually(events).WithTimeout(30 * time.Second).Should(Receive())
		Expect(n.Check(p)).To(Equal(2))
		rejects()

		By("another process that takes over")
		installed := routes()
		p = open()
		n.Apply(p, rules, nil)
		Expect(routes()).To(Equal(installed))
		rejects()
		Expect(n.Check(p)).To(BeZero())

		By("removal of one CIDR, and then of all Services")
		p.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16") })
		n.Apply(p, nil, nil)
		Expect(n.Pod.AskFrom(unused[2], 0, Soon)).To(Equal("silence"))
		Expect(n.Node.AskFrom(unused[0], 0, ReplyTimeout)).To(rejected)
		n.Apply(p, nil, []portal.Target{Web4, Web6})
		Expect(routes()).To(BeEmpty(), "nothing is served")

		By("removal of the portal")
		n.Apply(p, rules, nil)
		Expect(routes()).NotTo(BeEmpty())
		n.Remove(p)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("does not reject packets from the node that another proxy redirects, if OtherProxies is set", func() {
		p := n.Open(Mode, portal.Options{OtherProxies: true})
		p.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16", "fd96::/112") })
		n.Publish(p, "web", Web4, Web6)
		n.Node.Sh("ip addr add 10.3.0.99/32 dev lo; nft 'add table ip other; add chain ip other out { type nat hook output priority -100; }; add rule ip other out ip daddr 10.96.0.88 dnat to 10.3.0.99'")
		own := To(portal.TCP, netip.MustParseAddr("10.3.0.99"), 4711)
		n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(own.Addr, own.Port), Targets: []portal.Target{own}}, "other")
		Expect(n.Node.Ask(At(own, netip.MustParseAddr("10.96.0.88")))).To(HavePrefix("other"))
	})
})
