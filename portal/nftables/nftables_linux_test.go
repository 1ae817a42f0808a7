package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
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

// nftFamilies returns the families of an nftables portal.
func nftFamilies(p portal.Portal) (all []*backend) {
	for _, b := range p.(*redirect.Portal).Backends() {
		all = append(all, b.(*backend))
	}
	return all
}

var _ = Describe("portal nftables", func() {
	list := func(n *Net) string { return n.Node.Sh("nft list table ip usher 2>/dev/null || true") }
	k := &redirects.Kind{
		Name: "nftables", Mode: Mode, Options: portal.Options{Mark: 0x1000}, Lands: true, Saved: list,
		Limits: func(n *Net) int {
			return strings.Count(n.Node.Sh("nft list map ip usher guards 2>&1; nft list map ip usher node-port-guards 2>&1 || true"), " comment ")
		},
		Wipe:  "nft delete table ip usher",
		First: 3 * time.Second, One: 20 * time.Millisecond,
	}
	var n *Net
	BeforeEach(func() {
		if _, err := exec.LookPath("nft"); err != nil {
			Skip("needs nft")
		}
		n = NewNet()
		k.N = n
	})
	redirects.ItRedirects(k)
	open := func() portal.Portal { GinkgoHelper(); return n.Open(Mode, portal.Options{}) }

	It("has a table that nft can list and load from a file", func() {
		p := open()
		n.Publish(p, "web", Web4, Web6, WebNode4, WebNode6)
		limited := Drop(To(portal.TCP, VIP4, 81))
		limited.LocalPort, limited.Sources = 4000, portal.SourcesOf(Prefixes("192.0.2.0/24"))
		limited6 := Redirect(To(portal.UDP, VIP6, 81), 4000)
		limited6.Sources = portal.SourcesOf(Prefixes("2001:db8::/32"))
		p.Set(func(s *portal.Settings) { s.LocalSources = Prefixes("10.1.0.0/24", "fd01::/64") })
		n.Apply(p, []portal.Rule{limited, limited6, Drop(DNS4), Redirect(To(portal.SCTP, VIP4, 80), 4000)}, nil)
		Expect(list(n)).To(And(
			ContainSubstring("type nat hook prerouting priority dstnat - 10; policy accept;"),
			ContainSubstring(`10.96.0.10 . udp . 53 comment "default/local:http" : drop`),
			ContainSubstring(`10.96.0.10 . tcp . 81 comment "default/local:http" : jump inside-from-192.0.2.0-24`),
			ContainSubstring("ip saddr 10.1.0.0/24 return"),
		))
		Expect(n.Node.Sh("nft list table ip6 usher")).To(ContainSubstring("jump from-2001_db8__-32"))
		n.Node.Sh(`nft list ruleset >/tmp/usher-nft-$$; { echo flush ruleset; cat /tmp/usher-nft-$$; } | nft -f -; rm /tmp/usher-nft-$$`)
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
			Expect(from.Ask(Web6)).To(Equal("web [fd96::10]:80"))
			Expect(from.Ask(At(WebNode4, NodeIP4))).To(Equal("web 10.1.0.1:30080"))
		}
		n.Check(p)
		Expect(n.Check(p)).To(BeZero())
	})

	It("rejects other ports of addresses that are a Service's alone, for as long as they are", func() {
		p := open()
		sole := func(r portal.Rule) portal.Rule {
			r.Sole = true
			return r
		}
		n.Apply(p, []portal.Rule{sole(Reject(Web4)), sole(Reject(Web6)), sole(Reject(DNS4)), Reject(WebNode4)}, nil)
		others := []portal.Target{To(portal.TCP, VIP4, 4711), To(portal.UDP, VIP4, 4711), To(portal.TCP, VIP6, 4711)}
		for _, from := range []*Host{n.Node, n.Pod} {
			for _, t := range others {
				Expect(from.Ask(t)).To(Equal("refused"), t.String())
			}
		}
		Expect(list(n)).To(ContainSubstring("ip daddr map @cluster-ips"))
		Expect(n.Check(p)).To(BeZero())

		By("removal of one of two rules, and then of both")
		n.Apply(p, nil, []portal.Target{Web4})
		Expect(n.Node.Sh("nft list map ip usher cluster-ips")).To(ContainSubstring(VIP4.String()))
		n.Apply(p, nil, []portal.Target{DNS4})
		Expect(n.Node.Sh("nft list map ip usher cluster-ips")).NotTo(ContainSubstring(VIP4.String()))
		Expect(n.Node.Sh("nft list map ip6 usher cluster-ips")).To(ContainSubstring("fd96::10"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("has the same chains for any number of Services", func() {
		p := open()
		n.Apply(p, []portal.Rule{Redirect(Web4, 4000)}, nil)
		chains := func() string {
			text := n.Node.Sh("nft -t list table ip usher")
			return text[strings.Index(text, "chain "):]
		}
		before := chains()
		Expect(before).To(Equal(`chain prerouting {
		type nat hook prerouting priority dstnat - 10; policy accept;
		jump portals
	}

	chain output {
		type nat hook output priority -110; policy accept;
		jump portals
	}

	chain portals {
		ip daddr . meta l4proto . th dport vmap @guards
		meta l4proto { tcp, udp, sctp } dnat to 192.0.0.117:ip daddr . meta l4proto . th dport map @portals
		meta l4proto { tcp, udp, sctp } dnat to 192.0.0.117:ip daddr map @cluster-ips
		fib daddr type local jump node-ports
	}

	chain node-ports {
		meta l4proto . th dport vmap @node-port-guards
		meta l4proto { tcp, udp, sctp } dnat to 192.0.0.117:meta l4proto . th dport map @node-ports
	}

	chain outside {
		fib saddr type local return
		drop
	}

	chain listeners {
		type filter hook input priority mangle; policy accept;
		ip daddr 192.0.0.117 socket transparent 1 return
		ip daddr 192.0.0.117 tcp dport != 0 tcp flags syn / fin,syn,rst,ack drop
		ip daddr 192.0.0.117 udp dport != 0 drop
	}
}
`))
		n.Apply(p, ManyRules(500), nil)
		Expect(chains()).To(Equal(before))
	})

	It("reports that a feature could not be tested, instead of going without it", func() {
		logger, _ := logtest.NewNullLogger()
		tries := 0
		f := &backend{log: logger, family: portal.IPv4, send: func(context.Context, portal.Family, *change) error {
			if tries++; tries == 2 {
				return unix.EMFILE
			}
			return nil
		}}
		n.Node.Do(func() { Expect(f.probe()).To(MatchError(unix.EMFILE)) })
	})

	It("changes only elements that differ", func() {
		p := open()
		n.Apply(p, ManyRules(50), nil)
		var sent []*change
		for _, f := range nftFamilies(p) {
			f.send = func(ctx context.Context, family portal.Family, c *change) error {
				sent = append(sent, c)
				return sendChange(ctx, family, c)
			}
		}
		n.Apply(p, []portal.Rule{Redirect(Web4, 4000)}, nil)
		n.Apply(p, []portal.Rule{Redirect(Web4, 4001)}, nil)
		n.Apply(p, []portal.Rule{Redirect(Web4, 4001)}, nil)
		n.Apply(p, nil, []portal.Target{Web4})
		key := mapKey{target: Web4}
		value := func(port uint16) []mapElement {
			return []mapElement{{key, mapValue{port: port, comment: "default/web:http"}}}
		}
		Expect(sent).To(HaveLen(3))
		Expect(sent[0].add).To(Equal(value(4000)))
		Expect(sent[0].del).To(BeEmpty())
		Expect(sent[1].add).To(Equal(value(4001)))
		Expect(sent[1].del).To(Equal([]mapKey{key}))
		Expect(sent[2].add).To(BeEmpty())
		Expect(sent[2].del).To(Equal([]mapKey{key}))
		for _, c := range sent {
			Expect(c.chains).To(BeEmpty())
		}
	})

	It("creates a source chain with its first rule, and removes it with its last", func() {
		p := open()
		limited := Redirect(Web4, 4000)
		limited.Sources = portal.SourcesOf(Prefixes("192.0.2.0/24"))
		again := limited
		again.Target.Port = 81
		n.Apply(p, []portal.Rule{limited, again, Redirect(DNS4, 4001)}, nil)
		Expect(list(n)).To(ContainSubstring("chain from-192.0.2.0-24"))
		n.Apply(p, nil, []portal.Target{Web4})
		Expect(list(n)).To(ContainSubstring("chain from-192.0.2.0-24"))
		again.Sources = ""
		n.Apply(p, []portal.Rule{again}, nil)
		Expect(list(n)).NotTo(ContainSubstring("chain from-192.0.2.0-24"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("restores a chain that another process changed before other chains were put in", func() {
		p := open()
		n.Apply(p, []portal.Rule{Redirect(Web4, 4000)}, nil)
		before := n.Node.Sh("nft list chain ip usher outside")
		handle := regexp.MustCompile(`drop # handle (\d+)`).FindStringSubmatch(n.Node.Sh("nft -a list chain ip usher outside"))
		Expect(handle).To(HaveLen(2))
		n.Node.Sh("nft replace rule ip usher outside handle " + handle[1] + " accept")
		limited := Redirect(DNS4, 4001)
		limited.Sources = portal.SourcesOf(Prefixes("10.1.0.0/16"))
		n.Apply(p, []portal.Rule{limited}, nil)
		Expect(n.Node.Sh("nft list chain ip usher outside")).NotTo(Equal(before))
		Expect(n.Check(p)).NotTo(BeZero())
		Expect(n.Node.Sh("nft list chain ip usher outside")).To(Equal(before))
	})

	It("supports rules with hundreds of sources", func() {
		p := open()
		var networks []netip.Prefix
		for i := range 300 {
			networks = append(networks, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 32))
		}
		_, rules := n.Publish(p, "web", Web4)
		rules[0].Sources = portal.SourcesOf(append(networks, netip.MustParsePrefix("10.1.0.2/32")))
		n.Apply(p, rules, nil)
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))
		Expect(n.Node.AskFrom(Web4, 0, Soon)).To(Equal("silence"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("takes precedence over NAT rules of other programs", func() {
		n.Node.Sh(`nft 'table ip other { chain pre { type nat hook prerouting priority dstnat; ip daddr 10.96.0.0/16 dnat to 10.1.0.1; }; }'
			iptables-nft -t nat -A PREROUTING -d 10.96.0.0/16 -j REDIRECT`)
		n.Publish(open(), "web", Web4)
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
	})

	DescribeTable("repairs changes by other programs",
		func(damage string, atLeast int) {
			p := open()
			limited := Redirect(DNS4, 4000)
			limited.Sources = portal.SourcesOf(Prefixes("192.0.2.0/24"))
			n.Publish(p, "web", Web4, Web6, WebNode4)
			n.Apply(p, []portal.Rule{limited}, nil)
			state := func() []string { // re-created tables and chains are listed in another order
				return slices.Sorted(strings.Lines(n.Node.State()))
			}
			before, raw := state(), n.Node.State()
			n.Node.Sh(damage)
			Expect(n.Node.State()).NotTo(Equal(raw))
			Expect(n.Check(p)).To(BeNumerically(">=", atLeast))
			Expect(state()).To(Equal(before))
			Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
			Expect(n.Node.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
			Expect(n.Check(p)).To(BeZero())
		},
		Entry("flushed the ruleset", "nft flush ruleset", 2),
		Entry("flushed the table", "nft flush table ip usher", 6),
		Entry("deleted the tables", "nft delete table ip usher; nft delete table ip6 usher", 2),
		Entry("made the table dormant", "nft 'add table ip usher { flags dormant; }'", 1),
		Entry("flushed a chain", "nft flush chain ip usher portals", 1),
		Entry("deleted a base chain", "nft flush chain ip usher output; nft delete chain ip usher output", 1),
		Entry("changed a policy", "nft 'chain ip usher prerouting { policy drop; }'", 1),
		Entry("deleted one rule", "nft delete rule ip usher portals handle $(nft -a list chain ip usher portals | sed -n 's/.*jump node-ports # handle //p')", 1),
		Entry("moved a rule to another position", `h=$(nft -a list chain ip usher portals | sed -n 's/.*jump node-ports # handle //p')
			nft "delete rule ip usher portals handle $h; insert rule ip usher portals fib daddr type local jump node-ports"`, 1),
		Entry("added a rule", "nft insert rule ip usher portals tcp dport 80 accept", 1),
		Entry("replaced a rule", "nft replace rule ip usher portals handle $(nft -a list chain ip usher portals | sed -n 's/.*jump node-ports # handle //p') drop", 1),
		Entry("deleted an element", "nft delete element ip usher portals { 10.96.0.10 . tcp . 80 }", 1),
		Entry("flushed a map", "nft flush map ip usher portals", 2),
		Entry("changed an element", `nft 'delete element ip usher portals { 10.96.0.10 . tcp . 80 }; add element ip usher portals { 10.96.0.10 . tcp . 80 comment "default/web:http" : 9 }'`, 1),
		Entry("added elements", "nft 'add element ip usher portals { 10.96.0.99 . tcp . 80 : 9 }; add element ip usher guards { 10.96.0.10 . tcp . 80 : jump outside }'", 2),
		Entry("added elements that usher cannot read", "nft 'add element ip usher guards { 10.96.0.10 . tcp . 80 : accept }'", 1),
		Entry("added chains", "nft 'add chain ip usher a; add chain ip usher b; add rule ip usher a jump b; add rule ip usher portals goto a'", 3),
		Entry("added a base chain", "nft 'add chain ip usher input { type filter hook input priority 0; }'", 1),
		Entry("added a set", "nft 'add set ip usher more { type ipv4_addr; }'", 1),
	)

	It("replaces a table of another layout in one step", func() {
		n.Node.Sh(`nft 'table ip usher { map portals { type ipv4_addr . inet_service : inet_service; elements = { 10.96.0.10 . 80 : 9 }; }
			set old { type ipv4_addr . inet_service; }
			chain pre { type nat hook prerouting priority -150; meta l4proto tcp redirect to : ip daddr . th dport map @portals; }; }'`)
		log, seen := logtest.NewNullLogger()
		p := n.Open(Mode, portal.Options{Log: log})
		Expect(p.Listen("default/web", []portal.Target{Web4})[0].Addr.Port()).NotTo(BeEquivalentTo(9), "it does not read unknown layouts")
		n.Publish(p, "web", Web4)
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		Expect(list(n)).NotTo(Or(ContainSubstring("old"), ContainSubstring("-150")))
		Expect(seen.LastEntry().Message).To(Equal("Replacing the table"))
		Expect(seen.LastEntry().Data).To(SatisfyAll(HaveKeyWithValue("family", "IPv4"), HaveKeyWithValue("reason", "it has an unexpected set old")))
		Expect(n.Check(p)).To(BeZero())
	})

	It("keeps the rules of the previous process without a gap", func() {
		first := open()
		_, rules := n.Publish(first, "web", Web4)
		n.Apply(first, ManyRules(2000), nil)
		stop := n.KeepAsking(Web4, "web 10.96.0.10:80")
		for range 5 {
			second := open()
			n.Apply(second, append(ManyRules(1000), rules...), nil)
			n.Apply(second, ManyRules(2000), nil)
		}
		Expect(stop()).To(BeEmpty())
	})

	It("installs all other rules if the kernel refuses some, and retries those", func() {
		p := open()
		now, refuse := time.Now(), true
		p.(*redirect.Portal).Now = func() time.Time { return now }
		for _, f := range nftFamilies(p) {
			f.send = func(ctx context.Context, family portal.Family, c *change) error {
				for _, e := range c.add {
					if e.key.target.Port == 666 && refuse {
						return unix.EINVAL
					}
				}
				return sendChange(ctx, family, c)
			}
		}
		_, rules := n.Publish(p, "web", Web4)
		bad := []portal.Target{To(portal.TCP, VIP4, 666), To(portal.UDP, netip.MustParseAddr("10.96.0.20"), 666)}
		for _, t := range bad {
			rules = append(rules, Redirect(t, 4000))
		}
		for i := range 200 {
			rules = append(rules, Redirect(To(portal.TCP, netip.AddrFrom4([4]byte{10, 97, 0, byte(i)}), 80), 4001))
		}
		n.Node.Do(func() {
			Expect(portal.SortedTargets(p.Apply(Background, rules, nil).Refused)).To(ConsistOf(bad))
		})
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		Expect(strings.Count(list(n), ": 4001")).To(Equal(200))
		Expect(n.Node.Sh("nft list tables")).NotTo(ContainSubstring("probe"))
		n.Apply(p, []portal.Rule{Redirect(DNS4, 4002)}, nil)
		refuse = false
		n.Node.Do(func() {
			Expect(p.Check(Background).Refused).To(HaveLen(len(bad)), "it is too early to retry")
		})
		now = now.Add(redirect.RetryFirst)
		Expect(n.Check(p)).To(Equal(2))
		Expect(strings.Count(list(n), ". 666 ")).To(Equal(2))
	})

	It("applies a change that is split into several transactions", func() {
		p := open()
		parts := 0
		for _, f := range nftFamilies(p) {
			f.send = func(ctx context.Context, family portal.Family, c *change) error {
				for _, part := range c.parts(100) {
					parts++
					if err := sendChange(ctx, family, part); err != nil {
						return err
					}
				}
				return nil
			}
		}
		rules := ManyRules(1000)
		n.Apply(p, rules, nil)
		Expect(parts).To(BeNumerically(">=", 11))
		for i := range rules {
			rules[i].LocalPort++
			rules[i].Sources = portal.SourcesOf(Prefixes(fmt.Sprintf("192.0.2.%d/32", i%20)))
		}
		n.Apply(p, rules, []portal.Target{rules[0].Target})
		n.Apply(p, rules[:500], nil)
		Expect(n.Check(p)).To(BeZero())

		var many []netip.Prefix
		for i := range 250 {
			many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32))
		}
		rules[0].Sources = portal.SourcesOf(many)
		n.Apply(p, rules[:500], nil)
		_, chain, _ := strings.Cut(n.Node.Sh("nft list table ip usher"), "203.0.113.0 return\n")
		chain, _, _ = strings.Cut(chain, "}")
		lines := strings.Split(strings.TrimSpace(chain), "\n")
		Expect(lines).To(HaveLen(250))
		Expect(lines[248]).To(ContainSubstring("203.0.113.249 return"))
		Expect(lines[249]).To(ContainSubstring("drop"))
		Expect(n.Check(p)).To(BeZero())
	})
})
