package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
	. "github.com/usherproxy/usher/test/portaltest"
	"github.com/usherproxy/usher/test/portaltest/redirects"
)

// ipFamilies returns the families of an iptables portal.
func ipFamilies(p portal.Portal) (all []*backend) {
	for _, b := range p.(*redirect.Portal).Backends() {
		all = append(all, b.(*backend))
	}
	return all
}

// cleanup removes all rules that the mode has installed at any time.
func cleanup() ([]string, error) {
	opts, err := portal.Options{}.Complete()
	Expect(err).NotTo(HaveOccurred())
	return Mode.Remove(Background, opts, true)
}

var iptablesVariantNames = []string{"nft", "legacy"}

var _ = Describe("portal iptables", func() {
	for _, variant := range iptablesVariantNames {
		Context("by iptables-"+variant, func() {
			k := &redirects.Kind{
				Name: "iptables-" + variant, Mode: Mode, Options: portal.Options{IPTablesVariant: variant, Mark: 0x1000}, Lands: true, Accepts: true,
				Saved: func(n *Net) string { return n.Node.Sh("iptables-" + variant + "-save -t nat") },
				Limits: func(n *Net) int {
					return strings.Count(n.Node.Sh("iptables-"+variant+"-save -t mangle"), chainDrop)
				},
				Wipe:  strings.ReplaceAll("iptables -t nat -F; iptables -t nat -X; iptables -t mangle -F; iptables -t mangle -X", "iptables", "iptables-"+variant),
				First: 6 * time.Second, One: 900 * time.Millisecond,
			}
			var n *Net
			var opts portal.Options
			BeforeEach(func() {
				for _, c := range []string{"iptables-" + variant, "ip6tables-" + variant, "nft"} {
					if _, err := exec.LookPath(c); err != nil {
						Skip("needs " + c)
					}
				}
				n = NewNet()
				k.N, opts = n, k.Options
			})
			redirects.ItRedirects(k)

			Context("with the target redirect", func() {
				other := *k
				other.Name += ", redirect"
				other.Options.IPTablesTarget, other.Lands = targetRedirect, false
				BeforeEach(func() { other.N, opts = n, other.Options })
				redirects.ItRedirects(&other)

				It("uses REDIRECT without a redirect address, and warns about interfaces without IPv4 address", func() {
					log, seen := logtest.NewNullLogger()
					opts.Log = log
					bare := n.AddBarePod(2, StaticNeighbours)
					p := n.Open(Mode, opts)
					n.Publish(p, "web", Web4, Web6)
					n.Apply(p, []portal.Rule{Reject(DNS4)}, nil)
					Expect(other.Saved(n)).To(And(MatchRegexp("--dport 80 .* -j REDIRECT --to-ports [1-9]"), MatchRegexp("--dport 53 .* -j REDIRECT --to-ports 0"), Not(ContainSubstring("DNAT"))))
					Expect(n.Node.Sh("ip route show table local; ip -6 route show table local")).NotTo(Or(ContainSubstring("192.0.0.117"), ContainSubstring("fd75:7368")))
					Expect(seen.LastEntry().Message).To(ContainSubstring("have no IPv4 address"))
					Expect(seen.LastEntry().Data).To(HaveKeyWithValue("alternative", "--iptables-target=dnat"))
					Expect(bare.AskFrom(Web4, 0, Soon)).To(Equal("silence"))
				})

				It("refuses SCTP with an error that names the flags to use", func() {
					p := n.Open(Mode, opts)
					n.Publish(p, "web", Web4)
					sctp := To(portal.SCTP, VIP4, 80)
					n.Node.Do(func() {
						res := p.Apply(Background, []portal.Rule{Redirect(sctp, 4000)}, nil)
						Expect(res.Refused).To(HaveKeyWithValue(sctp, MatchError(And(ContainSubstring("--iptables-target=dnat"), ContainSubstring("--portal=address")))))
					})
					Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				})

				It("replaces the target dnat, and is replaced by it, without a gap", func() {
					first := n.Open(Mode, k.Options)
					_, rules := n.Publish(first, "web", Web4, Web6)
					before := k.Saved(n)
					stop := n.KeepAsking(Web4, "web 10.96.0.10:80")
					n.Apply(n.Open(Mode, opts), rules, nil)
					Expect(k.Saved(n)).To(And(ContainSubstring("REDIRECT"), Not(ContainSubstring("DNAT"))))
					last := n.Open(Mode, k.Options)
					n.Apply(last, rules, nil)
					Expect(stop()).To(BeEmpty())
					Expect(Counters.ReplaceAllString(k.Saved(n), "")).To(Equal(Counters.ReplaceAllString(before, "")))
					Expect(n.Pod.Ask(Web6)).To(Equal("web [fd96::10]:80"))
					Expect(n.Check(last)).To(BeZero())
				})
			})

			save := func(six, table string) string {
				return n.Node.Sh("ip" + six + "tables-" + variant + "-save -t " + table)
			}

			// refuses puts an iptables program first in PATH that rejects rules like these.
			refuses := func(rules, message string) {
				GinkgoHelper()
				bin := GinkgoT().TempDir()
				for _, six := range []string{"", "6"} {
					name := "ip" + six + "tables-" + variant
					real, err := exec.LookPath(name)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.WriteFile(filepath.Join(bin, name), []byte(fmt.Sprintf(
						"#!/bin/sh\ncase \"$*\" in %s) echo %q >&2; exit 2;; esac\nexec %s \"$@\"\n", rules, message, real)), 0o755)).To(Succeed())
					Expect(os.WriteFile(filepath.Join(bin, name+"-restore"), []byte(fmt.Sprintf(
						"#!/bin/sh\ninput=$(cat)\necho \"$input\" | while read -r line; do case \"$line\" in %s) exit 1;; esac; done || { echo 'a line failed' >&2; exit 1; }\necho \"$input\" | %s-restore \"$@\"\n", rules, real)), 0o755)).To(Succeed())
				}
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())
			}

			// lockable sets the lock of iptables to a file that hold locks until it is closed.
			lockable := func() (hold func() *os.File) {
				GinkgoHelper()
				if variant != "legacy" {
					Skip("only iptables-legacy has a lock")
				}
				file := filepath.Join(GinkgoT().TempDir(), "lock")
				GinkgoT().Setenv("XTABLES_LOCKFILE", file)
				return func() *os.File {
					GinkgoHelper()
					lock, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
					Expect(err).NotTo(HaveOccurred())
					DeferCleanup(func() { _ = lock.Close() }) // the spec may have closed it
					Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
					return lock
				}
			}

			It("waits for the lock at the start, and keeps the variant", func() {
				hold := lockable()
				_, rules := n.Publish(n.Open(Mode, opts), "web", Web4)
				before := k.Saved(n)
				log, seen := logtest.NewNullLogger()
				opts.Log, opts.IPTablesVariant, opts.LockWait = log, "", time.Second
				lock := hold()
				time.AfterFunc(2500*time.Millisecond, func() { _ = lock.Close() })
				n.Apply(n.Open(Mode, opts), rules, nil)
				Expect(Counters.ReplaceAllString(k.Saved(n), "")).To(Equal(Counters.ReplaceAllString(before, "")))
				var said []string
				for _, entry := range seen.AllEntries() {
					said = append(said, entry.Message)
				}
				Expect(said).To(ContainElement("Waiting for the xtables lock, which another program holds"))
				Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
			})

			It("does not treat a lock timeout as a refused rule, and waits only once", func() {
				hold := lockable()
				opts.LockWait = 3 * time.Second
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4)
				lock := hold()
				family := ipFamilies(p)[0]
				n.Node.Do(func() {
					began := time.Now()
					res := p.Apply(Background, []portal.Rule{Reject(DNS4)}, nil)
					Expect(res.Err).To(MatchError(ContainSubstring("xtables lock")))
					Expect(res.Refused).To(BeEmpty())
					Expect(time.Since(began)).To(BeNumerically("<", 2*opts.LockWait))
					Expect(redirect.IsUndecided(family.Try(Background, []portal.Rule{Reject(DNS4)}))).To(BeTrue())
				})
				Expect(lock.Close()).To(Succeed())
				n.Node.Do(func() { Expect(family.Try(Background, []portal.Rule{Reject(DNS4)})).To(Succeed()) })
				n.Apply(p, nil, nil)
				Expect(n.Pod.Ask(DNS4)).To(Equal("refused"))
			})

			It("reports in a cleanup which rules it could not read or remove", func() {
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4)
				path, bin := os.Getenv("PATH"), GinkgoT().TempDir()
				for _, name := range []string{"iptables-" + variant, "ip6tables-" + variant} {
					real, err := exec.LookPath(name)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.Symlink(real, filepath.Join(bin, name))).To(Succeed())
					Expect(os.WriteFile(filepath.Join(bin, name+"-save"), []byte("#!/bin/sh\necho Permission denied >&2; exit 4\n"), 0o755)).To(Succeed())
				}
				DeferCleanup(os.Setenv, "PATH", path)
				cleaned := func(want OmegaMatcher) {
					GinkgoHelper()
					n.Node.Do(func() {
						_, err := cleanup()
						Expect(err).To(want)
					})
				}

				By("no iptables")
				Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
				cleaned(MatchError(ContainSubstring("iptables-%s is not installed to", variant)))

				By("an iptables that cannot read")
				Expect(os.Setenv("PATH", bin)).To(Succeed())
				cleaned(MatchError(ContainSubstring("reading IPv4 rules: iptables-%s-save: exit status 4: Permission denied", variant)))

				Expect(os.Setenv("PATH", path)).To(Succeed())
				cleaned(Succeed())
				cleaned(Succeed())
			})

			It("uses REDIRECT if iptables lacks DNAT, and warns about interfaces without IPv4 address", func() {
				path := os.Getenv("PATH")
				refuses("*DNAT*", "No chain/target/match by that name")
				log, seen := logtest.NewNullLogger()
				opts.Log = log
				bare := n.AddBarePod(2, StaticNeighbours)
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4, Web6)
				n.Apply(p, []portal.Rule{Reject(DNS4)}, nil)
				messages := []string{}
				for _, e := range seen.AllEntries() {
					messages = append(messages, e.Message)
				}
				Expect(messages).To(ContainElement(ContainSubstring("have no IPv4 address")))
				Expect(save("", "nat")).To(And(ContainSubstring("-j REDIRECT --to-ports"), Not(ContainSubstring("DNAT"))))
				for _, from := range []*Host{n.Node, n.Pod} {
					Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
					Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
					Expect(from.Ask(DNS4)).To(Equal("refused"))
				}
				Expect(bare.AskFrom(Web4, 0, Soon)).To(Equal("silence"), "the kernel drops these packets, as the warning states")

				By("an iptables that supports DNAT, and a restart")
				Expect(os.Setenv("PATH", path)).To(Succeed())
				second := n.Open(Mode, opts)
				before, after := p.Listen("default/web", []portal.Target{Web4, Web6}), second.Listen("default/web", []portal.Target{Web4, Web6})
				for i := range after {
					after[i].Transparent = false // set only for binds that DNAT redirects to
				}
				Expect(after).To(Equal(before))
			})

			It("rejects with REDIRECT if iptables does not support DNAT to port 0 (before 1.8.8)", func() {
				refuses("*DNAT*:0*", "Port 0 not valid")
				bare := n.AddBarePod(2, StaticNeighbours)
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4, Web6)
				n.Apply(p, []portal.Rule{Reject(DNS4), Reject(DNS6), Redirect(To(portal.SCTP, VIP4, 80), 4000)}, nil)
				for _, from := range []*Host{n.Node, n.Pod} {
					Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
					Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
					Expect(from.Ask(DNS4)).To(Equal("refused"))
					Expect(from.Ask(DNS6)).To(Equal("refused"))
				}
				Expect(bare.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				Expect(n.Check(p)).To(BeZero())
			})

			DescribeTable("repairs its rules after another program",
				func(damage string, atLeast int) {
					p := n.Open(Mode, opts)
					n.Publish(p, "web", Web4, Web6, WebNode4)
					Expect(n.Check(p)).To(BeZero())
					before := save("", "nat")
					n.Node.Sh(strings.ReplaceAll(damage, "iptables", "iptables-"+variant))
					Expect(Counters.ReplaceAllString(save("", "nat"), "")).NotTo(Equal(Counters.ReplaceAllString(before, "")))
					Expect(n.Check(p)).To(BeNumerically(">=", atLeast))
					Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
					Expect(n.Node.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
					Expect(n.Check(p)).To(BeZero())
				},
				Entry("flushed the table", "iptables -t nat -F", 3),
				Entry("flushed and deleted all chains", "iptables -t nat -F; iptables -t nat -X", 3),
				Entry("deleted the jump in PREROUTING", `iptables -t nat -D PREROUTING 1`, 1),
				Entry("deleted a chain's rules", "iptables -t nat -F USHER-NODEPORTS", 1),
				Entry("deleted one rule", "iptables -t nat -D USHER-PORTALS 1", 1),
				Entry("added a rule to usher's chain", "iptables -t nat -I USHER-PORTALS 1 -p tcp -j RETURN", 1),
				Entry("inserted a rule before the jump", "iptables -t nat -I PREROUTING 1 -d 10.96.0.0/16 -j ACCEPT", 1),
				Entry("duplicated the jump", "iptables -t nat -A OUTPUT -m comment --comment 'usher: portals of Services' -j USHER-PORTALS", 1),
				Entry("added a chain with usher's prefix", "iptables -t nat -N USHER-OLD; iptables -t nat -A INPUT -j USHER-OLD", 2),
			)

			It("reads the rules again only if other programs may have changed them", func() {
				bin := GinkgoT().TempDir()
				calls := filepath.Join(bin, "calls")
				for _, save := range []string{"iptables-" + variant + "-save", "ip6tables-" + variant + "-save"} {
					real, err := exec.LookPath(save)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.WriteFile(filepath.Join(bin, save), []byte(fmt.Sprintf("#!/bin/sh\necho $* >> %s\nexec %s \"$@\"\n", calls, real)), 0o755)).To(Succeed())
				}
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())
				count := func() int {
					text, _ := os.ReadFile(calls)
					return strings.Count(string(text), "\n")
				}

				p := n.Open(Mode, opts)
				n.Watch(p)
				n.Publish(p, "web", Web4)
				later := func(d time.Duration) { p.(*redirect.Portal).Now = func() time.Time { return time.Now().Add(d) } }
				later(time.Hour)
				Expect(n.Check(p)).To(BeZero())
				before := count()
				later(2 * time.Hour)
				Expect(n.Check(p)).To(BeZero())
				Expect(count()).To(Equal(before), "elapsed time alone does not cause a read")
				n.Node.Sh("iptables-" + variant + " -t raw -A OUTPUT -p 99 -j ACCEPT")
				Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"), "this changes counters")
				for range 3 {
					Expect(n.Check(p)).To(BeZero())
				}
				Expect(count()).To(Equal(before))
				n.Node.Sh("iptables-" + variant + " -t nat -R USHER-PORTALS 1 -d 10.96.0.99/32 -j RETURN")
				Eventually(func() int { return n.Check(p) }).Should(Equal(1))
				Expect(count()).To(BeNumerically(">", before))
			})

			It("does not repeat its jumps in a table that it cannot read, and reports in a cleanup that it cannot remove them", func() {
				if variant != "nft" {
					Skip("only iptables-nft reads rules of nftables")
				}
				p := n.Open(Mode, opts)
				_, rules := n.Publish(p, "web", Web4)
				n.Node.Sh("iptables-nft -t nat -A POSTROUTING -p 99 -j ACCEPT; nft add rule ip nat POSTROUTING ip saddr '{ 192.0.2.1, 192.0.2.3 }' masquerade")
				Expect(save("", "nat")).To(ContainSubstring("is incompatible"))
				jumps := func() int { return strings.Count(n.Node.Sh("nft list table ip nat"), "jump USHER-") }
				before := jumps()
				for i := range 3 {
					p.(*redirect.Portal).Now = func() time.Time { return time.Now().Add(time.Duration(i+1) * time.Hour) }
					Expect(n.Check(p)).To(BeZero())
				}
				n.Apply(p, append(rules, Reject(DNS4)), nil)
				Expect(jumps()).To(Equal(before))
				Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				n.Node.Do(func() {
					_, err := cleanup()
					Expect(err).To(MatchError(ContainSubstring("reading IPv4 rules: table nat is incompatible")))
				})
				n.Node.Sh("nft flush chain ip nat POSTROUTING")
				n.Node.Do(func() { Expect(cleanup()).Error().NotTo(HaveOccurred()) })
				Expect(save("", "nat")).NotTo(ContainSubstring("USHER"))
			})

			It("removes chains that it has added to a table at different times, but not the chain of another program", func() {
				if variant != "nft" {
					Skip("the kernel creates the chains of iptables-legacy")
				}
				n.Node.Sh("nft add table ip filter; nft add chain ip filter FORWARD '{ type filter hook forward priority 0; policy accept; }'")
				p := n.Open(Mode, opts)
				_, rules := n.Publish(p, "web", Web4)
				p.Set(func(s *portal.Settings) { s.ServiceCIDRs = Prefixes("10.96.0.0/16") })
				n.Apply(p, rules, nil)
				n.Node.Do(func() { Expect(cleanup()).Error().NotTo(HaveOccurred()) })
				Expect(n.Node.Sh("nft list table ip filter")).To(And(ContainSubstring("FORWARD"), Not(ContainSubstring("INPUT")), Not(ContainSubstring("OUTPUT"))))
			})

			It("gives up the first position to a program that keeps taking it", func() {
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4)
				usurp := fmt.Sprintf("iptables-%[1]s -t nat -D PREROUTING -p 99 -j RETURN 2>/dev/null; iptables-%[1]s -t nat -I PREROUTING 1 -p 99 -j RETURN", variant)
				for range maxMoves - 1 {
					n.Node.Sh(usurp)
					Expect(n.Check(p)).To(Equal(1))
				}
				n.Node.Sh(usurp)
				Expect(n.Check(p)).To(BeZero())
				Expect(n.Check(p)).To(BeZero())
			})

			It("removes its rules, but not a table that other programs use", func() {
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4)
				n.Node.Sh("iptables-" + variant + " -t nat -A PREROUTING -p 99 -j ACCEPT")
				n.Remove(p)
				Expect(save("", "nat")).To(And(ContainSubstring("-A PREROUTING -p 99 -j ACCEPT"), Not(ContainSubstring("USHER"))))
			})

			It("installs all other rules if the kernel refuses some, and retries those", func() {
				// An iptables-restore that rejects port 666 stands for a kernel that does.
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

				p := n.Open(Mode, opts)
				now := time.Now()
				p.(*redirect.Portal).Now = func() time.Time { return now }
				_, rules := n.Publish(p, "web", Web4)
				bad := []portal.Target{To(portal.TCP, VIP4, 666), To(portal.UDP, netip.MustParseAddr("10.96.0.20"), 666)}
				for _, t := range bad {
					rules = append(rules, Redirect(t, 4000))
				}
				for i := range 200 {
					rules = append(rules, Redirect(To(portal.TCP, netip.AddrFrom4([4]byte{10, 97, 0, byte(i)}), 80), 4001))
				}
				n.Node.Do(func() {
					refused := p.Apply(Background, rules, nil).Refused
					Expect(portal.SortedTargets(refused)).To(ConsistOf(bad))
					Expect(refused[bad[0]]).To(MatchError(ContainSubstring("RULE_APPEND failed")))
				})
				Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				nat := save("", "nat")
				Expect(strings.Count(nat, "--to-destination 192.0.0.117:4001")).To(Equal(200))
				Expect(nat).NotTo(ContainSubstring("PROBE"))
				n.Apply(p, []portal.Rule{Redirect(DNS4, 4002)}, nil)

				Expect(os.Remove(refuse)).To(Succeed())
				n.Node.Do(func() {
					Expect(p.Check(Background).Refused).To(HaveLen(len(bad)), "it is too early to retry")
				})
				now = now.Add(redirect.RetryFirst)
				Expect(n.Check(p)).To(BeNumerically(">", 0))
				Expect(strings.Count(save("", "nat"), "--dport 666 ")).To(Equal(2))
			})

			It("leaves no empty table behind if the first change contains a refused rule", func() {
				before := n.Node.Sh("nft list ruleset")
				refuses("*'--dport 666 '*", "refused")
				p := n.Open(Mode, opts)
				bad := To(portal.TCP, VIP4, 666)
				n.Node.Do(func() {
					Expect(p.Apply(Background, []portal.Rule{Redirect(Web4, 4000), Redirect(bad, 4000)}, nil).Refused).To(HaveKey(bad))
				})
				n.Remove(p)
				Expect(n.Node.Sh("nft list ruleset")).To(Equal(before))
			})

			It("serves IPv4 and refuses IPv6 rules if ip6tables is missing", func() {
				bin := GinkgoT().TempDir()
				for _, tool := range []string{"", "-save", "-restore"} {
					real, err := exec.LookPath("iptables-" + variant + tool)
					Expect(err).NotTo(HaveOccurred())
					Expect(os.Symlink(real, filepath.Join(bin, "iptables-"+variant+tool))).To(Succeed())
				}
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin)).To(Succeed())
				p := n.Open(Mode, opts)
				n.Node.Do(func() {
					refused := p.Apply(Background, []portal.Rule{Redirect(Web4, 4000), Redirect(Web6, 4000)}, nil).Refused
					Expect(refused).To(HaveLen(1))
					Expect(refused[Web6]).To(MatchError(ContainSubstring("ip6tables")))
				})
				Expect(os.Setenv("PATH", path)).To(Succeed())
				Expect(save("", "nat")).To(ContainSubstring("--to-destination 192.0.0.117:4000"))
			})

			It("refuses rules that need a missing mangle table, and installs all others", func() {
				bin := GinkgoT().TempDir()
				real, err := exec.LookPath("iptables-" + variant + "-restore")
				Expect(err).NotTo(HaveOccurred())
				Expect(os.WriteFile(filepath.Join(bin, filepath.Base(real)), []byte(fmt.Sprintf(
					"#!/bin/sh\ninput=$(cat)\ncase \"$input\" in *'*mangle'*) echo 'no mangle here' >&2; exit 1;; esac\necho \"$input\" | %s \"$@\"\n", real)), 0o755)).To(Succeed())
				path := os.Getenv("PATH")
				DeferCleanup(os.Setenv, "PATH", path)
				Expect(os.Setenv("PATH", bin+":"+path)).To(Succeed())
				p := n.Open(Mode, opts)
				_, rules := n.Publish(p, "web", Web4)
				Expect(p.Origin(netip.Addr{}, netip.IPv4Unspecified(), portal.Unknown).SourceAddress).To(Equal(portal.SourceKernel), "the rules that mark answers are in that table")
				limited, local := Redirect(To(portal.TCP, VIP4, 81), 4000), Drop(To(portal.TCP, VIP4, 82))
				limited.Sources, local.LocalPort = portal.SourcesOf(Prefixes("10.0.0.0/8")), 4000
				n.Node.Do(func() {
					refused := p.Apply(Background, append(rules, limited, local, Drop(WebNode4)), nil).Refused
					Expect(portal.SortedTargets(refused)).To(Equal([]portal.Target{WebNode4, limited.Target, local.Target}))
					Expect(refused[WebNode4]).To(MatchError(ContainSubstring("no mangle here")))
				})
				Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
				Expect(save("", "nat")).NotTo(Or(ContainSubstring("PROBE"), ContainSubstring(":4000")))
			})

			It("does not change another process's probe chain, but removes it in a cleanup", func() {
				p := n.Open(Mode, opts)
				n.Publish(p, "web", Web4)
				n.Node.Sh("iptables-" + variant + " -t nat -N USHER-PROBE-1")
				Expect(n.Check(p)).To(BeZero())
				Expect(save("", "nat")).To(ContainSubstring("USHER-PROBE-1"))
				n.Node.Do(func() { Expect(cleanup()).NotTo(BeEmpty()) })
				Expect(save("", "nat")).NotTo(ContainSubstring("USHER"))
			})
		})
	}

	It("removes its old rules from the other variant of iptables", func() {
		n := NewNet()
		before := n.Node.State()
		old := n.Open(Mode, portal.Options{IPTablesVariant: "legacy"})
		n.Publish(old, "old", Web4)
		now := n.Open(Mode, portal.Options{IPTablesVariant: "nft"})
		n.Publish(now, "new", Web4)
		Expect(n.Node.Sh("iptables-legacy-save")).NotTo(ContainSubstring("USHER"))
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("new"))
		n.Remove(now)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("keeps using the variant that has its rules", func() {
		n := NewNet()
		old := n.Open(Mode, portal.Options{IPTablesVariant: "legacy"})
		n.Publish(old, "old", Web4)
		now := n.Open(Mode, portal.Options{})
		Expect(ipFamilies(now)[0].variant).To(Equal(variant{"legacy", false}))
	})

	It("reports a connection that conntrack did not track as not redirected", func() {
		n := NewNet()
		port := n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(portal.IPv4.Any(), 0), Targets: []portal.Target{Web4}}, "web")
		Expect(n.Pod.Ask(To(portal.TCP, NodeIP4, port))).To(Equal("web " + portal.ErrNotRedirected.Error()))
	})

})

