package portal

import (
	"context"
	"errors"
	"fmt"
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
	"golang.org/x/sys/unix"
)

var (
	vip4, vip6           = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")
	web4, web6           = Target{TCP, vip4, 80}, Target{TCP, vip6, 80}
	dns4, dns6           = Target{UDP, vip4, 53}, Target{UDP, vip6, 53}
	webNode4, webNode6   = Target{TCP, IPv4.Any(), 30080}, Target{TCP, IPv6.Any(), 30080}
	nodeIP4, nodeIP6     = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")
	localhost4           = netip.MustParseAddr("127.0.0.1")
	background           = context.Background()
	iptablesVariantNames = []string{"nft", "legacy"}
)

// open makes a portal on the node, where there are no portals of other modes.
func (n *testNet) open(mode Mode, opts Options) Portal {
	GinkgoHelper()
	var p Portal
	n.node.do(func() {
		var err error
		p, err = mode.New(background, opts)
		Expect(err).NotTo(HaveOccurred())
	})
	return p
}

// choose makes a portal on the node by the name of its mode, beside those of other modes.
func (n *testNet) choose(mode string, opts Options) Portal {
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
	binds = p.Listen("default/web", targets)
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
			k := &redirectKind{
				name: "iptables-" + variant, mode: iptablesMode, options: Options{IPTablesVariant: variant, Mark: 0x2000},
				saved: func(n *testNet) string { return n.node.sh("iptables-" + variant + "-save -t nat") },
				limits: func(n *testNet) int {
					return strings.Count(n.node.sh("iptables-"+variant+"-save -t mangle"), chainDrop)
				},
				wipe:  strings.ReplaceAll("iptables -t nat -F; iptables -t nat -X; iptables -t mangle -F; iptables -t mangle -X", "iptables", "iptables-"+variant),
				first: 6 * time.Second, one: 900 * time.Millisecond,
			}
			var n *testNet
			var opts Options
			BeforeEach(func() {
				for _, c := range []string{"iptables-" + variant, "ip6tables-" + variant, "nft"} {
					if _, err := exec.LookPath(c); err != nil {
						Skip("needs " + c)
					}
				}
				n = newTestNet()
				k.n, opts = n, k.options
			})
			itRedirects(k)

			save := func(six, table string) string {
				return n.node.sh("ip" + six + "tables-" + variant + "-save -t " + table)
			}

			// refuses puts an iptables in front that does not take rules like these.
			refuses := func(rules, message string) {
				GinkgoHelper()
				bin := GinkgoT().TempDir()
				for _, six := range []string{"", "6"} {
					name := "ip" + six + "tables-" + variant
					real, err := exec.LookPath(name)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.WriteFile(filepath.Join(bin, name), []byte(fmt.Sprintf(
						"#!/bin/sh\ncase \"$*\" in %s) echo %q >&2; exit 2;; esac\nexec %s \"$@\"\n", rules, message, real)), 0o755)).To(Succeed())
				}
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())
			}

			It("takes a lock that it did not get for no refusal of a rule, and waits for it once", func() {
				if variant != "legacy" {
					Skip("has no lock")
				}
				file := filepath.Join(GinkgoT().TempDir(), "lock")
				DeferCleanup(os.Unsetenv, "XTABLES_LOCKFILE")
				Expect(os.Setenv("XTABLES_LOCKFILE", file)).To(Succeed())
				opts.LockWait = 3 * time.Second
				p := n.open(iptablesMode, opts)
				n.publish(p, "web", web4)
				lock, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
				Expect(err).NotTo(HaveOccurred())
				defer lock.Close()
				Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
				family := ipFamilies(p)[0]
				n.node.do(func() {
					began := time.Now()
					err := p.Apply(background, []Rule{reject(dns4)}, nil)
					Expect(err).To(MatchError(ContainSubstring("xtables lock")))
					Expect(errors.As(err, new(*RuleError))).To(BeFalse())
					Expect(time.Since(began)).To(BeNumerically("<", 2*opts.LockWait))
					Expect(isUndecided(family.try(background, []Rule{reject(dns4)}))).To(BeTrue())
				})
				Expect(lock.Close()).To(Succeed())
				n.node.do(func() {
					family.tried(nil)
					Expect(family.try(background, []Rule{reject(dns4)})).To(Succeed())
					family.tried(nil)
				})
				n.apply(p, nil, nil)
				Expect(n.pod.ask(dns4)).To(Equal("refused"))
			})

			It("says in a cleanup what it could not read or remove", func() {
				p := n.open(iptablesMode, opts)
				n.publish(p, "web", web4)
				path, bin := os.Getenv("PATH"), GinkgoT().TempDir()
				for _, name := range []string{"iptables-" + variant, "ip6tables-" + variant} {
					real, err := exec.LookPath(name)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.Symlink(real, filepath.Join(bin, name))).To(Succeed())
					Expect(os.WriteFile(filepath.Join(bin, name+"-save"), []byte("#!/bin/sh\necho Permission denied >&2; exit 4\n"), 0o755)).To(Succeed())
				}
				DeferCleanup(os.Setenv, "PATH", path)
				cleanup := func(want OmegaMatcher) {
					GinkgoHelper()
					n.node.do(func() {
						_, err := Cleanup(background, nil)
						Expect(err).To(want)
					})
				}

				By("no iptables at all")
				Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
				cleanup(MatchError(ContainSubstring("no iptables-%s is installed", variant)))

				By("an iptables that cannot read")
				Expect(os.Setenv("PATH", bin)).To(Succeed())
				cleanup(MatchError(ContainSubstring("reading the IPv4 rules: iptables-%s-save: exit status 4: Permission denied", variant)))

				Expect(os.Setenv("PATH", path)).To(Succeed())
				cleanup(Succeed())
				cleanup(Succeed())
			})

			It("uses REDIRECT where iptables takes no DNAT, and warns of interfaces from which the kernel drops that", func() {
				path := os.Getenv("PATH")
				refuses("*DNAT*", "No chain/target/match by that name")
				log, seen := logtest.NewNullLogger()
				opts.Log = log
				bare := n.addBarePod(2, staticNeighbours)
				p := n.open(iptablesMode, opts)
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

				By("an iptables that takes it, and a restart")
				Expect(os.Setenv("PATH", path)).To(Succeed())
				second := n.open(iptablesMode, opts)
				Expect(second.Listen("default/web", []Target{web4, web6})).To(Equal(p.Listen("default/web", []Target{web4, web6})))
			})

			It("rejects by REDIRECT where iptables takes no DNAT to port 0, as those before 1.8.8", func() {
				refuses("*DNAT*:0*", "Port 0 not valid")
				bare := n.addBarePod(2, staticNeighbours)
				p := n.open(iptablesMode, opts)
				n.publish(p, "web", web4, web6)
				n.apply(p, []Rule{reject(dns4), reject(dns6), redirect(Target{SCTP, vip4, 80}, 4000)}, nil)
				for _, from := range []*host{n.node, n.pod} {
					Expect(from.ask(web4)).To(Equal("web 10.96.0.10:80"))
					Expect(from.ask(web6)).To(Equal("web [fd96::10]:80"))
					Expect(from.ask(dns4)).To(Equal("refused"))
					Expect(from.ask(dns6)).To(Equal("refused"))
				}
				Expect(bare.ask(web4)).To(Equal("web 10.96.0.10:80"))
				Expect(n.check(p)).To(BeZero())
			})

			DescribeTable("repairs what others did to it",
				func(damage string, atLeast int) {
					p := n.open(iptablesMode, opts)
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

			It("gives up the first place to a program that wants it as much", func() {
				p := n.open(iptablesMode, opts)
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

			It("leaves what others had, and removes what a process that died has left", func() {
				n.node.sh(strings.ReplaceAll(`
					iptables -t nat -N KUBE-MARK-MASQ
					iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -m comment --comment "to USHER-X \"y\"" -j MASQUERADE
					iptables -t nat -A PREROUTING -p 99 -j ACCEPT
					iptables -A INPUT -p 99 -j ACCEPT`, "iptables", "iptables-"+variant))
				before := n.node.state()
				p := n.open(iptablesMode, opts)
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
				p := n.open(iptablesMode, opts)
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

				p := n.open(iptablesMode, opts)
				now := time.Now()
				for _, m := range p.(*redirectPortal).families {
					m.refused.now = func() time.Time { return now }
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
				Expect(strings.Count(nat, "--to-destination 192.0.0.117:4001")).To(Equal(200))
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
				p := n.open(iptablesMode, opts)
				n.node.do(func() {
					err := p.Apply(background, []Rule{redirect(web4, 4000), redirect(web6, 4000)}, nil)
					var refused *RuleError
					Expect(errors.As(err, &refused)).To(BeTrue())
					Expect(sortedTargets(refused.Refused)).To(Equal([]Target{web6}))
					Expect(err).To(MatchError(ContainSubstring("ip6tables")))
				})
				Expect(os.Setenv("PATH", path)).To(Succeed())
				Expect(save("", "nat")).To(ContainSubstring("--to-destination 192.0.0.117:4000"))
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
				p := n.open(iptablesMode, opts)
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

			It("leaves the chain alone in which another process tries rules, and cleans it up", func() {
				p := n.open(iptablesMode, opts)
				n.publish(p, "web", web4)
				n.node.sh("iptables-" + variant + " -t nat -N USHER-PROBE-1")
				Expect(n.check(p)).To(BeZero())
				Expect(save("", "nat")).To(ContainSubstring("USHER-PROBE-1"))
				n.node.do(func() { Expect(Cleanup(background, nil)).NotTo(BeEmpty()) })
				Expect(save("", "nat")).NotTo(ContainSubstring("USHER"))
			})
		})
	}

	It("takes out the rules that it left in the other variant of iptables", func() {
		n := newTestNet()
		before := n.node.state()
		old := n.open(iptablesMode, Options{IPTablesVariant: "legacy"})
		n.publish(old, "old", web4)
		now := n.open(iptablesMode, Options{IPTablesVariant: "nft"})
		n.publish(now, "new", web4)
		Expect(n.node.sh("iptables-legacy-save")).NotTo(ContainSubstring("USHER"))
		Expect(n.pod.ask(web4)).To(HavePrefix("new"))
		n.remove(now)
		Expect(n.node.state()).To(Equal(before))
	})

	It("goes on with the variant in which its rules are", func() {
		n := newTestNet()
		old := n.open(iptablesMode, Options{IPTablesVariant: "legacy"})
		n.publish(old, "old", web4)
		now := n.open(iptablesMode, Options{})
		Expect(ipFamilies(now)[0].variant).To(Equal(variant{"legacy", false}))
	})

	It("tells nothing of a connection that no conntrack saw", func() {
		n := newTestNet()
		port := n.node.serve(Bind{Addr: netip.AddrPortFrom(IPv4.Any(), 0), Targets: []Target{web4}}, "web")
		Expect(n.pod.ask(Target{TCP, nodeIP4, port})).To(Equal("web " + ErrNotRedirected.Error()))
	})

	It("says what is missing", func() {
		n := newTestNet()
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", GinkgoT().TempDir())).To(Succeed())
		n.node.do(func() {
			_, err := New(background, iptablesMode.Name, Options{})
			Expect(err).To(MatchError(And(ContainSubstring("portal iptables does not work here"), ContainSubstring("install the iptables package"))))
			p, err := New(background, Auto, Options{})
			Expect(err).NotTo(HaveOccurred())
			Expect(p.Mode()).To(Equal(nftablesMode.Name))

			// As iptables-nft does where the kernel has no nf_tables, whatever is asked.
			complaint := "#!/bin/sh\necho 'iptables/1.8.9 Failed to initialize nft: Protocol not supported' >&2\nexit 1\n"
			Expect(os.WriteFile(filepath.Join(os.Getenv("PATH"), "iptables"), []byte(complaint), 0o755)).To(Succeed())
			_, err = New(background, iptablesMode.Name, Options{})
			Expect(err).To(MatchError(And(ContainSubstring("modprobe nf_tables"), Not(ContainSubstring("install the iptables package")))))
		})
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(slices.Contains(Modes(), n.choose(Auto, Options{}).Mode())).To(BeTrue())
	})
})
