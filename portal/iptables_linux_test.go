package portal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

var (
	vip4, vip6           = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")
	web4, web6           = Target{TCP, vip4, 80}, Target{TCP, vip6, 80}
	dns4, dns6           = Target{UDP, vip4, 53}, Target{UDP, vip6, 53}
	webNode4, webNode6   = Target{TCP, anyIPv4, 30080}, Target{TCP, anyIPv6, 30080}
	nodeIP4, nodeIP6     = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")
	localhost4           = netip.MustParseAddr("127.0.0.1")
	background           = context.Background()
	iptablesVariantNames = []string{"nft", "legacy"}
)

// open makes a portal on the node.
func (n *testNet) open(mode string, opts Options) Portal {
	GinkgoHelper()
	var p Portal
	n.node.do(func() {
		var err error
		p, err = New(background, mode, opts)
		Expect(err).NotTo(HaveOccurred())
	})
	return p
}

// publish opens the listeners for targets and the portal to them.
func (n *testNet) publish(p Portal, word string, targets ...Target) (binds []Bind, rules []Rule) {
	GinkgoHelper()
	binds = p.Listen(targets)
	for i, b := range binds {
		port := n.node.serve(b, word)
		binds[i].Addr = netip.AddrPortFrom(b.Addr.Addr(), port)
		for _, t := range b.Targets {
			rules = append(rules, Rule{Target: t, LocalPort: port, Comment: "default/" + word + ":http"})
		}
	}
	n.apply(p, rules, nil)
	return binds, rules
}

func (n *testNet) apply(p Portal, set []Rule, gone []Target) {
	GinkgoHelper()
	n.node.do(func() { Expect(p.Apply(background, set, gone)).To(Succeed()) })
}

func (n *testNet) check(p Portal) int {
	GinkgoHelper()
	var repaired int
	n.node.do(func() {
		var err error
		repaired, err = p.Check(background)
		Expect(err).NotTo(HaveOccurred())
	})
	return repaired
}

func (n *testNet) remove(p Portal) {
	GinkgoHelper()
	n.node.do(func() { Expect(p.Remove(background)).To(Succeed()) })
}

func at(t Target, addr netip.Addr) Target { t.Addr = addr; return t }