var _ = Describe("a host firewall that drops in INPUT", func() {
	DescribeTable("admits redirected packets and health checks, and nothing else", func(variant, target string) {
		n := NewNet()
		for _, command := range []string{"iptables-" + variant, "ip6tables-" + variant} {
			n.Node.Sh(command + " -P INPUT DROP")
			n.Node.Sh(command + " -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT")
			n.Node.Sh(command + " -A INPUT -p ipv6-icmp -j ACCEPT || true")
		}
		p := n.Open(Mode, portal.Options{IPTablesVariant: variant, IPTablesTarget: target})
		_, rules := n.Publish(p, "web", Web4, Web6, DNS4, DNS6, WebNode4, WebNode6)
		for _, t := range []portal.Target{Web4, Web6, DNS4, DNS6, At(WebNode4, NodeIP4), At(WebNode6, NodeIP6)} {
			Expect(n.Pod.Ask(t)).To(HavePrefix("web"), t.String())
		}
		none := Target(portal.TCP, "10.96.0.99:80")
		n.Apply(p, []portal.Rule{Reject(none)}, nil)
		Expect(n.Pod.Ask(none)).To(Equal("refused"))
		n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(portal.IPv4.Any(), 9999), Targets: []portal.Target{Web4}}, "other")
		Expect(n.Pod.AskFrom(To(portal.TCP, NodeIP4, 9999), 0, Soon)).To(Equal("silence"))
		Expect(n.Pod.AskFrom(To(portal.TCP, NodeIP4, rules[0].LocalPort), 0, Soon)).To(Equal("silence"))

		By("health check node ports, until they are removed")
		var checks []portal.Target
		for _, addr := range []netip.Addr{NodeIP4, NodeIP6} {
			t := To(portal.TCP, addr, 32000)
			n.Node.Serve(portal.Bind{Addr: netip.AddrPortFrom(addr, t.Port), Targets: []portal.Target{t}}, "healthy")
			checks = append(checks, t)
		}
		for _, ports := range [][]uint16{{31999, 32000}, {31999}, nil} {
			p.Set(func(s *portal.Settings) { s.HealthChecks = ports })
			n.Apply(p, nil, nil)
			Expect(n.Check(p)).To(BeZero())
			for _, t := range checks {
				Expect(n.Pod.AskFrom(t, 0, Soon) == "silence").To(Equal(len(ports) < 2), "%s, %d", t, ports)
			}
		}
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))

		n.Node.Sh("iptables-" + variant + " -F INPUT")
		Expect(n.Check(p)).To(BeNumerically(">", 0))
		Expect(n.Node.Sh("iptables-" + variant + "-save -t filter")).To(ContainSubstring("-j USHER-ACCEPT"))
		n.Remove(p)
		Expect(n.Node.Sh("iptables-" + variant + "-save")).NotTo(ContainSubstring("USHER"))
	},
		Entry("of iptables-nft", "nft", ""),
		Entry("of iptables-legacy", "legacy", ""),
		Entry("of iptables-nft, with REDIRECT", "nft", targetRedirect),
		Entry("of iptables-legacy, with REDIRECT", "legacy", targetRedirect),
	)
})
