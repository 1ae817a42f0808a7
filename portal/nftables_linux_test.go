package portal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
)

// nftFamilies returns the families of a portal of mode nftables.
func nftFamilies(p Portal) (all []*nftRules) {
	for _, b := range p.(*redirectPortal).backends() {
		all = append(all, b.(*nftRules))
	}
	return all
}

var _ = Describe("portal nftables", func() {
	list := func(n *testNet) string { return n.node.sh("nft list table ip usher 2>/dev/null || true") }
	k := &redirectKind{
		name: "nftables", mode: nftablesMode, options: Options{Mark: 0x2000}, saved: list,
		limits: func(n *testNet) int {
			return strings.Count(n.node.sh("nft list map ip usher guards 2>&1; nft list map ip usher node-port-guards 2>&1 || true"), " comment ")
		},
		wipe:  "nft delete table ip usher",
		first: 3 * time.Second, one: 20 * time.Millisecond,
	}
	var n *testNet
	BeforeEach(func() {
		if _, err := exec.LookPath("nft"); err != nil {
			Skip("needs nft")
		}
		n = newTestNet()
		k.n = n
	})
	itRedirects(k)
	open := func() Portal { GinkgoHelper(); return n.open(nftablesMode, Options{}) }

	It("has a table that nft lists, and takes back from a file", func() {
		p := open()
		n.publish(p, "web", web4, web6, webNode4, webNode6)
		limited := drop(Target{TCP, vip4, 81})
		limited.LocalPort, limited.Sources = 4000, SourcesOf(prefixes("192.0.2.0/24"))
		limited6 := redirect(Target{UDP, vip6, 81}, 4000)
		limited6.Sources = SourcesOf(prefixes("2001:db8::/32"))
		p.SetLocalSources(prefixes("10.1.0.0/24", "fd01::/64"))
		n.apply(p, []Rule{limited, limited6, drop(dns4), redirect(Target{SCTP, vip4, 80}, 4000)}, nil)
		Expect(list(n)).To(And(
			ContainSubstring("type nat hook prerouting priority dstnat - 10; policy accept;"),
			ContainSubstring(`10.96.0.10 . udp . 53 comment "default/local:http" : drop`),
			ContainSubstring(`10.96.0.10 . tcp . 81 comment "default/local:http" : jump inside-from-192.0.2.0-24`),
			ContainSubstring("ip saddr 10.1.0.0/24 return"),
		))
		Expect(n.node.sh("nft list table ip6 usher")).To(ContainSubstring("jump from-2001_db8__-32"))
		n.node.sh(`nft list ruleset >/tmp/usher-nft-$$; { echo flush ruleset; cat /tmp/usher-nft-$$; } | nft -f -; rm /tmp/usher-nft-$$`)
		for _, from := range []*host{n.node, n.pod} {
			Expect(from.ask(web4)).To(Equal("web 10.96.0.10:80"))
			Expect(from.ask(web6)).To(Equal("web [fd96::10]:80"))
			Expect(from.ask(at(webNode4, nodeIP4))).To(Equal("web 10.1.0.1:30080"))
		}
		n.check(p)
		Expect(n.check(p)).To(BeZero())
	})

	It("has rules that are the same however many Services there are", func() {
		p := open()
		n.apply(p, []Rule{redirect(web4, 4000)}, nil)
		chains := func() string {
			text := n.node.sh("nft -t list table ip usher")
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
}
`))
		n.apply(p, manyRules(500), nil)
		Expect(chains()).To(Equal(before))
	})

	It("changes no more than what differs", func() {
		p := open()
		n.apply(p, manyRules(50), nil)
		var sent []*nftChange
		for _, f := range nftFamilies(p) {
			f.send = func(ctx context.Context, family Family, c *nftChange) error {
				sent = append(sent, c)
				return sendNFT(ctx, family, c)
			}
		}
		n.apply(p, []Rule{redirect(web4, 4000)}, nil)
		n.apply(p, []Rule{redirect(web4, 4001)}, nil)
		n.apply(p, []Rule{redirect(web4, 4001)}, nil)
		n.apply(p, nil, []Target{web4})
		key := nftKey{target: web4}
		value := func(port uint16) []nftElement {
			return []nftElement{{key, nftValue{port: port, comment: "default/web:http"}}}
		}
		Expect(sent).To(HaveLen(3))
		Expect(sent[0].add).To(Equal(value(4000)))
		Expect(sent[0].del).To(BeEmpty())
		Expect(sent[1].add).To(Equal(value(4001)))
		Expect(sent[1].del).To(Equal([]nftKey{key}))
		Expect(sent[2].add).To(BeEmpty())
		Expect(sent[2].del).To(Equal([]nftKey{key}))
		for _, c := range sent {
			Expect(c.chains).To(BeEmpty())
		}
	})

	It("makes and removes the chains of rules that have sources with the first and the last of them", func() {
		p := open()
		limited := redirect(web4, 4000)
		limited.Sources = SourcesOf(prefixes("192.0.2.0/24"))
		again := limited
		again.Target.Port = 81
		n.apply(p, []Rule{limited, again, redirect(dns4, 4001)}, nil)
		Expect(list(n)).To(ContainSubstring("chain from-192.0.2.0-24"))
		n.apply(p, nil, []Target{web4})
		Expect(list(n)).To(ContainSubstring("chain from-192.0.2.0-24"))
		again.Sources = Sources{}
		n.apply(p, []Rule{again}, nil)
		Expect(list(n)).NotTo(ContainSubstring("chain from-192.0.2.0-24"))
		Expect(n.check(p)).To(BeZero())
	})

	It("has rules with hundreds of sources", func() {
		p := open()
		var networks []netip.Prefix
		for i := range 300 {
			networks = append(networks, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 32))
		}
		_, rules := n.publish(p, "web", web4)
		rules[0].Sources = SourcesOf(append(networks, netip.MustParsePrefix("10.1.0.2/32")))
		n.apply(p, rules, nil)
		Expect(n.pod.ask(web4)).To(HavePrefix("web"))
		Expect(n.node.askFrom(web4, 0, soon)).To(Equal("silence"))
		Expect(n.check(p)).To(BeZero())
	})

	It("comes before what others do with nat", func() {
		n.node.sh(`nft 'table ip other { chain pre { type nat hook prerouting priority dstnat; ip daddr 10.96.0.0/16 dnat to 10.1.0.1; }; }'
			iptables-nft -t nat -A PREROUTING -d 10.96.0.0/16 -j REDIRECT`)
		n.publish(open(), "web", web4)
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
	})

	DescribeTable("repairs what others did to it",
		func(damage string, atLeast int) {
			p := open()
			limited := redirect(dns4, 4000)
			limited.Sources = SourcesOf(prefixes("192.0.2.0/24"))
			n.publish(p, "web", web4, web6, webNode4)
			n.apply(p, []Rule{limited}, nil)
			state := func() []string { // tables and chains that are made anew come in another order
				return slices.Sorted(strings.Lines(n.node.state()))
			}
			before, raw := state(), n.node.state()
			n.node.sh(damage)
			Expect(n.node.state()).NotTo(Equal(raw))
			Expect(n.check(p)).To(BeNumerically(">=", atLeast))
			Expect(state()).To(Equal(before))
			Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
			Expect(n.node.ask(web4)).To(Equal("web 10.96.0.10:80"))
			Expect(n.check(p)).To(BeZero())
		},
		Entry("flushed the ruleset", "nft flush ruleset", 2),
		Entry("flushed the table", "nft flush table ip usher", 6),
		Entry("deleted the tables", "nft delete table ip usher; nft delete table ip6 usher", 2),
		Entry("made the table dormant", "nft 'add table ip usher { flags dormant; }'", 1),
		Entry("flushed a chain", "nft flush chain ip usher portals", 1),
		Entry("deleted a base chain", "nft flush chain ip usher output; nft delete chain ip usher output", 1),
		Entry("changed a policy", "nft 'chain ip usher prerouting { policy drop; }'", 1),
		Entry("deleted one rule", "nft delete rule ip usher portals handle $(nft -a list chain ip usher portals | sed -n 's/.*jump node-ports # handle //p')", 1),
		Entry("put the same rule in again in another place", `h=$(nft -a list chain ip usher portals | sed -n 's/.*jump node-ports # handle //p')
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
		n.node.sh(`nft 'table ip usher { map portals { type ipv4_addr . inet_service : inet_service; elements = { 10.96.0.10 . 80 : 9 }; }
			set old { type ipv4_addr . inet_service; }
			chain pre { type nat hook prerouting priority -150; meta l4proto tcp redirect to : ip daddr . th dport map @portals; }; }'`)
		log, seen := logtest.NewNullLogger()
		p := n.open(nftablesMode, Options{Log: log})
		Expect(p.Listen("default/web", []Target{web4})[0].Addr.Port()).NotTo(BeEquivalentTo(9), "what it does not know it does not read")
		n.publish(p, "web", web4)
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
		Expect(list(n)).NotTo(Or(ContainSubstring("old"), ContainSubstring("-150")))
		Expect(seen.LastEntry().Message).To(ContainSubstring("is replaced"))
		Expect(n.check(p)).To(BeZero())
	})

	It("keeps the rules of the process before it without a gap", func() {
		first := open()
		_, rules := n.publish(first, "web", web4)
		n.apply(first, manyRules(2000), nil)
		stop, done := make(chan struct{}), make(chan []string)
		go func() {
			defer GinkgoRecover()
			var wrong []string
			defer func() { done <- wrong }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if answer := n.pod.askFrom(web4, 0, 2*time.Second); answer != "web 10.96.0.10:80" {
					wrong = append(wrong, answer)
				}
			}
		}()
		for range 5 {
			second := open()
			n.apply(second, append(manyRules(1000), rules...), nil)
			n.apply(second, manyRules(2000), nil)
		}
		close(stop)
		Expect(<-done).To(BeEmpty())
	})

	It("puts in all other rules when the kernel refuses some, names those, and tries them again", func() {
		p := open()
		now, refuse := time.Now(), true
		p.(*redirectPortal).now = func() time.Time { return now }
		for _, f := range nftFamilies(p) {
			f.send = func(ctx context.Context, family Family, c *nftChange) error {
				for _, e := range c.add {
					if e.key.target.Port == 666 && refuse {
						return unix.EINVAL
					}
				}
				return sendNFT(ctx, family, c)
			}
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
		})
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
		Expect(strings.Count(list(n), ": 4001")).To(Equal(200))
		Expect(n.node.sh("nft list tables")).NotTo(ContainSubstring("probe"))
		n.apply(p, []Rule{redirect(dns4, 4002)}, nil)
		refuse = false
		n.node.do(func() {
			_, err := p.Check(background)
			Expect(err).To(HaveOccurred(), "it is too early to try again")
		})
		now = now.Add(retryFirst)
		Expect(n.check(p)).To(Equal(2))
		Expect(strings.Count(list(n), ". 666 ")).To(Equal(2))
	})

	It("takes several transactions where the kernel takes none that is large enough", func() {
		p := open()
		parts := 0
		for _, f := range nftFamilies(p) {
			f.send = func(ctx context.Context, family Family, c *nftChange) error {
				for _, part := range c.parts(100) {
					parts++
					if err := sendNFT(ctx, family, part); err != nil {
						return err
					}
				}
				return nil
			}
		}
		rules := manyRules(1000)
		n.apply(p, rules, nil)
		Expect(parts).To(BeNumerically(">=", 11))
		for i := range rules {
			rules[i].LocalPort++
			rules[i].Sources = SourcesOf(prefixes(fmt.Sprintf("192.0.2.%d/32", i%20)))
		}
		n.apply(p, rules, []Target{rules[0].Target})
		n.apply(p, rules[:500], nil)
		Expect(n.check(p)).To(BeZero())
	})
})