var _ = Describe("portal iptables", func() {
	for _, variant := range iptablesVariantNames {
		Context("by iptables-"+variant, func() {
			var n *testNet
			var opts Options
			BeforeEach(func() {
				for _, c := range []string{"iptables-" + variant, "ip6tables-" + variant, "nft"} {
					if _, err := exec.LookPath(c); err != nil {
						Skip("needs " + c)
					}
				}
				n = newTestNet()
				opts = Options{IPTablesVariant: variant}
			})
			save := func(six, table string) string {
				return n.node.sh("ip" + six + "tables-" + variant + "-save -t " + table)
			}

			It("brings TCP and UDP from the node and from a Pod to the listener, which learns where they wanted to go", func() {
				p := n.open(ModeIPTables, opts)
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
				p := n.open(ModeIPTables, opts)
				binds, _ := n.publish(p, "web", web4)
				Expect(binds).To(HaveLen(1))
				Expect(binds[0].Redirected).To(BeTrue())
				direct := Target{TCP, nodeIP4, binds[0].Addr.Port()}
				// conntrack knows the connection, with itself as destination.
				Expect(n.pod.ask(direct)).To(Equal(fmt.Sprintf("web 10.1.0.1:%d", direct.Port)))
			})

			for _, forwarding := range []string{"0", "1"} {
				It("refuses rejected targets at once, with ip_forward="+forwarding, func() {
					n.node.sh("sysctl -qw net.ipv4.ip_forward=" + forwarding + " net.ipv6.conf.all.forwarding=" + forwarding)
					p := n.open(ModeIPTables, opts)
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
				p := n.open(ModeIPTables, opts)
				n.apply(p, []Rule{reject(dns4), reject(dns6)}, nil)
				Expect(n.pod.askFrom(dns4, 5353, time.Second)).To(Equal("refused"))
				Expect(n.node.askFrom(dns6, 5353, time.Second)).To(Equal("refused"))
				n.publish(p, "dns", dns4, dns6)
				Expect(n.pod.askFrom(dns4, 5353, time.Second)).To(Equal("dns"))
				Expect(n.node.askFrom(dns6, 5353, time.Second)).To(Equal("dns"))
			})

			// soon is how long to wait for an answer that is not to come.
			const soon = 200 * time.Millisecond

			DescribeTable("serves and refuses Pods behind interfaces without an address, at once when such interfaces appear",
				func(kind bareKind, forwarding string) {
					n.addOutside()
					n.node.sh("ip route replace default via 10.2.0.2; sysctl -qw net.ipv4.ip_forward=" + forwarding + " net.ipv6.conf.all.forwarding=" + forwarding)
					p := n.open(ModeIPTables, opts)
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
				p := n.open(ModeIPTables, opts)
				binds := p.Listen([]Target{web4})
				n.node.do(func() {
					l, err := net.Listen("tcp4", "0.0.0.0:0")
					Expect(err).NotTo(HaveOccurred())
					DeferCleanup(l.Close)
					Expect(binds[0].Addr.Addr()).To(Equal(anyIPv4))
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
				p := n.open(ModeIPTables, opts)
				n.publish(p, "web", web4, web6)
				n.node.sh("ip route del local 169.254.117.115 table local; ip -6 route del local fd75:7368:6572::1 table local")
				Expect(n.check(p)).To(Equal(2))
				Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(n.pod.ask(web6)).To(Equal("web [fd96::10]:80"))
				Expect(n.check(p)).To(BeZero())
			})

			It("uses REDIRECT where iptables takes no DNAT to port 0, and warns of interfaces from which the kernel drops that", func() {
				// An iptables that refuses it, as those before 1.8.8 do.
				bin := GinkgoT().TempDir()
				for _, six := range []string{"", "6"} {
					name := "ip" + six + "tables-" + variant
					real, err := exec.LookPath(name)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.WriteFile(filepath.Join(bin, name), []byte(fmt.Sprintf(
						"#!/bin/sh\ncase \"$*\" in *DNAT*:0*) echo 'Port `0'\"'\"' not valid' >&2; exit 2;; esac\nexec %s \"$@\"\n", real)), 0o755)).To(Succeed())
				}
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())

				log, seen := logtest.NewNullLogger()
				opts.Log = log
				bare := n.addBarePod(2, staticNeighbours)
				p := n.open(ModeIPTables, opts)
				n.publish(p, "web", web4, web6)
				n.apply(p, []Rule{reject(dns4)}, nil)
				messages := []string{}
				for _, e := range seen.AllEntries() {
					messages = append(messages, e.Message)
				}
				Expect(messages).To(ContainElement(ContainSubstring("have no IPv4 address")))
				Expect(save("", "nat")).To(And(ContainSubstring("-j REDIRECT --to-ports"), Not(ContainSubstring("DNAT"))))
				for _, from := range []*host{n.node, n.pod} {
					Expect(from.ask(web4)).To(Equal("web 10.96.0.10:80"))
					Expect(from.ask(web6)).To(Equal("web [fd96::10]:80"))
					Expect(from.ask(dns4)).To(Equal("refused"))
				}
				Expect(bare.askFrom(web4, 0, soon)).To(Equal("silence"), "what the warning is about")

				By("an upgrade of iptables, and a restart")
				Expect(os.Setenv("PATH", path)).To(Succeed())
				second := n.open(ModeIPTables, opts)
				Expect(second.Listen([]Target{web4, web6})).To(Equal(p.Listen([]Target{web4, web6})))
			})

			It("drops new connections to a dropped target, whoever makes them", func() {
				outside := n.addOutside()
				p := n.open(ModeIPTables, opts)
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
				Expect(save("", "mangle")).NotTo(ContainSubstring("USHER-DROP"))
			})

			It("redirects clients of this node to a dropped target that has a local port, and drops others", func() {
				outside := n.addOutside()
				p := n.open(ModeIPTables, opts)
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
				n.node.sh("iptables-" + variant + " -t mangle -F; iptables-" + variant + " -t mangle -X")
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
				Expect(save("", "mangle")).NotTo(ContainSubstring("USHER-DROP"))
			})

			It("drops clients that are not among a rule's sources", func() {
				outside := n.addOutside()
				p := n.open(ModeIPTables, opts)
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

			DescribeTable("serves node ports only at the addresses that it was given",
				func(addrtype bool) {
					n.addOutside()
					opts.NodePortAddresses = prefixes("10.1.0.0/16", "fd01::/64")
					p := n.open(ModeIPTables, opts)
					for _, f := range p.(*iptablesPortal).families {
						f.at.addrtype = addrtype
					}
					n.publish(p, "web", webNode4, webNode6, web4)
					later := netip.MustParseAddr("10.1.77.1")
					n.node.sh("ip addr add 10.1.77.1/32 dev lo")
					if !addrtype {
						Expect(n.check(p)).To(Equal(1))
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
						Expect(n.check(p)).To(Equal(1))
					}
					Expect(n.check(p)).To(BeZero())
					Expect(n.node.askFrom(at(webNode4, later), 0, soon)).To(Equal("silence"))
				},
				Entry("by addrtype", true),
				Entry("by a list, where addrtype is missing", false),
			)

			DescribeTable("repairs what others did to it",
				func(damage string, atLeast int) {
					p := n.open(ModeIPTables, opts)
					n.publish(p, "web", web4, web6, webNode4)
					before := save("", "nat")
					n.node.sh(strings.ReplaceAll(damage, "iptables", "iptables-"+variant))
					Expect(counters.ReplaceAllString(save("", "nat"), "")).NotTo(Equal(counters.ReplaceAllString(before, "")))
					Expect(n.check(p)).To(BeNumerically(">=", atLeast))
					Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
					Expect(n.node.ask(web4)).To(Equal("web 10.96.0.10:80"))
					Expect(n.check(p)).To(BeZero())
				},
				Entry("flushed the table", "iptables -t nat -F", 3),
				Entry("flushed and deleted all chains", "iptables -t nat -F; iptables -t nat -X", 3),
				Entry("deleted the jump in PREROUTING", `iptables -t nat -D PREROUTING 1`, 1),
				Entry("deleted a chain's rules", "iptables -t nat -F USHER-NODEPORTS", 1),
				Entry("deleted one rule", "iptables -t nat -D USHER-PORTALS 1", 1),
				Entry("added a rule of their own to our chain", "iptables -t nat -I USHER-PORTALS 1 -p tcp -j RETURN", 1),
				Entry("put a rule before the jump", "iptables -t nat -I PREROUTING 1 -d 10.96.0.0/16 -j ACCEPT", 1),
				Entry("doubled the jump", "iptables -t nat -A OUTPUT -m comment --comment 'usher: portals of Services' -j USHER-PORTALS", 1),
				Entry("added a chain called like ours", "iptables -t nat -N USHER-OLD; iptables -t nat -A INPUT -j USHER-OLD", 2),
			)

			It("finds the rules gone when it is next given a change, and puts all in", func() {
				p := n.open(ModeIPTables, opts)
				n.publish(p, "web", web4)
				n.node.sh(fmt.Sprintf("iptables-%[1]s -t nat -F; iptables-%[1]s -t nat -X", variant))
				n.publish(p, "dns", dns4)
				Expect(n.check(p)).To(BeNumerically(">=", 0))
				Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(n.pod.ask(dns4)).To(Equal("dns"))
			})

			It("gives up the first place to a program that wants it as much", func() {
				p := n.open(ModeIPTables, opts)
				n.publish(p, "web", web4)
				usurp := fmt.Sprintf("iptables-%[1]s -t nat -D PREROUTING -p 99 -j RETURN 2>/dev/null; iptables-%[1]s -t nat -I PREROUTING 1 -p 99 -j RETURN", variant)
				for range maxMoves - 1 {
					n.node.sh(usurp)
					Expect(n.check(p)).To(Equal(1))
				}
				n.node.sh(usurp)
				Expect(n.check(p)).To(BeZero())
				Expect(n.check(p)).To(BeZero())
			})

			It("takes over ports and rules of the process before it, and removes what is not wanted any more", func() {
				first := n.open(ModeIPTables, opts)
				targets := []Target{web4, web6, webNode4, webNode6}
				binds, _ := n.publish(first, "web", targets...)
				n.apply(first, []Rule{redirect(target(TCP, "10.96.0.99:80"), 999), reject(dns4)}, nil)

				second := n.open(ModeIPTables, opts)
				again := second.Listen(targets)
				Expect(again).To(HaveLen(2))
				for i, b := range again {
					Expect(b.Addr).To(Equal(binds[i].Addr))
					Expect(b.Preferred).To(BeTrue())
				}
				Expect(second.Listen([]Target{dns4})[0].Addr.Port()).To(BeZero(), "a rejected target had no port")
				Expect(n.check(second)).To(BeZero(), "nothing is touched before the first Apply")
				Expect(save("", "nat")).To(ContainSubstring("10.96.0.99"))

				var rules []Rule
				for _, b := range again {
					for _, t := range b.Targets {
						rules = append(rules, Rule{Target: t, LocalPort: b.Addr.Port(), Comment: "default/web:http"})
					}
				}
				n.apply(second, rules, nil)
				Expect(save("", "nat")).NotTo(ContainSubstring("10.96.0.99"))
				Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(n.pod.ask(at(webNode6, nodeIP6))).To(Equal("web [fd01::1]:30080"))
				Expect(n.check(second)).To(BeZero())
			})

			It("keeps to the port range, and to what it says before", func() {
				opts.ProxyPorts = PortRange{41000, 41009}
				p := n.open(ModeIPTables, opts)
				b := p.Listen([]Target{web4})[0]
				Expect(b.Addr.Port()).To(And(BeNumerically(">=", 41000), BeNumerically("<=", 41009)))
				Expect(b.Preferred).To(BeTrue())
				Expect(n.open(ModeIPTables, opts).Listen([]Target{web4})[0]).To(Equal(b))
			})

			DescribeTable("takes what iptables prints of any kind of rule for its own, and says the same without optional matches",
				func(have func(*setting)) {
					p := n.open(ModeIPTables, opts)
					for _, f := range p.(*iptablesPortal).families {
						have(&f.at)
					}
					_, rules := n.publish(p, "web", web4, web6, webNode4, webNode6)
					rules[0].Comment = strings.Repeat("long \"quoted\" ", 30)
					rules = append(rules,
						redirect(Target{SCTP, vip4, 80}, 4000), redirect(Target{SCTP, vip6, 80}, 4000), redirect(Target{SCTP, anyIPv4, 30081}, 4000),
						redirect(target(UDP, "[fd00::]:53"), 4000), redirect(target(TCP, "[2001:db8:0:0:1::1]:65535"), 65535),
						reject(target(SCTP, "1.2.3.4:1")), drop(target(UDP, "[fd96::11]:7")), drop(target(TCP, "0.0.0.0:31000")))
					for i := range 300 {
						rules = append(rules, redirect(target(TCP, fmt.Sprintf("[fd96::1:%x]:80", i)), 4001),
							redirect(Target{[]Protocol{TCP, UDP}[i%2], vip4, uint16(1000 + i)}, 4002))
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

			It("leaves nothing behind", func() {
				before := n.node.state()
				p := n.open(ModeIPTables, opts)
				Expect(n.node.state()).To(Equal(before), "after New")
				_, rules := n.publish(p, "web", web4, web6, webNode4, webNode6)
				rules[0].Action = Drop
				n.apply(p, rules, nil)
				Expect(n.node.state()).NotTo(Equal(before))
				n.remove(p)
				Expect(n.node.state()).To(Equal(before))
			})

			It("leaves what others had, and removes what a process that died has left", func() {
				n.node.sh(strings.ReplaceAll(`
					iptables -t nat -N KUBE-MARK-MASQ
					iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -m comment --comment "to USHER-X \"y\"" -j MASQUERADE
					iptables -t nat -A PREROUTING -p 99 -j ACCEPT
					iptables -A INPUT -p 99 -j ACCEPT`, "iptables", "iptables-"+variant))
				before := n.node.state()
				p := n.open(ModeIPTables, opts)
				n.publish(p, "web", web4, web6)
				n.apply(p, []Rule{drop(dns4)}, nil)
				n.node.sh("ip route add local 10.96.9.9 dev lo table local proto 117")
				n.node.do(func() {
					removed, err := Cleanup(background, nil)
					Expect(err).NotTo(HaveOccurred())
					Expect(removed).To(HaveLen(4), "nat and mangle, nat of IPv6, routes: %v", removed)
				})
				Expect(n.node.state()).To(Equal(before))
				n.node.do(func() {
					Expect(Cleanup(background, nil)).To(BeEmpty())
				})
			})

			It("removes its rules, but not the table, when others use what it made", func() {
				p := n.open(ModeIPTables, opts)
				n.publish(p, "web", web4)
				n.node.sh("iptables-" + variant + " -t nat -A PREROUTING -p 99 -j ACCEPT")
				n.remove(p)
				Expect(save("", "nat")).To(And(ContainSubstring("-A PREROUTING -p 99 -j ACCEPT"), Not(ContainSubstring("USHER"))))
			})

			It("puts in all other rules when the kernel refuses some, names those, and tries them again", func() {
				// An iptables-restore that refuses port 666 stands for a kernel that does.
				bin := GinkgoT().TempDir()
				real, err := exec.LookPath("iptables-" + variant + "-restore")
				Expect(err).NotTo(HaveOccurred())
				refuse := filepath.Join(bin, "refuse")
				Expect(os.WriteFile(refuse, nil, 0o644)).To(Succeed())
				Expect(os.WriteFile(filepath.Join(bin, filepath.Base(real)), []byte(fmt.Sprintf(
					"#!/bin/sh\ninput=$(cat)\nif [ -e %s ]; then case \"$input\" in *'--dport 666 '*) echo 'line 5: RULE_APPEND failed' >&2; exit 1;; esac; fi\necho \"$input\" | %s \"$@\"\n", refuse, real)), 0o755)).To(Succeed())
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())

				p := n.open(ModeIPTables, opts)
				now := time.Now()
				for _, f := range p.(*iptablesPortal).families {
					f.now = func() time.Time { return now }
				}
				_, rules := n.publish(p, "web", web4)
				bad := []Target{{TCP, vip4, 666}, {UDP, netip.MustParseAddr("10.96.0.20"), 666}}
				for _, t := range bad {
					rules = append(rules, redirect(t, 4000))
				}
				for i := range 200 {
					rules = append(rules, redirect(Target{TCP, netip.AddrFrom4([4]byte{10, 97, 0, byte(i)}), 80}, 4001))
				}
				n.node.do(func() {
					err := p.Apply(background, rules, nil)
					var refused *RuleError
					Expect(errors.As(err, &refused)).To(BeTrue(), "%v", err)
					Expect(sortedTargets(refused.Refused)).To(ConsistOf(bad))
					Expect(refused.Refused[bad[0]]).To(MatchError(ContainSubstring("RULE_APPEND failed")))
				})
				Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
				nat := save("", "nat")
				Expect(strings.Count(nat, "--to-destination 169.254.117.115:4001")).To(Equal(200))
				Expect(nat).NotTo(ContainSubstring("PROBE"))
				n.apply(p, []Rule{redirect(dns4, 4002)}, nil)

				Expect(os.Remove(refuse)).To(Succeed())
				n.node.do(func() {
					_, err := p.Check(background)
					Expect(err).To(HaveOccurred(), "it is too early to try again")
				})
				now = now.Add(retryFirst)
				Expect(n.check(p)).To(BeNumerically(">", 0))
				Expect(strings.Count(save("", "nat"), "--dport 666 ")).To(Equal(2))
			})

			It("serves IPv4 and refuses IPv6 rules where ip6tables is missing", func() {
				bin := GinkgoT().TempDir()
				for _, tool := range []string{"", "-save", "-restore"} {
					real, err := exec.LookPath("iptables-" + variant + tool)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.Symlink(real, filepath.Join(bin, "iptables-"+variant+tool))).To(Succeed())
				}
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin)).To(Succeed())
				p := n.open(ModeIPTables, opts)
				n.node.do(func() {
					err := p.Apply(background, []Rule{redirect(web4, 4000), redirect(web6, 4000)}, nil)
					var refused *RuleError
					Expect(errors.As(err, &refused)).To(BeTrue())
					Expect(sortedTargets(refused.Refused)).To(Equal([]Target{web6}))
					Expect(err).To(MatchError(ContainSubstring("ip6tables")))
				})
				Expect(os.Setenv("PATH", path)).To(Succeed())
				Expect(save("", "nat")).To(ContainSubstring("--to-destination 169.254.117.115:4000"))
			})

			It("refuses what needs the mangle table where that is missing, and puts in all others", func() {
				bin := GinkgoT().TempDir()
				real, err := exec.LookPath("iptables-" + variant + "-restore")
				Expect(err).NotTo(HaveOccurred())
				Expect(os.WriteFile(filepath.Join(bin, filepath.Base(real)), []byte(fmt.Sprintf(
					"#!/bin/sh\ninput=$(cat)\ncase \"$input\" in *'*mangle'*) echo 'no mangle here' >&2; exit 1;; esac\necho \"$input\" | %s \"$@\"\n", real)), 0o755)).To(Succeed())
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())
				p := n.open(ModeIPTables, opts)
				_, rules := n.publish(p, "web", web4)
				limited, local := redirect(Target{TCP, vip4, 81}, 4000), drop(Target{TCP, vip4, 82})
				limited.Sources, local.LocalPort = SourcesOf(prefixes("10.0.0.0/8")), 4000
				n.node.do(func() {
					err := p.Apply(background, append(rules, limited, local, drop(webNode4)), nil)
					var refused *RuleError
					Expect(errors.As(err, &refused)).To(BeTrue(), "%v", err)
					Expect(sortedTargets(refused.Refused)).To(Equal([]Target{webNode4, limited.Target, local.Target}))
					Expect(refused.Refused[webNode4]).To(MatchError(ContainSubstring("no mangle here")))
				})
				Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(save("", "nat")).NotTo(Or(ContainSubstring("PROBE"), ContainSubstring(":4000")))
			})

			It("is fast with 10,000 rules", Label("slow"), func() {
				p := n.open(ModeIPTables, opts)
				rules := manyRules(10000)
				measure := func(what string, most time.Duration, f func()) {
					GinkgoHelper()
					began := time.Now()
					f()
					took := time.Since(began)
					AddReportEntry(fmt.Sprintf("iptables-%s, 10,000 rules: %s: %v", variant, what, took.Round(time.Millisecond)))
					Expect(took).To(BeNumerically("<", most), what)
				}
				measure("first apply", 6*time.Second, func() { n.apply(p, rules, nil) })
				measure("check", 3*time.Second, func() { Expect(n.check(p)).To(BeZero()) })
				one := Target{TCP, vip4, 80}
				var binds []Bind
				measure("one added", 900*time.Millisecond, func() { binds, _ = n.publish(p, "web", one) })
				Expect(binds).NotTo(BeEmpty())
				Expect(n.pod.ask(one)).To(Equal("web 10.96.0.10:80"))
				measure("one removed", 900*time.Millisecond, func() { n.apply(p, nil, []Target{one}) })
				var second Portal
				measure("a new process starts", time.Second, func() { second = n.open(ModeIPTables, opts) })
				measure("its first apply, nothing changed", 3*time.Second, func() { n.apply(second, rules, nil) })
				Expect(second.Listen([]Target{rules[9999].Target})[0].Addr.Port()).To(Equal(rules[9999].LocalPort))
				measure("remove", 3*time.Second, func() { n.remove(second) })
			})
		})
	}

	It("takes out the rules that it left in the other variant of iptables", func() {
		n := newTestNet()
		before := n.node.state()
		old := n.open(ModeIPTables, Options{IPTablesVariant: "legacy"})
		n.publish(old, "old", web4)
		now := n.open(ModeIPTables, Options{IPTablesVariant: "nft"})
		n.publish(now, "new", web4)
		Expect(n.node.sh("iptables-legacy-save")).NotTo(ContainSubstring("USHER"))
		Expect(n.pod.ask(web4)).To(HavePrefix("new"))
		n.remove(now)
		Expect(n.node.state()).To(Equal(before))
	})

	It("goes on with the variant in which its rules are", func() {
		n := newTestNet()
		old := n.open(ModeIPTables, Options{IPTablesVariant: "legacy"})
		n.publish(old, "old", web4)
		now := n.open(ModeIPTables, Options{})
		Expect(now.(*iptablesPortal).families[0].variant).To(Equal(variant{"legacy", false}))
	})

	It("tells nothing of a connection that no conntrack saw", func() {
		n := newTestNet()
		port := n.node.serve(Bind{Addr: netip.AddrPortFrom(anyIPv4, 0), Targets: []Target{web4}}, "web")
		Expect(n.pod.ask(Target{TCP, nodeIP4, port})).To(Equal("web " + ErrNotRedirected.Error()))
	})

	It("says what is missing", func() {
		n := newTestNet()
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", GinkgoT().TempDir())).To(Succeed())
		n.node.do(func() {
			_, err := New(background, ModeIPTables, Options{})
			Expect(err).To(MatchError(And(ContainSubstring("portal iptables does not work here"), ContainSubstring("install the iptables package"))))
			p, err := New(background, ModeAuto, Options{})
			Expect(err).NotTo(HaveOccurred())
			Expect(p.Mode()).To(Equal(ModeAddress))
		})
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(slices.Contains(Modes(), n.open(ModeAuto, Options{}).Mode())).To(BeTrue())
	})
})
