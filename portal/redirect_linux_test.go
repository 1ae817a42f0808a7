package portal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// redirectKind is a portal that changes destinations, as the specs see it.
type redirectKind struct {
	name    string
	mode    Mode
	options Options
	// saved prints the IPv4 rules, and limits counts those that drop clients.
	saved  func(*testNet) string
	limits func(*testNet) int
	// wipe is a command that takes all IPv4 rules out.
	wipe string
	// first is how long the first Apply of 10,000 rules may take, and one a
	// change of one of them.
	first, one time.Duration

	n    *testNet
	opts Options
}

func (k *redirectKind) open(n *testNet) Portal {
	GinkgoHelper()
	return n.open(k.mode, k.opts)
}

// settings returns what the layouts of both families depend on.
func settings(p Portal) (all []*setting) {
	for _, b := range p.(*redirectPortal).backends() {
		all = append(all, b.setting())
	}
	return all
}

// itRedirects are the specs that every portal meets that changes destinations.
func itRedirects(k *redirectKind) {
	var n *testNet
	BeforeEach(func() { n, k.opts = k.n, k.options })

	It("brings TCP and UDP from the node and from a Pod to the listener, which learns where they wanted to go", func() {
		p := k.open(n)
		n.publish(p, "web", web4, web6, webNode4, webNode6)
		n.publish(p, "dns", dns4, dns6)
		for _, from := range []*host{n.node, n.pod} {
			Expect(from.ask(web4)).To(Equal("web 10.96.0.10:80"))
			Expect(from.ask(web6)).To(Equal("web [fd96::10]:80"))
			Expect(from.ask(dns4)).To(Equal("dns"))
			Expect(from.ask(dns6)).To(Equal("dns"))
			Expect(from.ask(at(webNode4, nodeIP4))).To(Equal("web 10.1.0.1:30080"))
			Expect(from.ask(at(webNode6, nodeIP6))).To(Equal("web [fd01::1]:30080"))
		}
		Expect(n.node.ask(at(webNode4, localhost4))).To(Equal("web 127.0.0.1:30080"))
		Expect(n.node.ask(at(webNode6, netip.IPv6Loopback()))).To(Equal("web [::1]:30080"))
		Expect(n.check(p)).To(BeZero(), "a check just after finds all as it should be")
	})

	It("tells a listener of who comes straight to it", func() {
		p := k.open(n)
		binds, _ := n.publish(p, "web", web4)
		Expect(binds).To(HaveLen(1))
		Expect(binds[0].Redirected).To(BeTrue())
		direct := Target{TCP, nodeIP4, binds[0].Addr.Port()}
		// conntrack knows the connection, with itself as destination.
		Expect(n.pod.ask(direct)).To(Equal(fmt.Sprintf("web 10.1.0.1:%d", direct.Port)))
	})

	It("leaves alone what has the mark of those who listen for it", func() {
		p := k.open(n)
		Expect(p.Mark()).To(BeEquivalentTo(0x2000))
		own := []Target{{TCP, nodeIP4, 80}, {TCP, nodeIP6, 80}, {UDP, nodeIP4, 80}, {UDP, nodeIP6, 80}, {TCP, nodeIP4, 81}}
		for _, t := range own {
			n.node.serve(Bind{Addr: netip.AddrPortFrom(t.Addr, t.Port), Targets: []Target{t}}, "process")
		}
		_, rules := n.publish(p, "usher", own...)
		limited := rules[slices.IndexFunc(rules, func(r Rule) bool { return r.Target == own[4] })]
		limited.Sources = SourcesOf(prefixes("192.0.2.0/24"))
		n.apply(p, []Rule{limited}, nil)
		Expect(n.node.askFrom(own[4], 0, soon)).To(Equal("silence"))
		for _, t := range own[:4] {
			Expect(n.node.ask(t)).To(HavePrefix("usher"), t.String())
			Expect(n.pod.ask(t)).To(HavePrefix("usher"), t.String())
		}
		n.node.mark = 0x6000
		for _, t := range own {
			Expect(n.node.ask(t)).To(HavePrefix("process"), t.String())
		}
		n.node.mark = 0x4000
		Expect(n.node.ask(own[0])).To(HavePrefix("usher"), "another mark")
		Expect(n.check(p)).To(BeZero())
	})

	for _, forwarding := range []string{"0", "1"} {
		It("refuses rejected targets at once, with ip_forward="+forwarding, func() {
			n.node.sh("sysctl -qw net.ipv4.ip_forward=" + forwarding + " net.ipv6.conf.all.forwarding=" + forwarding)
			p := k.open(n)
			rejected := []Target{web4, web6, dns4, dns6, webNode4, webNode6}
			var rules []Rule
			for _, t := range rejected {
				rules = append(rules, reject(t))
			}
			n.apply(p, rules, nil)
			for _, from := range []*host{n.node, n.pod} {
				for _, t := range []Target{web4, web6, dns4, dns6, at(webNode4, nodeIP4), at(webNode6, nodeIP6)} {
					Expect(from.ask(t)).To(Equal("refused"), t.String())
				}
			}
			Expect(n.check(p)).To(BeZero())
		})
	}

	It("lets a UDP client that keeps its port find the listener that comes after a reject", func() {
		p := k.open(n)
		n.apply(p, []Rule{reject(dns4), reject(dns6)}, nil)
		Expect(n.pod.askFrom(dns4, 5353, time.Second)).To(Equal("refused"))
		Expect(n.node.askFrom(dns6, 5353, time.Second)).To(Equal("refused"))
		n.publish(p, "dns", dns4, dns6)
		Expect(n.pod.askFrom(dns4, 5353, time.Second)).To(Equal("dns"))
		Expect(n.node.askFrom(dns6, 5353, time.Second)).To(Equal("dns"))
	})

	DescribeTable("serves and refuses Pods behind interfaces without an address, at once when such interfaces appear",
		func(kind bareKind, forwarding string) {
			n.addOutside()
			n.node.sh("ip route replace default via 10.2.0.2; sysctl -qw net.ipv4.ip_forward=" + forwarding + " net.ipv6.conf.all.forwarding=" + forwarding)
			p := k.open(n)
			n.publish(p, "web", web4, web6, webNode4, webNode6)
			n.publish(p, "dns", dns4, dns6)
			rejected := []Target{{TCP, vip4, 81}, {TCP, vip6, 81}, {UDP, vip4, 81}, {UDP, vip6, 81}}
			for _, t := range rejected {
				n.apply(p, []Rule{reject(t)}, nil)
			}
			for number := range 2 {
				pod := n.addBarePod(number+2, kind)
				Expect(pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(pod.ask(web6)).To(Equal("web [fd96::10]:80"))
				Expect(pod.ask(dns4)).To(Equal("dns"))
				Expect(pod.ask(dns6)).To(Equal("dns"))
				Expect(pod.ask(at(webNode4, nodeIP4))).To(Equal("web 10.1.0.1:30080"))
				Expect(pod.ask(at(webNode6, nodeIP6))).To(Equal("web [fd01::1]:30080"))
				for _, t := range rejected {
					Expect(pod.ask(t)).To(Equal("refused"), t.String())
				}
			}
			Expect(n.node.ask(web4)).To(Equal("web 10.96.0.10:80"))
			Expect(n.check(p)).To(BeZero())
		},
		Entry("as Calico makes them", proxyARP, "1"),
		Entry("as the AWS VPC CNI makes them", staticNeighbours, "1"),
		Entry("on a node that does not forward", staticNeighbours, "0"),
	)

	It("keeps connections in flight when this node's addresses change", func() {
		p := k.open(n)
		binds := p.Listen("default/web", []Target{web4})
		n.node.do(func() {
			l, err := net.Listen("tcp4", "0.0.0.0:0")
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(l.Close)
			Expect(binds[0].Addr.Addr()).To(Equal(IPv4.Any()))
			Expect(p.Apply(background, []Rule{redirect(web4, l.Addr().(*net.TCPAddr).AddrPort().Port())}, nil)).To(Succeed())
			var client net.Conn
			n.pod.do(func() {
				client, err = net.Dial("tcp4", "10.96.0.10:80")
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(client.Close)
			})
			server, err := l.Accept()
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(server.Close)
			n.node.sh("ip addr add 10.1.0.7/24 dev pod0; ip addr del 10.1.0.1/24 dev pod0; ip addr replace 10.1.0.7/24 dev pod0")
			n.pod.sh("ip route replace default via 10.1.0.7")
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				way[1].SetDeadline(time.Now().Add(2 * time.Second))
				_, err := io.WriteString(way[0], "x")
				Expect(err).NotTo(HaveOccurred())
				Expect(way[1].Read(make([]byte, 1))).To(Equal(1))
			}
		})
	})

	It("puts the landing back when others removed it", func() {
		p := k.open(n)
		n.publish(p, "web", web4, web6)
		n.node.sh("ip route del local 192.0.0.117 table local; ip -6 route del local fd75:7368:6572::1 table local")
		Expect(n.check(p)).To(Equal(2))
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
		Expect(n.pod.ask(web6)).To(Equal("web [fd96::10]:80"))
		Expect(n.check(p)).To(BeZero())
	})

	It("drops new connections to a dropped target, whoever makes them", func() {
		outside := n.addOutside()
		p := k.open(n)
		n.publish(p, "web", web4, web6, webNode4)
		n.publish(p, "dns", dns4)
		n.apply(p, []Rule{drop(web4), drop(web6), drop(webNode4), drop(dns4)}, nil)
		for _, from := range []*host{n.node, n.pod, outside} {
			Expect(from.askFrom(web4, 0, soon)).To(Equal("silence"))
			Expect(from.askFrom(web6, 0, soon)).To(Equal("silence"))
			Expect(from.askFrom(at(webNode4, nodeIP4), 0, soon)).To(Equal("silence"))
		}
		Expect(n.pod.askFrom(dns4, 0, soon)).To(Equal("silence"))
		Expect(n.node.askFrom(dns4, 0, soon)).To(ContainSubstring("not permitted"))
		n.apply(p, nil, []Target{web4, web6, webNode4, dns4})
		Expect(k.limits(n)).To(BeZero())
	})

	It("redirects clients of this node to a dropped target that has a local port, and drops others", func() {
		outside := n.addOutside()
		p := k.open(n)
		_, rules := n.publish(p, "web", web4, web6, webNode4, webNode6)
		for i := range rules {
			rules[i].Action = Drop
		}
		n.apply(p, rules, nil)
		expect := func(who *host, web bool) {
			GinkgoHelper()
			for t, answer := range map[Target]string{
				web4: "web 10.96.0.10:80", web6: "web [fd96::10]:80",
				at(webNode4, nodeIP4): "web 10.1.0.1:30080", at(webNode6, nodeIP6): "web [fd01::1]:30080",
			} {
				if !web {
					answer = "silence"
				}
				Expect(who.askFrom(t, 0, soon)).To(Equal(answer), t.String())
			}
		}
		expect(n.node, true)
		expect(n.pod, false)
		expect(outside, false)
		Expect(n.node.ask(at(webNode4, localhost4))).To(Equal("web 127.0.0.1:30080"))

		By("learning where this node's Pods are")
		p.SetLocalSources(prefixes("10.1.0.77/24", "fd01::/64"))
		n.apply(p, nil, nil)
		expect(n.node, true)
		expect(n.pod, true)
		expect(outside, false)
		Expect(n.check(p)).To(BeZero())

		By("losing the rules")
		n.node.sh(k.wipe)
		Expect(n.check(p)).To(BeNumerically(">", 0))
		expect(n.pod, true)
		expect(outside, false)

		By("forgetting about the Pods")
		p.SetLocalSources(nil)
		Expect(n.check(p)).To(BeNumerically(">", 0))
		expect(n.pod, false)

		By("having endpoints on this node again")
		for i := range rules {
			rules[i].Action = Redirect
		}
		n.apply(p, rules, nil)
		expect(outside, true)
		Expect(k.limits(n)).To(BeZero())
	})

	for _, interfaces := range []Interfaces{"pod0", "pod+"} {
		It("redirects what comes in by "+string(interfaces)+" to a dropped target that has a local port, and drops others", func() {
			outside := n.addOutside()
			k.opts.PodInterfaces = interfaces
			p := k.open(n)
			_, rules := n.publish(p, "web", web4, web6)
			for i := range rules {
				rules[i].Action = Drop
			}
			n.apply(p, rules, nil)
			later := newHost()
			n.node.connect("pod00", later, "eth0")
			n.node.sh("ip addr add 10.3.0.1/24 dev pod00; ip addr add fd03::1/64 dev pod00 nodad; ip link set pod00 up")
			later.sh(`ip addr add 10.3.0.2/24 dev eth0; ip addr add fd03::2/64 dev eth0 nodad; ip link set eth0 up
				ip route add default via 10.3.0.1; ip -6 route add default via fd03::1`)
			for t, answer := range map[Target]string{web4: "web 10.96.0.10:80", web6: "web [fd96::10]:80"} {
				Expect(n.pod.ask(t)).To(Equal(answer))
				Expect(n.node.ask(t)).To(Equal(answer))
				Expect(outside.askFrom(t, 0, soon)).To(Equal("silence"))
				if interfaces == "pod0" {
					Expect(later.askFrom(t, 0, soon)).To(Equal("silence"), "the name is another one")
				} else {
					Expect(later.ask(t)).To(Equal(answer), "without a change of rules")
				}
			}
			Expect(n.check(p)).To(BeZero())
			n.node.sh(k.wipe)
			Expect(n.check(p)).To(BeNumerically(">", 0))
			Expect(n.pod.ask(web4)).To(HavePrefix("web"))
			Expect(outside.askFrom(web4, 0, soon)).To(Equal("silence"))
		})
	}

	It("drops clients that are not among a rule's sources", func() {
		outside := n.addOutside()
		p := k.open(n)
		_, rules := n.publish(p, "web", web4, web6)
		for i := range rules {
			rules[i].Sources = SourcesOf(prefixes("10.2.0.0/24", "fd02::/64", "192.0.2.0/24"))
		}
		n.apply(p, rules, nil)
		n.publish(p, "dns", dns4)
		for _, t := range []Target{web4, web6} {
			Expect(outside.ask(t)).To(HavePrefix("web"))
			Expect(n.pod.askFrom(t, 0, soon)).To(Equal("silence"))
			Expect(n.node.askFrom(t, 0, soon)).To(Equal("silence"), "this node is no exception")
		}
		Expect(n.pod.ask(dns4)).To(Equal("dns"), "another port of the same VIP")
		Expect(n.check(p)).To(BeZero())

		By("other sources")
		for i := range rules {
			rules[i].Sources = SourcesOf(prefixes("10.1.0.1/32", "fd01::1/128"))
		}
		n.apply(p, rules, nil)
		for _, t := range []Target{web4, web6} {
			Expect(outside.askFrom(t, 0, soon)).To(Equal("silence"))
			Expect(n.node.ask(t)).To(HavePrefix("web"))
		}

		By("dropping those that are among the sources but not of this node")
		for i := range rules {
			rules[i].Action = Drop
			rules[i].Sources = SourcesOf(prefixes("10.0.0.0/8", "fd00::/8"))
		}
		p.SetLocalSources(prefixes("10.1.0.0/24", "fd01::/64"))
		n.apply(p, rules, nil)
		for _, t := range []Target{web4, web6} {
			Expect(outside.askFrom(t, 0, soon)).To(Equal("silence"))
			Expect(n.pod.ask(t)).To(HavePrefix("web"))
		}
	})

	It("takes over ports and rules of the process before it, and removes what is not wanted any more", func() {
		first := k.open(n)
		targets := []Target{web4, web6, webNode4, webNode6}
		binds, _ := n.publish(first, "web", targets...)
		n.apply(first, []Rule{redirect(target(TCP, "10.96.0.99:80"), 999), reject(dns4)}, nil)

		second := k.open(n)
		again := second.Listen("default/web", targets)
		Expect(again).To(HaveLen(2))
		for i, b := range again {
			Expect(b.Addr).To(Equal(binds[i].Addr))
			Expect(b.Preferred).To(BeTrue())
		}
		Expect(second.Listen("default/web", []Target{dns4})[0].Addr.Port()).To(BeZero(), "a rejected target had no port")
		Expect(n.check(second)).To(BeZero(), "nothing is touched before the first Apply")
		Expect(k.saved(n)).To(ContainSubstring("10.96.0.99"))

		var rules []Rule
		for _, b := range again {
			for _, t := range b.Targets {
				rules = append(rules, Rule{Target: t, LocalPort: b.Addr.Port(), Comment: "default/web:http"})
			}
		}
		n.apply(second, rules, nil)
		Expect(k.saved(n)).NotTo(ContainSubstring("10.96.0.99"))
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
		Expect(n.pod.ask(at(webNode6, nodeIP6))).To(Equal("web [fd01::1]:30080"))
		Expect(n.check(second)).To(BeZero())
	})

	It("keeps to the port range, and to what it says before", func() {
		k.opts.ProxyPorts = PortRange{First: 41000, Last: 41009}
		p := k.open(n)
		b := p.Listen("default/web", []Target{web4})[0]
		Expect(b.Addr.Port()).To(And(BeNumerically(">=", 41000), BeNumerically("<=", 41009)))
		Expect(b.Preferred).To(BeTrue())
		Expect(k.open(n).Listen("default/web", []Target{web4})[0]).To(Equal(b))
	})

	It("leaves nothing behind", func() {
		before := n.node.state()
		p := k.open(n)
		Expect(n.node.state()).To(Equal(before), "after New")
		_, rules := n.publish(p, "web", web4, web6, webNode4, webNode6)
		rules[0].Action = Drop
		n.apply(p, rules, nil)
		Expect(n.node.state()).NotTo(Equal(before))
		n.remove(p)
		Expect(n.node.state()).To(Equal(before))
	})

	DescribeTable("serves node ports only at the addresses that it was given",
		func(addrtype bool) {
			n.addOutside()
			k.opts.NodePortAddresses = prefixes("10.1.0.0/16", "fd01::/64")
			p := k.open(n)
			for _, at := range settings(p) {
				at.addrtype = addrtype
			}
			n.publish(p, "web", webNode4, webNode6, web4)
			later := netip.MustParseAddr("10.1.77.1")
			n.node.sh("ip addr add 10.1.77.1/32 dev lo")
			if !addrtype {
				Expect(n.check(p)).To(BeNumerically(">=", 1))
			}
			for _, from := range []*host{n.node, n.pod} {
				Expect(from.ask(at(webNode4, nodeIP4))).To(Equal("web 10.1.0.1:30080"))
				Expect(from.ask(at(webNode4, later))).To(Equal("web 10.1.77.1:30080"))
				Expect(from.ask(at(webNode6, nodeIP6))).To(Equal("web [fd01::1]:30080"))
				Expect(from.ask(at(webNode4, netip.MustParseAddr("10.2.0.1")))).To(Equal("refused"))
				Expect(from.ask(web4)).To(Equal("web 10.96.0.10:80"))
			}
			Expect(n.node.ask(at(webNode4, localhost4))).To(Equal("refused"))
			Expect(n.node.ask(at(webNode6, netip.IPv6Loopback()))).To(Equal("refused"))
			n.node.sh("ip addr del 10.1.77.1/32 dev lo")
			if !addrtype {
				Expect(n.check(p)).To(BeNumerically(">=", 1))
			}
			Expect(n.check(p)).To(BeZero())
			Expect(n.node.askFrom(at(webNode4, later), 0, soon)).To(Equal("silence"))

			By("being given others")
			p.SetNodePortAddresses(prefixes("127.0.0.0/8", "::1/128"))
			n.apply(p, nil, nil)
			Expect(n.pod.ask(at(webNode4, nodeIP4))).To(Equal("refused"))
			Expect(n.pod.ask(at(webNode6, nodeIP6))).To(Equal("refused"))
			Expect(n.node.ask(at(webNode4, localhost4))).To(Equal("web 127.0.0.1:30080"))
			Expect(n.check(p)).To(BeZero())
			p.SetNodePortAddresses(prefixes("::/128"))
			n.apply(p, nil, nil)
			Expect(n.node.ask(at(webNode4, localhost4))).To(Equal("refused"))
			Expect(n.check(p)).To(BeZero())
		},
		Entry("by addrtype", true),
		Entry("by a list, where addrtype is missing", false),
	)

	It("finds the rules gone when it is next given a change, and puts all in", func() {
		p := k.open(n)
		n.publish(p, "web", web4)
		n.node.sh(k.wipe)
		n.publish(p, "dns", dns4)
		Expect(n.check(p)).To(BeNumerically(">=", 0))
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
		Expect(n.pod.ask(dns4)).To(Equal("dns"))
	})

	DescribeTable("takes what the kernel says of any kind of rule for its own, and does the same without optional matches",
		func(have func(*setting)) {
			p := k.open(n)
			for _, at := range settings(p) {
				have(at)
			}
			_, rules := n.publish(p, "web", web4, web6, webNode4, webNode6)
			rules[0].Comment = strings.Repeat("long \"quoted\" ", 30)
			rules = append(rules,
				redirect(target(UDP, "[fd00::]:53"), 4000), redirect(target(TCP, "[2001:db8:0:0:1::1]:65535"), 65535),
				reject(target(SCTP, "1.2.3.4:1")), drop(target(UDP, "[fd96::11]:7")), drop(target(TCP, "0.0.0.0:31000")))
			for i := range 300 {
				rules = append(rules, redirect(target(TCP, fmt.Sprintf("[fd96::1:%x]:80", i)), 4001),
					redirect(Target{[]Protocol{TCP, UDP}[i%2], vip4, uint16(1000 + i)}, 4002))
			}
			sctp := []Rule{redirect(Target{SCTP, vip4, 80}, 4000), redirect(Target{SCTP, vip6, 80}, 4000), redirect(Target{SCTP, IPv4.Any(), 30081}, 4000)}
			if settings(p)[0].landing.IsValid() {
				rules = append(rules, sctp...)
			} else {
				refusesSCTP(n, p, sctp)
			}
			n.apply(p, rules, nil)
			Expect(n.check(p)).To(BeZero())
			for _, from := range []*host{n.node, n.pod} {
				Expect(from.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(from.ask(web6)).To(Equal("web [fd96::10]:80"))
				Expect(from.ask(at(webNode4, nodeIP4))).To(Equal("web 10.1.0.1:30080"))
				Expect(from.ask(at(webNode6, nodeIP6))).To(Equal("web [fd01::1]:30080"))
			}
			Expect(n.node.ask(at(webNode4, localhost4))).To(Equal("web 127.0.0.1:30080"))
		},
		Entry("with all of them", func(*setting) {}),
		Entry("without addrtype", func(m *setting) { m.addrtype = false }),
		Entry("without landing", func(m *setting) { m.landing = netip.Addr{} }),
		Entry("without comment", func(m *setting) { m.comment = false }),
	)

	It("is fast with 10,000 rules", Label("slow"), func() {
		p := k.open(n)
		rules := manyRules(10000)
		measure := func(what string, most time.Duration, f func()) {
			GinkgoHelper()
			began := time.Now()
			f()
			took := time.Since(began)
			AddReportEntry(fmt.Sprintf("%s, 10,000 rules: %s: %v", k.name, what, took.Round(time.Millisecond)))
			// Other packages are tested at the same time; test/scale has the targets.
			Expect(took).To(BeNumerically("<", 10*most), what)
		}
		measure("first apply", k.first, func() { n.apply(p, rules, nil) })
		measure("check", 3*time.Second, func() { Expect(n.check(p)).To(BeZero()) })
		one := Target{TCP, vip4, 80}
		var binds []Bind
		measure("one added", k.one, func() { binds, _ = n.publish(p, "web", one) })
		Expect(binds).NotTo(BeEmpty())
		Expect(n.pod.ask(one)).To(Equal("web 10.96.0.10:80"))
		measure("one removed", k.one, func() { n.apply(p, nil, []Target{one}) })
		var second Portal
		measure("a new process starts", time.Second, func() { second = k.open(n) })
		measure("its first apply, nothing changed", 3*time.Second, func() { n.apply(second, rules, nil) })
		Expect(second.Listen("default/web", []Target{rules[9999].Target})[0].Addr.Port()).To(Equal(rules[9999].LocalPort))
		measure("remove", 3*time.Second, func() { n.remove(second) })
	})
}

// refusesSCTP expects that rules for SCTP are refused each time, and others not:
// an SCTP listener is at the landing, and here there is none.
func refusesSCTP(n *testNet, p Portal, rules []Rule) {
	GinkgoHelper()
	n.node.do(func() {
		for _, ask := range []func() error{
			func() error { return p.Apply(background, append(rules, reject(dns4)), nil) },
			func() error { _, err := p.Check(background); return err },
		} {
			var refused *RuleError
			Expect(errors.As(ask(), &refused)).To(BeTrue())
			Expect(refused.Refused).To(HaveLen(len(rules)))
			for _, r := range rules {
				Expect(refused.Refused[r.Target]).To(MatchError(ContainSubstring("--portal=address")))
			}
		}
	})
	gone := []Target{dns4}
	for _, r := range rules {
		gone = append(gone, r.Target)
	}
	n.apply(p, nil, gone)
}
