package address

import (
	"net"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

const forwarding = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; "

var _ = Describe("portal address, in a dedicated network namespace", func() {
	var (
		n       *Net
		outside *Host
	)
	BeforeEach(func() {
		n = NewNet()
		n.Node.Sh(forwarding + "sysctl -qw net.ipv4.conf.all.rp_filter=1")
		outside = n.AddOutside()
	})
	auto := portal.Options{AddressNamespace: "auto"}
	ours := func() string {
		return n.Node.Sh("ip route show table local proto 117; ip -6 route show table local proto 117")
	}
	everybody := func() []*Host { return []*Host{n.Node, n.Pod, outside} }

	It("serves the node, Pods and other hosts, and keeps the node's listeners off VIPs", func() {
		for _, t := range []portal.Target{Web4, Web6, DNS4, DNS6} {
			Expect(n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(portal.FamilyOf(t.Addr).Any(), t.Port), Targets: []portal.Target{t}}, "the node's")).To(Equal(t.Port))
		}
		addresses := n.Node.Sh("ip -o addr show scope global")
		p := n.Open(Mode, auto)
		Expect(p.Traits().InNamespace).To(BeTrue())
		n.Publish(p, "web", Web4, Web6, WebNode4)
		n.Publish(p, "dns", DNS4, DNS6)
		for _, from := range everybody() {
			Expect(from.Ask(Web4)).To(HavePrefix("web"))
			Expect(from.Ask(Web6)).To(HavePrefix("web"))
			Expect(from.Ask(DNS4)).To(Equal("dns"))
			Expect(from.Ask(DNS6)).To(Equal("dns"))
			Expect(from.Ask(At(Web4, NodeIP4))).To(HavePrefix("the node's"))
		}
		Expect(n.Pod.Ask(At(WebNode4, NodeIP4))).To(HavePrefix("web"))
		Expect(n.Node.Sh("ip -o addr show scope global")).To(Equal(addresses))
		Expect(n.Node.Sh("ip addr show usher0")).NotTo(ContainSubstring("inet"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("refuses connections to ports that are not served", func() {
		p := n.Open(Mode, auto)
		n.Apply(p, []portal.Rule{Reject(Web4), Reject(DNS4), Reject(Web6), Reject(DNS6), Drop(To(portal.TCP, VIP4, 81))}, nil)
		for _, from := range everybody() {
			for _, t := range []portal.Target{Web4, DNS4, Web6, DNS6, To(portal.TCP, VIP4, 81), To(portal.UDP, VIP6, 99)} {
				Expect(from.Ask(t)).To(Equal("refused"), "%s", t)
			}
		}
	})

	It("preserves client addresses although the node masquerades packets from Pods", func() {
		p := n.Open(Mode, auto)
		seen := func(t portal.Target) string {
			b := p.Listen("default/web", []portal.Target{t})[0]
			fd := make(chan net.Listener, 1)
			n.Node.Do(func() { defer Enter(b.Namespace)(); fd <- listenOn(t) })
			l := <-fd
			defer l.Close()
			n.Apply(p, []portal.Rule{Redirect(t, t.Port)}, nil)
			c := connect(n.Pod, l, t)
			defer c.end()
			Expect(c.client.LocalAddr().String()).To(Equal(c.server.RemoteAddr().String()))
			return netip.MustParseAddrPort(c.server.RemoteAddr().String()).Addr().String()
		}
		Expect(seen(Web4)).To(Equal("10.1.0.2"))
		Expect(n.Node.Sh("nft list tables")).To(BeEmpty(), "no additional connections are tracked")
		n.Node.Sh(`nft 'add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }; add rule ip nat POSTROUTING ip saddr 10.1.0.0/24 ip daddr != 10.1.0.0/24 masquerade'
			nft 'add table inet nat; add chain inet nat POSTROUTING { type nat hook postrouting priority 100; }; add rule inet nat POSTROUTING ip6 saddr fd01::/64 masquerade'`)
		Expect(n.Check(p)).To(Equal(2))
		Expect(seen(To(portal.TCP, VIP4, 81))).To(Equal("10.1.0.2"))
		Expect(seen(Web6)).To(Equal("fd01::2"))
		Expect(n.Check(p)).To(BeZero())
		n.Node.Sh("nft delete table ip usher-address")
		Expect(n.Check(p)).To(Equal(1))

		By("the next process")
		p = n.Open(Mode, auto)
		Expect(p.Traits().InNamespace).To(BeTrue())
		Expect(seen(To(portal.TCP, VIP4, 82))).To(Equal("10.1.0.2"))
		n.Remove(p)
		Expect(n.Node.Sh("nft list tables")).NotTo(ContainSubstring("usher"))
	})

	It("restores routes and interfaces that other programs remove or change", func() {
		p := n.Open(Mode, auto)
		n.Publish(p, "web", Web4, Web6)
		for what, repairs := range map[string]int{
			"ip route flush table local proto 117; ip -6 route flush table local proto 117": 2,
			"ip link del usher0":      3,
			"ip link set usher0 down": 2,
			"ip neigh del 192.0.0.119 dev usher0; ip -6 neigh del fe80::7573:6865:7202 dev usher0": 0,
		} {
			n.Node.Sh(what)
			Expect(n.Check(p)).To(Equal(repairs), what)
			for _, from := range everybody() {
				Expect(from.Ask(Web4)).To(HavePrefix("web"), what)
				Expect(from.Ask(Web6)).To(HavePrefix("web"), what)
			}
			Expect(n.Check(p)).To(BeZero(), what)
		}
	})

	It("changes nothing before rules are applied, and leaves nothing behind", func() {
		before := n.Node.State()
		p := n.Open(Mode, auto)
		Expect(n.Node.State()).To(Equal(before), "after New")
		n.Publish(p, "web", Web4, Web6, WebNode4)
		Expect(n.Node.State()).NotTo(Equal(before))
		n.Remove(p)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("keeps a VIP until its last connection closes", func() {
		for _, t := range []portal.Target{Web4, Web6} {
			p := n.Open(Mode, auto)
			b := p.Listen("default/web", []portal.Target{t})[0]
			var l net.Listener
			n.Node.Do(func() { defer Enter(b.Namespace)(); l = listenOn(t) })
			n.Apply(p, []portal.Rule{Redirect(t, 80)}, nil)
			remote, local := connect(n.Pod, l, t), connect(n.Node, l, t)
			n.Apply(p, nil, []portal.Target{t})
			l.Close()
			Expect(n.Pod.Ask(t)).To(Equal("refused"))
			Expect(n.Check(p)).To(BeZero())
			carries(remote)
			carries(local)
			remote.end()
			local.end()
			Eventually(func() string { Expect(n.Check(p)).To(BeZero()); return ours() }).Should(BeEmpty())
		}
	})

	It("reuses the namespace of the previous process, and keeps its connections", func() {
		first := n.Open(Mode, auto)
		b := first.Listen("default/web", []portal.Target{Web4})[0]
		var l net.Listener
		n.Node.Do(func() { defer Enter(b.Namespace)(); l = listenOn(Web4) })
		n.Apply(first, []portal.Rule{Redirect(Web4, 80)}, nil)
		open, routes := connect(n.Pod, l, Web4), ours()
		second := n.Open(Mode, auto)
		second.(portal.Namespaced).UseNamespace(first.(portal.Namespaced).Namespace())
		n.Apply(second, []portal.Rule{Redirect(Web4, 80)}, nil)
		Expect(ours()).To(Equal(routes))
		carries(open)
		carries(connect(n.Pod, l, Web4))
		Expect(n.Check(second)).To(BeZero())
	})

	It("passes firewall rules for usher0, and reuses a working namespace without a new self-test", func() {
		n.Node.Sh(`nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; }
			add rule inet f c iifname usher0 accept; add rule inet f c oifname usher0 accept'`)
		p := n.Open(Mode, auto)
		Expect(p.(*addressPortal).families()).To(HaveLen(2))
		n.Publish(p, "web", Web4, Web6)
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))
		n.Node.Sh("nft delete chain inet f c; nft add chain inet f c '{ type filter hook forward priority 0; policy drop; }'")
		before := n.Node.State()
		Expect(n.Open(Mode, auto).(*addressPortal).families()).To(HaveLen(2))
		Expect(n.Node.State()).To(Equal(before))
	})

	It("fails if the name of its interface is in use, and routes nothing there", func() {
		p := n.Open(Mode, auto)
		n.Node.Sh("ip link add usher0 type veth peer name other")
		n.Node.Do(func() {
			Expect(p.Apply(Background, []portal.Rule{Redirect(Web4, 80)}, nil).Err).To(MatchError(ContainSubstring("usher0 exists already")))
		})
		Expect(ours()).To(BeEmpty())
		n.Node.Sh("ip link del usher0")
		n.Publish(p, "web", Web4)
		Expect(outside.Ask(Web4)).To(HavePrefix("web"))
	})

	It("keeps IPv4 VIPs on the node if another program translates client addresses first", func() {
		n.Node.Sh("nft 'add table ip nat; add chain ip nat early { type nat hook postrouting priority 0; }; add rule ip nat early oifname usher0 snat to 10.1.0.1'")
		Expect(n.Open(Mode, auto).(*addressPortal).families()).To(Equal([]portal.Family{portal.IPv6}))
		Expect(n.Node.Sh("nft list tables")).NotTo(ContainSubstring("usher"))
	})

	It("replaces the previous namespace if that is not available", func() {
		n.Publish(n.Open(Mode, auto), "first", Web4, To(portal.TCP, VIP4, 81))
		p := n.Open(Mode, auto)
		n.Publish(p, "second", Web4)
		for _, from := range everybody() {
			Expect(from.Ask(Web4)).To(HavePrefix("second"))
			Expect(from.Ask(To(portal.TCP, VIP4, 81))).To(Equal("refused"))
		}
	})

	It("serves VIPs that are node addresses on the node, and reports when this changes", func() {
		n.Node.Sh("ip addr add 10.96.0.10/32 dev lo")
		p := n.Open(Mode, auto)
		binds, _ := n.Publish(p, "node", Web4)
		Expect(binds[0].Namespace).To(BeNil())
		for _, from := range everybody() {
			Expect(from.Ask(Web4)).To(HavePrefix("node"))
		}
		Expect(ours()).To(BeEmpty())

		move := func(command, word string) {
			n.Node.Sh(command)
			n.Node.Do(func() {
				Expect(p.Check(Background).Moved).NotTo(BeEmpty())
			})
			if word == "apart" {
				n.Publish(p, word, Web4)
			} else {
				p.Listen("default/web", []portal.Target{Web4})
				n.Apply(p, nil, nil)
			}
			for _, from := range everybody() {
				Expect(from.Ask(Web4)).To(HavePrefix(word))
			}
			Expect(n.Check(p)).To(BeZero())
		}
		move("ip addr del 10.96.0.10/32 dev lo", "apart")
		move("ip addr add 10.96.0.10/32 dev lo", "node")
	})

	It("leaves a VIP without listeners to the node while that has the address", func() {
		p := n.Open(Mode, auto)
		p.Listen("default/web", []portal.Target{Web4})
		n.Apply(p, []portal.Rule{Redirect(Web4, 80)}, nil)
		n.Apply(p, []portal.Rule{Reject(Web4)}, nil)
		Expect(outside.Ask(Web4)).To(Equal("refused"))
		n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(VIP4, 81), Targets: []portal.Target{Web4}}, "the node's")
		n.Node.Sh("ip addr add 10.96.0.10/32 dev pod0")
		Expect(n.Check(p)).To(BeZero())
		for _, from := range everybody() {
			Expect(from.Ask(To(portal.TCP, VIP4, 81))).To(HavePrefix("the node's"))
		}
		n.Node.Sh("ip addr del 10.96.0.10/32 dev pod0")
		Expect(n.Check(p)).To(Equal(1))
		Expect(outside.Ask(To(portal.TCP, VIP4, 81))).To(Equal("refused"))
	})

	It("serves VIPs within a network of the node on the node", func() {
		near := Target(portal.TCP, "10.2.0.77:80")
		p := n.Open(Mode, auto)
		n.Publish(p, "web", near, Web4)
		for _, from := range everybody() {
			Expect(from.Ask(near)).To(HavePrefix("web"))
			Expect(from.Ask(Web4)).To(HavePrefix("web"))
		}
		Expect(n.Check(p)).To(BeZero())
		n.Node.Sh("ip link del usher0")
		Expect(n.Open(Mode, auto).(*addressPortal).families()).To(HaveLen(2), "the next process")
	})

	DescribeTable("serves VIPs on the node if the namespace does not work, and logs the cause",
		func(prepare, says string) {
			n.Node.Sh(prepare)
			n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(portal.IPv4.Any(), 81), Targets: []portal.Target{To(portal.TCP, portal.IPv4.Any(), 81)}}, "the node's")
			log, said := logtest.NewNullLogger()
			p := n.Open(Mode, portal.Options{AddressNamespace: "auto", Log: log})
			Expect(p.Traits().InNamespace).To(BeFalse())
			n.Publish(p, "web", Web4)
			for _, from := range everybody() {
				Expect(from.Ask(Web4)).To(HavePrefix("web"))
			}
			n.Apply(p, []portal.Rule{Redirect(To(portal.TCP, VIP4, 81), 81)}, nil)
			Expect(said.AllEntries()).To(ContainElement(And(
				HaveField("Level", logrus.WarnLevel), HaveField("Data", HaveKeyWithValue("error", MatchError(ContainSubstring(says)))))))
		},
		Entry("forwarding is off", "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0", "net.ipv4.ip_forward is 0"),
		Entry("a rule drops forwarded packets", "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; }'", "blocked by a FORWARD rule?"),
		Entry("a rule rejects forwarded packets", "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; }; add rule inet f c reject with tcp reset'", "blocked by a FORWARD rule?"),
		Entry("a rule rejects packets from the node", "nft 'add table inet f; add chain inet f c { type filter hook output priority 0; }; add rule inet f c oifname \"usher*\" reject'", "a process on this node cannot reach a VIP there"),
		Entry("the name of the interface is in use", "ip link add usher0 type veth peer name other", "usher0 exists already"),
	)

	It("does not count usher's listeners as conflicts", func() {
		n.Node.Sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
		n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(portal.IPv4.Any(), 80), Targets: []portal.Target{Web4}}, "mine")
		p := n.Open(Mode, auto)
		n.Apply(p, []portal.Rule{Reject(Web4)}, nil)
		n.Node.Do(func() {
			// The usher process itself does not count as a conflict; for another process it would.
			Expect(p.(*addressPortal).clashes(portal.IPv4)).To(BeEmpty())
		})
	})

	It("is used for an IP family only after all its VIPs are removed from the node", func() {
		before := n.Open(Mode, portal.Options{})
		n.Publish(before, "before", Web4)
		held := n.Open(Mode, auto)
		Expect(held.(*addressPortal).families()).To(Equal([]portal.Family{portal.IPv6}))
		n.Apply(held, nil, nil)
		Expect(ours()).To(BeEmpty())
		n.Node.Sh("ip link del usher0")
		Expect(n.Open(Mode, auto).(*addressPortal).families()).To(HaveLen(2))
	})

	It("is not used with AddressNamespace never, and always used with always", func() {
		n.Node.Sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
		Expect(n.Open(Mode, portal.Options{AddressNamespace: "never"}).Traits().InNamespace).To(BeFalse())
		p := n.Open(Mode, portal.Options{AddressNamespace: "always"})
		Expect(p.Traits().InNamespace).To(BeTrue())
		n.Publish(p, "web", Web4, Web6)
		Expect(n.Node.Ask(Web4)).To(HavePrefix("web"))
		Expect(n.Node.Ask(Web6)).To(HavePrefix("web"))
	})
})
