package redirects

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
	"github.com/usherproxy/usher/proxy/forward"
	. "github.com/usherproxy/usher/test/portaltest"
)

// Kind describes, for the specs, a portal that rewrites destinations.
type Kind struct {
	Name    string
	Mode    portal.Mode
	Options portal.Options
	// Lands says that packets are redirected to the redirect address.
	Lands bool
	// Accepts says that a chain accepts those packets even if a host firewall drops others.
	Accepts bool
	// Saved prints the IPv4 rules, and Limits counts those that drop clients.
	Saved  func(*Net) string
	Limits func(*Net) int
	// Wipe is a command that removes all IPv4 rules.
	Wipe string
	// First is the maximum duration of the first Apply of 10,000 rules, and One
	// that of a change of one of them.
	First, One time.Duration

	N    *Net
	opts portal.Options
}

func (k *Kind) open(n *Net) portal.Portal {
	GinkgoHelper()
	return n.Open(k.Mode, k.opts)
}

// settings returns the settings of both families.
func settings(p portal.Portal) (all []*redirect.Setting) {
	for _, b := range p.(*redirect.Portal).Backends() {
		all = append(all, b.Setting())
	}
	return all
}

// ItRedirects defines the specs for every portal that rewrites destinations.
func ItRedirects(k *Kind) {
	var n *Net
	BeforeEach(func() { n, k.opts = k.N, k.Options })

	It("redirects TCP and UDP from node and Pod to the listener, with the original destination", func() {
		p := k.open(n)
		n.Publish(p, "web", Web4, Web6, WebNode4, WebNode6)
		n.Publish(p, "dns", DNS4, DNS6)
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
			Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
			Expect(from.Ask(DNS4)).To(Equal("dns"))
			Expect(from.Ask(DNS6)).To(Equal("dns"))
			Expect(from.Ask(At(WebNode4, NodeIP4))).To(Equal("web 10.1.0.1:30080"))
			Expect(from.Ask(At(WebNode6, NodeIP6))).To(Equal("web [fd01::1]:30080"))
		}
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(Equal("web 127.0.0.1:30080"))
		Expect(n.Node.Ask(At(WebNode6, netip.IPv6Loopback()))).To(Equal("web [::1]:30080"))
		Expect(n.Check(p)).To(BeZero(), "a check right afterwards finds nothing to repair")
	})

	It("lets a listener detect clients that bypass the portal", func() {
		p := k.open(n)
		binds, _ := n.Publish(p, "web", Web4)
		Expect(binds).To(HaveLen(1))
		Expect(binds[0].Redirected).To(BeTrue())
		direct := To(portal.TCP, NodeIP4, binds[0].Addr.Port())
		// conntrack tracks the connection with an unchanged destination.
		Expect(n.Pod.Ask(direct)).To(Equal(fmt.Sprintf("web 10.1.0.1:%d", direct.Port)))
	})

	It("does not redirect packets with the portal's mark", func() {
		p := k.open(n)
		Expect(p.Mark()).To(BeEquivalentTo(0x1000))
		own := []portal.Target{To(portal.TCP, NodeIP4, 80), To(portal.TCP, NodeIP6, 80), To(portal.UDP, NodeIP4, 80), To(portal.UDP, NodeIP6, 80), To(portal.TCP, NodeIP4, 81)}
		for _, t := range own {
			n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(t.Addr, t.Port), Targets: []portal.Target{t}}, "process")
		}
		_, rules := n.Publish(p, "usher", own...)
		limited := rules[slices.IndexFunc(rules, func(r portal.Rule) bool { return r.Target == own[4] })]
		limited.Sources = portal.SourcesOf(Prefixes("192.0.2.0/24"))
		n.Apply(p, []portal.Rule{limited}, nil)
		Expect(n.Node.AskFrom(own[4], 0, Soon)).To(Equal("silence"))
		for _, t := range own[:4] {
			Expect(n.Node.Ask(t)).To(HavePrefix("usher"), t.String())
			Expect(n.Pod.Ask(t)).To(HavePrefix("usher"), t.String())
		}
		n.Node.Mark = 0x5000
		for _, t := range own {
			Expect(n.Node.Ask(t)).To(HavePrefix("process"), t.String())
		}
		n.Node.Mark = 0x4000
		Expect(n.Node.Ask(own[0])).To(HavePrefix("usher"), "another mark")
		Expect(n.Check(p)).To(BeZero())
	})

	for _, forwarding := range []string{"0", "1"} {
		It("refuses rejected targets at once, with ip_forward="+forwarding, func() {
			n.Node.Sh("sysctl -qw net.ipv4.ip_forward=" + forwarding + " net.ipv6.conf.all.forwarding=" + forwarding)
			p := k.open(n)
			rejected := []portal.Target{Web4, Web6, DNS4, DNS6, WebNode4, WebNode6}
			var rules []portal.Rule
			for _, t := range rejected {
				rules = append(rules, Reject(t))
			}
			n.Apply(p, rules, nil)
			for _, from := range []*Host{n.Node, n.Pod} {
				for _, t := range []portal.Target{Web4, Web6, DNS4, DNS6, At(WebNode4, NodeIP4), At(WebNode6, NodeIP6)} {
					Expect(from.Ask(t)).To(Equal("refused"), t.String())
				}
			}
			Expect(n.Check(p)).To(BeZero())
		})
	}

	It("redirects a UDP client with an unchanged port to a listener that follows a reject", func() {
		p := k.open(n)
		n.Apply(p, []portal.Rule{Reject(DNS4), Reject(DNS6)}, nil)
		Expect(n.Pod.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("refused"))
		Expect(n.Node.AskFrom(DNS6, 5353, ReplyTimeout)).To(Equal("refused"))
		n.Publish(p, "dns", DNS4, DNS6)
		Expect(n.Pod.AskFrom(DNS4, 5353, ReplyTimeout)).To(Equal("dns"))
		Expect(n.Node.AskFrom(DNS6, 5353, ReplyTimeout)).To(Equal("dns"))
	})

	needsLanding := func() {
		if !k.Lands {
			Skip("this portal has no redirect address")
		}
	}

	DescribeTable("serves and refuses Pods on new interfaces without an address at once,",
		func(kind BareKind, forwarding string) {
			needsLanding()
			n.AddOutside()
			n.Node.Sh("ip route replace default via 10.2.0.2; sysctl -qw net.ipv4.ip_forward=" + forwarding + " net.ipv6.conf.all.forwarding=" + forwarding)
			p := k.open(n)
			n.Publish(p, "web", Web4, Web6, WebNode4, WebNode6)
			n.Publish(p, "dns", DNS4, DNS6)
			rejected := []portal.Target{To(portal.TCP, VIP4, 81), To(portal.TCP, VIP6, 81), To(portal.UDP, VIP4, 81), To(portal.UDP, VIP6, 81)}
			for _, t := range rejected {
				n.Apply(p, []portal.Rule{Reject(t)}, nil)
			}
			for number := range 2 {
				pod := n.AddBarePod(number+2, kind)
				Expect(pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				Expect(pod.Ask(Web6)).To(Equal("web [fd96::10]:80"))
				Expect(pod.Ask(DNS4)).To(Equal("dns"))
				Expect(pod.Ask(DNS6)).To(Equal("dns"))
				Expect(pod.Ask(At(WebNode4, NodeIP4))).To(Equal("web 10.1.0.1:30080"))
				Expect(pod.Ask(At(WebNode6, NodeIP6))).To(Equal("web [fd01::1]:30080"))
				for _, t := range rejected {
					Expect(pod.Ask(t)).To(Equal("refused"), t.String())
				}
			}
			Expect(n.Node.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
			Expect(n.Check(p)).To(BeZero())
		},
		Entry("as Calico creates them", ProxyARP, "1"),
		Entry("as the AWS VPC CNI creates them", StaticNeighbours, "1"),
		Entry("on a node that does not forward", StaticNeighbours, "0"),
	)

	It("keeps open connections when the node's addresses change", func() {
		needsLanding()
		p := k.open(n)
		binds := p.Listen("default/web", []portal.Target{Web4})
		n.Node.Do(func() {
			l, err := net.Listen("tcp4", "0.0.0.0:0")
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(l.Close)
			raw, err := l.(*net.TCPListener).SyscallConn()
			Expect(err).NotTo(HaveOccurred())
			Expect(raw.Control(func(fd uintptr) { err = forward.SetTransparent(int(fd), portal.IPv4.Any()) })).To(Succeed())
			Expect(err).NotTo(HaveOccurred())
			Expect(binds[0].Addr.Addr()).To(Equal(portal.IPv4.Any()))
			Expect(p.Apply(Background, []portal.Rule{Redirect(Web4, l.Addr().(*net.TCPAddr).AddrPort().Port())}, nil)).To(BeDone())
			var client net.Conn
			n.Pod.Do(func() {
				client, err = net.Dial("tcp4", "10.96.0.10:80")
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(client.Close)
			})
			server, err := l.Accept()
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(server.Close)
			n.Node.Sh("ip addr add 10.1.0.7/24 dev pod0; ip addr del 10.1.0.1/24 dev pod0; ip addr replace 10.1.0.7/24 dev pod0")
			n.Pod.Sh("ip route replace default via 10.1.0.7")
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				way[1].SetDeadline(time.Now().Add(ReplyTimeout))
				_, err := io.WriteString(way[0], "x")
				Expect(err).NotTo(HaveOccurred())
				Expect(way[1].Read(make([]byte, 1))).To(Equal(1))
			}
		})
	})

	It("restores the route for the redirect address after another program removed it", func() {
		needsLanding()
		p := k.open(n)
		n.Publish(p, "web", Web4, Web6)
		n.Node.Sh("ip route del local 192.0.0.117 table local; ip -6 route del local fd75:7368:6572::1 table local")
		Expect(n.Check(p)).To(Equal(2))
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		Expect(n.Pod.Ask(Web6)).To(Equal("web [fd96::10]:80"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("does not change the kernel when the given rules are already installed", func() {
		needsLanding()
		p := k.open(n)
		_, rules := n.Publish(p, "web", Web4, Web6)
		n.Node.Sh("ip route del local 192.0.0.117 table local; ip -6 route del local fd75:7368:6572::1 table local")
		n.Apply(p, rules, nil)
		Expect(n.Node.Sh("ip route show table local; ip -6 route show table local")).NotTo(Or(ContainSubstring("192.0.0.117"), ContainSubstring("fd75:7368")))
		Expect(n.Check(p)).To(Equal(2), "Check repairs changes by other programs")
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
	})

	Describe("to preserve client addresses,", func() {
		parts := func(p portal.Portal) (all []portal.Part) {
			GinkgoHelper()
			n.Node.Do(func() {
				var err error
				all, err = p.(portal.PartsComparer).CompareParts(Background)
				Expect(err).NotTo(HaveOccurred())
			})
			return all
		}
		allOK := HaveEach(HaveField("State", portal.StateOK))
		BeforeEach(func() {
			n.Node.Sh("ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.245.7.1/24 dev cni0; ip addr add fd00:245::1/64 dev cni0 nodad")
			k.opts.Aliases = Prefixes("198.18.0.0/15", "fd75:7368:6572:8000::/49")
		})

		It("installs rules that route replies to this node, reports damage, and repairs it", func() {
			p := k.open(n)
			Expect(parts(p)).To(BeEmpty(), "nothing is wanted yet")
			n.Publish(p, "web", Web4, Web6)
			listeners := 0 // chains for them: one with a redirect address, one to accept packets that others would drop
			if settings(p)[0].RedirectAddr.IsValid() {
				listeners = 1
			}
			if k.Accepts {
				listeners++
			}
			Expect(parts(p)).To(And(HaveLen(2*(5+3+listeners)), allOK))
			Expect(parts(p)).To(ContainElements(
				portal.Part{Family: portal.IPv4, Name: "routing rule 116", State: portal.StateOK, Text: "116: from all fwmark 0x1000/0x1000 iif lo goto 118"},
				portal.Part{Family: portal.IPv6, Name: "route of table 117117", State: portal.StateOK, Text: "local default dev lo"},
				HaveField("Text", And(ContainSubstring("198.19.7.0/24"), ContainSubstring("10.245.7.0/24"))),
				HaveField("Text", And(ContainSubstring("fd75:7368:6572:8000::/64"), ContainSubstring("fd00:245::/64")))))
			n.Node.Sh(k.Wipe + "; ip rule del pref 117; ip -6 rule del pref 115; ip -6 route flush table 117117; ip rule add pref 117 fwmark 0x40/0x40 lookup 117117")
			var wrong []string
			for _, part := range parts(p) {
				if strings.Contains(strings.ToLower(part.Name), "listeners") {
					Expect(part.State == portal.StateOK).To(Equal(part.Family == portal.IPv6), part.Name)
				} else if part.State != portal.StateOK {
					wrong = append(wrong, fmt.Sprint(part.Family, " ", part.Name, " ", part.State))
				}
			}
			Expect(wrong).To(ConsistOf("IPv4 routing rule 117 missing", "IPv4 routing rule 117 extra", "IPv6 routing rule 115 missing", "IPv6 route of table 117117 missing",
				MatchRegexp(`(?i)^IPv4 chain (usher-)?sent .* missing$`), MatchRegexp(`(?i)^IPv4 chain (usher-)?answers .* missing$`), MatchRegexp(`(?i)^IPv4 chain (usher-)?aliases .* missing$`)))
			Expect(n.Check(p)).To(BeNumerically(">=", 4))
			n.Node.Sh("ip rule del pref 117 fwmark 0x40/0x40")
			Expect(parts(p)).To(allOK)
			Expect(n.Check(p)).To(BeZero())
		})

		It("keeps aliases for the existing bridges", func() {
			p := k.open(n)
			n.Publish(p, "web", Web4)
			n.Node.Sh("ip link add docker0 type bridge; ip link set docker0 up; ip addr add 172.16.0.1/16 dev docker0")
			Expect(n.Check(p)).To(BeNumerically(">=", 1))
			Expect(parts(p)).To(And(allOK, ContainElement(HaveField("Text", And(ContainSubstring("10.245.7.0/24"), ContainSubstring("172.16.0.0/16"))))))
			n.Node.Sh("ip link del cni0")
			n.Check(p)
			Expect(parts(p)).NotTo(ContainElement(HaveField("Text", ContainSubstring("10.245.7.0/24"))))
			Expect(n.Check(p)).To(BeZero())
		})

		It("removes unwanted rules and those for another mark, and keeps other programs' rules", func() {
			rules := func() string { return n.Node.Sh("ip rule; ip -6 rule") }
			before := rules()
			n.Node.Sh("ip rule add pref 116 fwmark 0x1000/0x1000 lookup 99")
			others := rules()
			set := []portal.Rule{Redirect(Web4, 4000), Redirect(Web6, 4000)}
			n.Apply(k.open(n), set, nil)
			k.opts.Mark = 0x10000
			other := k.open(n)
			n.Apply(other, set, nil)
			Expect(parts(other)).To(allOK)
			Expect(n.Node.State()).NotTo(ContainSubstring("lookup 117117 proto 117 fwmark 0x1000/"))
			k.opts.NodeAddress = true
			node := k.open(n)
			n.Apply(node, set, nil)
			Expect(slices.DeleteFunc(parts(node), func(p portal.Part) bool {
				name := strings.ToLower(p.Name)
				return strings.Contains(name, "listeners") || strings.Contains(name, "accept")
			})).To(BeEmpty())
			Expect(n.Node.State()).NotTo(ContainSubstring("117117"))
			n.Remove(node)
			Expect(rules()).To(Equal(others))
			n.Node.Sh("ip rule del pref 116")
			Expect(rules()).To(Equal(before))
		})
	})

	It("drops new connections of all clients to a dropped target", func() {
		outside := n.AddOutside()
		p := k.open(n)
		n.Publish(p, "web", Web4, Web6, WebNode4)
		n.Publish(p, "dns", DNS4)
		n.Apply(p, []portal.Rule{Drop(Web4), Drop(Web6), Drop(WebNode4), Drop(DNS4)}, nil)
		for _, from := range []*Host{n.Node, n.Pod, outside} {
			Expect(from.AskFrom(Web4, 0, Soon)).To(Equal("silence"))
			Expect(from.AskFrom(Web6, 0, Soon)).To(Equal("silence"))
			Expect(from.AskFrom(At(WebNode4, NodeIP4), 0, Soon)).To(Equal("silence"))
		}
		Expect(n.Pod.AskFrom(DNS4, 0, Soon)).To(Equal("silence"))
		Expect(n.Node.AskFrom(DNS4, 0, Soon)).To(ContainSubstring("not permitted"))
		n.Apply(p, nil, []portal.Target{Web4, Web6, WebNode4, DNS4})
		Expect(k.Limits(n)).To(BeZero())
	})

	It("redirects clients on this node for a dropped target with a local port, and drops others", func() {
		outside := n.AddOutside()
		p := k.open(n)
		_, rules := n.Publish(p, "web", Web4, Web6, WebNode4, WebNode6)
		for i := range rules {
			rules[i].Action = portal.Drop
		}
		n.Apply(p, rules, nil)
		expect := func(who *Host, web bool) {
			GinkgoHelper()
			for t, answer := range map[portal.Target]string{
				Web4: "web 10.96.0.10:80", Web6: "web [fd96::10]:80",
				At(WebNode4, NodeIP4): "web 10.1.0.1:30080", At(WebNode6, NodeIP6): "web [fd01::1]:30080",
			} {
				patience := ReplyTimeout
				if !web {
					answer, patience = "silence", Soon
				}
				Expect(who.AskFrom(t, 0, patience)).To(Equal(answer), t.String())
			}
		}
		expect(n.Node, true)
		expect(n.Pod, false)
		expect(outside, false)
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(Equal("web 127.0.0.1:30080"))

		By("setting the ranges of this node's Pods")
		p.Set(func(s *portal.Settings) { s.LocalSources = Prefixes("10.1.0.77/24", "fd01::/64") })
		n.Apply(p, nil, nil)
		expect(n.Node, true)
		expect(n.Pod, true)
		expect(outside, false)
		Expect(n.Check(p)).To(BeZero())

		By("flushing the rules")
		n.Node.Sh(k.Wipe)
		Expect(n.Check(p)).To(BeNumerically(">", 0))
		expect(n.Pod, true)
		expect(outside, false)

		By("clearing the ranges of Pods")
		p.Set(func(s *portal.Settings) { s.LocalSources = nil })
		Expect(n.Check(p)).To(BeNumerically(">", 0))
		expect(n.Pod, false)

		By("redirecting all clients again")
		for i := range rules {
			rules[i].Action = portal.Redirect
		}
		n.Apply(p, rules, nil)
		expect(outside, true)
		Expect(k.Limits(n)).To(BeZero())
	})

	for _, interfaces := range []portal.Interfaces{"pod0", "pod+"} {
		It("redirects packets from "+string(interfaces)+" to a dropped target with a local port, and drops others", func() {
			outside := n.AddOutside()
			k.opts.PodInterfaces = interfaces
			p := k.open(n)
			_, rules := n.Publish(p, "web", Web4, Web6)
			for i := range rules {
				rules[i].Action = portal.Drop
			}
			n.Apply(p, rules, nil)
			later := NewHost()
			n.Node.Connect("pod00", later)
			n.Node.Sh("ip addr add 10.3.0.1/24 dev pod00; ip addr add fd03::1/64 dev pod00 nodad; ip link set pod00 up")
			later.Sh(`ip addr add 10.3.0.2/24 dev eth0; ip addr add fd03::2/64 dev eth0 nodad; ip link set eth0 up
				ip route add default via 10.3.0.1; ip -6 route add default via fd03::1`)
			for t, answer := range map[portal.Target]string{Web4: "web 10.96.0.10:80", Web6: "web [fd96::10]:80"} {
				Expect(n.Pod.Ask(t)).To(Equal(answer))
				Expect(n.Node.Ask(t)).To(Equal(answer))
				Expect(outside.AskFrom(t, 0, Soon)).To(Equal("silence"))
				if interfaces == "pod0" {
					Expect(later.AskFrom(t, 0, Soon)).To(Equal("silence"), "the interface name differs")
				} else {
					Expect(later.Ask(t)).To(Equal(answer), "without a rule change")
				}
			}
			Expect(n.Check(p)).To(BeZero())
			n.Node.Sh(k.Wipe)
			Expect(n.Check(p)).To(BeNumerically(">", 0))
			Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))
			Expect(outside.AskFrom(Web4, 0, Soon)).To(Equal("silence"))
		})
	}

	It("drops clients outside a rule's sources", func() {
		outside := n.AddOutside()
		p := k.open(n)
		_, rules := n.Publish(p, "web", Web4, Web6)
		for i := range rules {
			rules[i].Sources = portal.SourcesOf(Prefixes("10.2.0.0/24", "fd02::/64", "192.0.2.0/24"))
		}
		n.Apply(p, rules, nil)
		n.Publish(p, "dns", DNS4)
		for _, t := range []portal.Target{Web4, Web6} {
			Expect(outside.Ask(t)).To(HavePrefix("web"))
			Expect(n.Pod.AskFrom(t, 0, Soon)).To(Equal("silence"))
			Expect(n.Node.AskFrom(t, 0, Soon)).To(Equal("silence"), "this node is no exception")
		}
		Expect(n.Pod.Ask(DNS4)).To(Equal("dns"), "another port of the same VIP")
		Expect(n.Check(p)).To(BeZero())

		By("changing the sources")
		for i := range rules {
			rules[i].Sources = portal.SourcesOf(Prefixes("10.1.0.1/32", "fd01::1/128"))
		}
		n.Apply(p, rules, nil)
		for _, t := range []portal.Target{Web4, Web6} {
			Expect(outside.AskFrom(t, 0, Soon)).To(Equal("silence"))
			Expect(n.Node.Ask(t)).To(HavePrefix("web"))
		}

		By("dropping clients in the sources that are not on this node")
		for i := range rules {
			rules[i].Action = portal.Drop
			rules[i].Sources = portal.SourcesOf(Prefixes("10.0.0.0/8", "fd00::/8"))
		}
		p.Set(func(s *portal.Settings) { s.LocalSources = Prefixes("10.1.0.0/24", "fd01::/64") })
		n.Apply(p, rules, nil)
		for _, t := range []portal.Target{Web4, Web6} {
			Expect(outside.AskFrom(t, 0, Soon)).To(Equal("silence"))
			Expect(n.Pod.Ask(t)).To(HavePrefix("web"))
		}
	})

	It("reuses ports and rules of the previous process, and removes unwanted rules", func() {
		first := k.open(n)
		targets := []portal.Target{Web4, Web6, WebNode4, WebNode6}
		binds, _ := n.Publish(first, "web", targets...)
		n.Apply(first, []portal.Rule{Redirect(Target(portal.TCP, "10.96.0.99:80"), 999), Reject(DNS4)}, nil)

		second := k.open(n)
		again := second.Listen("default/web", targets)
		Expect(again).To(HaveLen(2))
		for i, b := range again {
			Expect(b.Addr).To(Equal(binds[i].Addr))
			Expect(b.Preferred).To(BeTrue())
		}
		Expect(second.Listen("default/web", []portal.Target{DNS4})[0].Addr.Port()).To(BeZero(), "a rejected target had no port")
		Expect(n.Check(second)).To(BeZero(), "nothing is changed before the first Apply")
		Expect(k.Saved(n)).To(ContainSubstring("10.96.0.99"))

		var rules []portal.Rule
		for _, b := range again {
			for _, t := range b.Targets {
				rules = append(rules, portal.Rule{Target: t, LocalPort: b.Addr.Port(), Comment: "default/web:http"})
			}
		}
		n.Apply(second, rules, nil)
		Expect(k.Saved(n)).NotTo(ContainSubstring("10.96.0.99"))
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		Expect(n.Pod.Ask(At(WebNode6, NodeIP6))).To(Equal("web [fd01::1]:30080"))
		Expect(n.Check(second)).To(BeZero())
	})

	It("selects a port of the range, and the same one for the same target", func() {
		k.opts.ProxyPorts = portal.PortRange{First: 41000, Last: 41009}
		p := k.open(n)
		b := p.Listen("default/web", []portal.Target{Web4})[0]
		Expect(b.Addr.Port()).To(And(BeNumerically(">=", 41000), BeNumerically("<=", 41009)))
		Expect(b.Preferred).To(BeTrue())
		Expect(k.open(n).Listen("default/web", []portal.Target{Web4})[0]).To(Equal(b))
	})

	It("frees the port of a rule of the previous process that is no longer wanted", func() {
		k.opts.ProxyPorts = portal.PortRange{First: 41000, Last: 41000}
		n.Apply(k.open(n), []portal.Rule{Redirect(Target(portal.TCP, "10.96.0.99:80"), 41000)}, nil)
		p := k.open(n)
		Expect(p.Listen("default/web", []portal.Target{Web4})[0].Addr.Port()).To(BeZero())
		n.Apply(p, nil, nil)
		Expect(p.Listen("default/web", []portal.Target{Web4})[0].Addr.Port()).To(BeEquivalentTo(41000))
	})

	It("rejects unused addresses and ports of the service CIDRs while these are set", func() {
		n.AddOutside()
		n.Node.Sh(`sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 # as on each node of a cluster
			ip route replace default via 10.2.0.2; ip -6 route del default; ip -6 route add default via fd02::2`)
		before := n.Node.State()
		p := k.open(n)
		_, rules := n.Publish(p, "web", Web4, Web6)
		unused4, unused6 := netip.MustParseAddr("10.96.7.7"), netip.MustParseAddr("fd96::77")
		unused := []portal.Target{To(portal.TCP, VIP4, 4711), To(portal.UDP, VIP4, 4711), To(portal.TCP, VIP6, 4711), To(portal.UDP, VIP6, 4711),
			To(portal.TCP, unused4, 80), To(portal.UDP, unused4, 53), To(portal.TCP, unused6, 80), To(portal.UDP, unused6, 53)}
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.AskFrom(To(portal.TCP, unused4, 80), 0, Soon)).To(Equal("silence"))
			Expect(from.AskFrom(To(portal.TCP, unused6, 80), 0, Soon)).To(Equal("silence"))
		}
		p.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16", "fd96::/112") })
		n.Apply(p, nil, nil)
		rejects := func() {
			GinkgoHelper()
			for _, from := range []*Host{n.Node, n.Pod} {
				for _, t := range unused {
					// UDP from the node itself can fail with EPERM on sending.
					Expect(from.AskFrom(t, 0, ReplyTimeout)).To(Or(Equal("refused"), HaveSuffix(unix.EPERM.Error())), t.String())
				}
				Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
				Expect(from.AskFrom(To(portal.TCP, netip.MustParseAddr("10.97.0.1"), 80), 0, Soon)).To(Equal("silence"), "outside the CIDRs")
			}
		}
		rejects()
		Expect(n.Check(p)).To(BeZero())

		By("leaving a node address and another proxy's redirect alone")
		n.Node.Sh("ip addr add 10.96.0.99/32 dev lo; nft 'add table ip other; add chain ip other out { type nat hook output priority -100; }; add rule ip other out ip daddr 10.96.0.88 dnat to 10.96.0.99'")
		own := To(portal.TCP, netip.MustParseAddr("10.96.0.99"), 4711)
		n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(own.Addr, own.Port), Targets: []portal.Target{own}}, "own")
		Expect(n.Node.Ask(own)).To(HavePrefix("own"))
		Expect(n.Node.Ask(At(own, netip.MustParseAddr("10.96.0.88")))).To(HavePrefix("own"))
		n.Node.Sh("ip addr del 10.96.0.99/32 dev lo; nft delete table ip other")

		By("taking over in another process")
		again := k.open(n)
		again.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16", "fd96::/112") })
		n.Apply(again, rules, nil)
		rejects()
		Expect(n.Check(again)).To(BeZero())

		By("clearing the CIDRs")
		again.Set(func(s *portal.Settings) { s.ServiceCIDRs = nil })
		n.Apply(again, nil, nil)
		Expect(n.Pod.AskFrom(To(portal.TCP, unused4, 80), 0, Soon)).To(Equal("silence"))
		Expect(n.Pod.AskFrom(To(portal.TCP, unused6, 80), 0, Soon)).To(Equal("silence"))
		Expect(n.Check(again)).To(BeZero())

		By("removing the portal")
		again.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16", "fd96::/112") })
		n.Apply(again, nil, nil)
		n.Remove(again)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("leaves nothing behind after it is removed", func() {
		before := n.Node.State()
		p := k.open(n)
		Expect(n.Node.State()).To(Equal(before), "after New")
		_, rules := n.Publish(p, "web", Web4, Web6, WebNode4, WebNode6)
		rules[0].Action = portal.Drop
		n.Apply(p, rules, nil)
		Expect(n.Node.State()).NotTo(Equal(before))
		n.Remove(p)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("serves node ports only at the configured addresses", func() {
		n.AddOutside()
		k.opts.NodePortAddresses = Prefixes("10.1.0.0/16", "fd01::/64")
		p := k.open(n)
		n.Publish(p, "web", WebNode4, WebNode6, Web4)
		later := netip.MustParseAddr("10.1.77.1")
		n.Node.Sh("ip addr add 10.1.77.1/32 dev lo")
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(At(WebNode4, NodeIP4))).To(Equal("web 10.1.0.1:30080"))
			Expect(from.Ask(At(WebNode4, later))).To(Equal("web 10.1.77.1:30080"))
			Expect(from.Ask(At(WebNode6, NodeIP6))).To(Equal("web [fd01::1]:30080"))
			Expect(from.Ask(At(WebNode4, netip.MustParseAddr("10.2.0.1")))).To(Equal("refused"))
			Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		}
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(Equal("refused"))
		Expect(n.Node.Ask(At(WebNode6, netip.IPv6Loopback()))).To(Equal("refused"))
		n.Node.Sh("ip addr del 10.1.77.1/32 dev lo")
		Expect(n.Check(p)).To(BeZero())
		Expect(n.Node.AskFrom(At(WebNode4, later), 0, Soon)).To(Equal("silence"))

		By("configuring other addresses")
		p.Set(func(s *portal.Settings) { s.NodePortAddresses = Prefixes("127.0.0.0/8", "::1/128") })
		n.Apply(p, nil, nil)
		Expect(n.Pod.Ask(At(WebNode4, NodeIP4))).To(Equal("refused"))
		Expect(n.Pod.Ask(At(WebNode6, NodeIP6))).To(Equal("refused"))
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(Equal("web 127.0.0.1:30080"))
		Expect(n.Check(p)).To(BeZero())
		p.Set(func(s *portal.Settings) { s.NodePortAddresses = Prefixes("::/128") })
		n.Apply(p, nil, nil)
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(Equal("refused"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("reinstalls flushed rules with the next change", func() {
		p := k.open(n)
		n.Publish(p, "web", Web4)
		n.Node.Sh(k.Wipe)
		n.Publish(p, "dns", DNS4)
		Expect(n.Check(p)).To(BeNumerically(">=", 0))
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		Expect(n.Pod.Ask(DNS4)).To(Equal("dns"))
	})

	DescribeTable("recognizes each kind of rule in the kernel's output,",
		func(have func(*redirect.Setting)) {
			p := k.open(n)
			for _, at := range settings(p) {
				have(at)
			}
			_, rules := n.Publish(p, "web", Web4, Web6, WebNode4, WebNode6)
			rules[0].Comment = strings.Repeat("long \"quoted\" ", 30)
			rules = append(rules,
				Redirect(Target(portal.UDP, "[fd00::]:53"), 4000), Redirect(Target(portal.TCP, "[2001:db8:0:0:1::1]:65535"), 65535),
				Reject(Target(portal.SCTP, "1.2.3.4:1")), Drop(Target(portal.UDP, "[fd96::11]:7")), Drop(Target(portal.TCP, "0.0.0.0:31000")))
			for i := range 300 {
				rules = append(rules, Redirect(Target(portal.TCP, fmt.Sprintf("[fd96::1:%x]:80", i)), 4001),
					Redirect(To([]portal.Protocol{portal.TCP, portal.UDP}[i%2], VIP4, uint16(1000+i)), 4002))
			}
			sctp := []portal.Rule{Redirect(To(portal.SCTP, VIP4, 80), 4000), Redirect(To(portal.SCTP, VIP6, 80), 4000), Redirect(To(portal.SCTP, portal.IPv4.Any(), 30081), 4000)}
			if settings(p)[0].RedirectAddr.IsValid() {
				rules = append(rules, sctp...)
			} else {
				refusesSCTP(n, p, sctp)
			}
			n.Apply(p, rules, nil)
			Expect(n.Check(p)).To(BeZero())
			for _, from := range []*Host{n.Node, n.Pod} {
				Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
				Expect(from.Ask(At(WebNode4, NodeIP4))).To(Equal("web 10.1.0.1:30080"))
				Expect(from.Ask(At(WebNode6, NodeIP6))).To(Equal("web [fd01::1]:30080"))
			}
			Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(Equal("web 127.0.0.1:30080"))
		},
		Entry("with all optional matches", func(*redirect.Setting) {}),
		Entry("without a redirect address", func(m *redirect.Setting) { m.RedirectAddr = netip.Addr{} }),
		Entry("without comments", func(m *redirect.Setting) { m.Comment = false }),
	)

	It("redirects the node's own packets to VIPs with and without a route to them", func() {
		p := k.open(n)
		n.Publish(p, "web", Web4, Web6)
		n.Publish(p, "dns", DNS4, DNS6)
		other := Target(portal.TCP, "10.96.0.11:80")
		n.Apply(p, []portal.Rule{Reject(other)}, nil)
		served := func(who ...*Host) {
			GinkgoHelper()
			for _, from := range who {
				Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
				Expect(from.Ask(DNS4)).To(Equal("dns"))
				Expect(from.Ask(DNS6)).To(Equal("dns"))
			}
		}
		last := func() string {
			return n.Node.Sh("ip rule; ip -6 rule; ip route show table 117118 2>&1; ip -6 route show table 117118 2>&1; true")
		}
		Expect(last()).NotTo(Or(ContainSubstring("117118"), ContainSubstring("10.96.0.10")), "with a default route")
		notified := n.Watch(p)
		after := func(what string) int {
			GinkgoHelper()
			By(what)
			n.Node.Sh(what)
			Eventually(notified, 10*time.Second).Should(Receive())
			return n.Check(p)
		}

		Expect(after("ip route del default; ip -6 route del default")).To(BeZero(), "none of usher's rules was removed")
		served(n.Node, n.Pod)
		Expect(n.Node.Ask(other)).To(Equal("refused"))
		Expect(last()).To(And(ContainSubstring("10.96.0.11 dev lo proto 117"), ContainSubstring("fd96::10 dev lo proto 117")))
		n.Apply(p, nil, []portal.Target{other})
		Expect(last()).NotTo(ContainSubstring("10.96.0.11"))
		for _, damage := range []string{"ip rule del pref 32768", "ip -6 route flush table 117118", "ip link set lo down; ip link set lo up"} {
			repaired := after(damage) // the notification may belong to an earlier change: two commands can cause two
			Eventually(func() int { repaired += n.Check(p); return repaired }, 10*time.Second).Should(BeNumerically(">", 0))
			served(n.Node)
		}
		var parts []portal.Part
		n.Node.Do(func() {
			var err error
			parts, err = p.(portal.PartsComparer).CompareParts(Background)
			Expect(err).NotTo(HaveOccurred())
		})
		Expect(parts).To(ContainElement(portal.Part{Family: portal.IPv6, Name: "routes of table 117118", State: portal.StateOK, Text: "1 VIPs dev lo"}))

		n.Node.Sh("ip link set pod0 down")
		served(n.Node)
		after("ip addr flush dev pod0") // only lo is left
		served(n.Node)
		after("ip addr add 10.1.0.1/24 dev pod0; ip addr add fd01::1/64 dev pod0 nodad; ip link set pod0 up")
		served(n.Node, n.Pod)

		Expect(after("ip route add default via 10.1.0.2; ip -6 route add default via fd01::2")).To(BeZero(), "nothing was missing")
		Eventually(func() string { n.Check(p); return last() }).ShouldNot(Or(ContainSubstring("lookup 117118"), ContainSubstring("10.96.0.10")))
		served(n.Node, n.Pod)
		after("ip route del default")
		n.Remove(p)
		Expect(last()).NotTo(Or(ContainSubstring("lookup 117118"), ContainSubstring("10.96.0.10")))
	})

	It("is fast with 10,000 rules", Label("slow"), func() {
		p := k.open(n)
		rules := ManyRules(10000)
		took := func(f func()) time.Duration {
			began := time.Now()
			f()
			return time.Since(began)
		}
		within := func(most time.Duration, what string, took ...time.Duration) {
			GinkgoHelper()
			AddReportEntry(fmt.Sprintf("%s, 10,000 rules: %s: %v", k.Name, what, took))
			// The limit is ten times as high because other packages are tested at the same time. test/scale has the targets.
			Expect(slices.Min(took)).To(BeNumerically("<", 10*most), what)
		}
		measure := func(what string, most time.Duration, f func()) {
			GinkgoHelper()
			within(most, what, took(f))
		}
		measure("first apply", k.First, func() { n.Apply(p, rules, nil) })
		measure("check", 3*time.Second, func() { Expect(n.Check(p)).To(BeZero()) })
		one := To(portal.TCP, VIP4, 80)
		var added, removed []time.Duration
		for range 3 {
			var binds []portal.Bind
			added = append(added, took(func() { binds, _ = n.Publish(p, "web", one) }))
			Expect(binds).NotTo(BeEmpty())
			Expect(n.Pod.Ask(one)).To(Equal("web 10.96.0.10:80"))
			removed = append(removed, took(func() { n.Apply(p, nil, []portal.Target{one}) }))
		}
		within(k.One, "one added", added...)
		within(k.One, "one removed", removed...)
		var second portal.Portal
		measure("a new process starts", time.Second, func() { second = k.open(n) })
		measure("its first apply, nothing changed", 3*time.Second, func() { n.Apply(second, rules, nil) })
		Expect(second.Listen("default/web", []portal.Target{rules[9999].Target})[0].Addr.Port()).To(Equal(rules[9999].LocalPort))
		measure("remove", 3*time.Second, func() { n.Remove(second) })
	})
}

// refusesSCTP expects that SCTP rules are refused each time, and other rules are not:
// an SCTP listener needs the redirect address, and here there is none.
func refusesSCTP(n *Net, p portal.Portal, rules []portal.Rule) {
	GinkgoHelper()
	n.Node.Do(func() {
		for _, ask := range []func() portal.Result{
			func() portal.Result { return p.Apply(Background, append(rules, Reject(DNS4)), nil) },
			func() portal.Result { return p.Check(Background) },
		} {
			refused := ask().Refused
			Expect(refused).To(HaveLen(len(rules)))
			for _, r := range rules {
				Expect(refused[r.Target]).To(MatchError(ContainSubstring("--portal=address")))
			}
		}
	})
	gone := []portal.Target{DNS4}
	for _, r := range rules {
		gone = append(gone, r.Target)
	}
	n.Apply(p, nil, gone)
}
