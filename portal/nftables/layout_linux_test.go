package nftables

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
	. "github.com/usherproxy/usher/test/portaltest"
	"github.com/usherproxy/usher/test/portaltest/redirects"
)

var _ = Describe("the layout of the nftables table", func() {
	lines := func(rules []rule) (out []string) {
		for _, r := range rules {
			out = append(out, r.String())
		}
		return out
	}
	web := Target(portal.TCP, "10.96.0.10:80")
	want := func(rules ...portal.Rule) wanted {
		return wanted{fixed: fixedChains(portal.IPv4, redirects.Usual), rules: portal.ByTarget(rules)}
	}
	elements := func(r portal.Rule) (out []string) {
		found, chain, rules := elementsOf(r)
		for _, k := range []mapKey{{target: r.Target}, {target: r.Target, guard: true}} {
			if v, is := found[k]; is {
				out = append(out, fmt.Sprintf("%s %s: %d %s", k.inMap(), k.target, v.port, v.verdict))
			}
		}
		if chain != "" {
			out = append(out, chain+": "+strings.Join(lines(rules), "; "))
		}
		return out
	}

	It("is empty before the first rule", func() {
		Expect(diff(noContents(), wanted{}).empty()).To(BeTrue())
	})

	It("redirects to an address of the interface if there is no redirect address", func() {
		Expect(lines(fixedChains(portal.IPv6, redirect.Setting{})[namePortals])).To(Equal([]string{
			"ip6 daddr . meta l4proto . th dport vmap @guards",
			"meta l4proto { tcp, udp, sctp } redirect to : ip6 daddr . meta l4proto . th dport map @portals",
			"meta l4proto { tcp, udp, sctp } redirect to : ip6 daddr map @cluster-ips",
			"fib daddr type local jump node-ports",
		}))
	})

	It("skips packets that this node sends with the mark", func() {
		marking := redirects.Usual
		marking.Mark = 0x1000
		Expect(lines(fixedChains(portal.IPv6, marking)[nameOutput])).To(Equal([]string{"meta mark & 0x1000 == 0x1000 return", "jump portals"}))
		Expect(lines(fixedChains(portal.IPv6, marking)[namePrerouting])).To(Equal([]string{"jump portals"}))
	})

	It("lets only transparent sockets receive new flows to the redirect address, except on port 0", func() {
		at := redirects.Usual
		at.OwnOnly = true
		Expect(lines(fixedChains(portal.IPv4, at)[nameListeners])).To(Equal([]string{
			"ip daddr 192.0.0.117/32 socket transparent 1 return",
			"ip daddr 192.0.0.117/32 tcp dport != 0 tcp flags & (fin | syn | rst | ack) == syn drop",
			"ip daddr 192.0.0.117/32 udp dport != 0 drop",
		}))
		Expect(lines(fixedChains(portal.IPv6, at)[nameListeners])[1]).To(HaveSuffix(" frag frag-off != 0 return"))
		Expect(fixedChains(portal.IPv4, redirects.Usual)).NotTo(HaveKey(nameListeners))
	})

	Describe("with answers to clients' own addresses", func() {
		at := redirects.Usual
		at.Mark, at.Answers = 0x1000, true
		at.Aliases = []redirect.Alias{{Of: netip.MustParsePrefix("10.1.1.0/24"), As: netip.MustParsePrefix("198.18.1.0/24")}}

		It("marks usher's connections and their answers, and translates aliases in usher's packets", func() {
			fixed := fixedChains(portal.IPv4, at)
			Expect(lines(fixed[nameSent])).To(Equal([]string{
				"meta mark & 0x1000 == 0x1000 ct state new ct mark set ct mark | 0x1000",
				"ct direction reply ct mark & 0x1000 == 0x1000 meta mark set meta mark | 0x1001",
			}))
			Expect(lines(fixed[nameAnswers])).To(Equal([]string{"ct direction reply ct mark & 0x1000 == 0x1000 meta mark set meta mark | 0x1000"}))
			Expect(lines(fixed[nameAliases])).To(Equal([]string{"ip saddr 198.18.1.0/24 meta mark & 0x1000 == 0x1000 snat ip prefix to 10.1.1.0/24"}))
		})

		It("has an empty alias chain without bridges, and none if the kernel cannot translate prefixes", func() {
			without := at
			without.Aliases = nil
			Expect(fixedChains(portal.IPv4, without)).To(HaveKeyWithValue(nameAliases, BeEmpty()))
			without.NoAliases = true
			Expect(fixedChains(portal.IPv4, without)).NotTo(HaveKey(nameAliases))
			Expect(fixedChains(portal.IPv4, without)).To(HaveKey(nameSent))
		})

		It("removes the chains when they are no longer wanted", func() {
			have := diff(noContents(), wanted{fixed: fixedChains(portal.IPv4, at)}).done(noContents())
			c := diff(have, want())
			Expect(c.goneChains).To(Equal([]string{nameAliases, nameAnswers, nameSent}))
			Expect(diff(c.done(have), want()).empty()).To(BeTrue())
		})
	})

	It("matches node ports only at this node's addresses in the configured networks", func() {
		within := redirects.Usual
		within.NodePorts = Prefixes("10.0.0.0/8", "fd00::/8")
		Expect(lines(fixedChains(portal.IPv4, within)[namePortals])).To(ContainElement("ip daddr 10.0.0.0/8 fib daddr type local jump node-ports"))
		within.NodePorts = Prefixes("10.0.0.0/8")
		Expect(fixedChains(portal.IPv6, within)[namePortals]).To(HaveLen(3))
	})

	It("admits this node and its Pods where other clients are dropped", func() {
		at := redirects.Usual
		at.Pods = Prefixes("10.1.0.0/24", "fd01::/64")
		Expect(lines(fixedChains(portal.IPv4, at)[nameOutside])).To(Equal([]string{
			"fib saddr type local return", "ip saddr 10.1.0.0/24 return", "drop"}))
		at.Pods = nil
		for interfaces, match := range map[portal.Interfaces]string{"cni0": `iifname "cni0"`, "cali+": `iifname "cali*"`} {
			at.PodInterfaces = interfaces
			Expect(lines(fixedChains(portal.IPv6, at)[nameOutside])).To(Equal([]string{"fib saddr type local return", match + " return", "drop"}))
		}
	})

	It("has elements for each kind of rule", func() {
		from := func(r portal.Rule, networks ...string) portal.Rule {
			r.Sources = portal.SourcesOf(Prefixes(networks...))
			return r
		}
		local := Drop(web)
		local.LocalPort = 40001
		Expect(elements(Redirect(web, 40001))).To(Equal([]string{"portals 10.96.0.10:80/tcp: 40001 "}))
		Expect(elements(Redirect(Target(portal.UDP, "[::]:30053"), 40001))).To(Equal([]string{"node-ports [::]:30053/udp: 40001 "}))
		Expect(elements(Reject(web))).To(Equal([]string{"portals 10.96.0.10:80/tcp: 0 "}))
		Expect(elements(Drop(web))).To(Equal([]string{"guards 10.96.0.10:80/tcp: 0 drop"}))
		Expect(elements(Drop(Target(portal.TCP, "0.0.0.0:30080")))).To(Equal([]string{"node-port-guards 0.0.0.0:30080/tcp: 0 drop"}))
		Expect(elements(local)).To(Equal([]string{"portals 10.96.0.10:80/tcp: 40001 ", "guards 10.96.0.10:80/tcp: 0 jump outside"}))
		Expect(elements(from(Redirect(web, 1), "192.0.2.0/24"))).To(Equal([]string{
			"portals 10.96.0.10:80/tcp: 1 ", "guards 10.96.0.10:80/tcp: 0 jump from-192.0.2.0-24",
			"from-192.0.2.0-24: ip saddr 192.0.2.0/24 return; drop"}))
		Expect(elements(from(local, "192.0.2.0/24"))[2]).To(Equal(
			"inside-from-192.0.2.0-24: jump outside; ip saddr 192.0.2.0/24 return; drop"))
		Expect(elements(from(Redirect(web, 1), "2001:db8::/32"))).To(ContainElement("guards 10.96.0.10:80/tcp: 0 drop"), "no source of this family")
		Expect(elements(from(Redirect(web, 1), "0.0.0.0/0"))).To(HaveLen(1))
	})

	It("gives chains names that nft can read", func() {
		_, chain, _ := elementsOf(portal.Rule{Target: web, LocalPort: 1, Sources: portal.SourcesOf(Prefixes("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "10.0.0.0/8", "172.16.0.0/12"))})
		Expect(chain).To(MatchRegexp(`^from-[a-z2-7]{16}$`))
	})

	It("limits the comment of an element to the length that nft accepts", func() {
		r := Redirect(web, 1)
		r.Comment = strings.Repeat("x", 255)
		found, _, _ := elementsOf(r)
		Expect(found[mapKey{target: web}].comment).To(HaveLen(maxComment))
	})

	It("reaches any set of rules from any other, with no difference left", func() {
		random := rand.New(rand.NewPCG(3, 4))
		some := func() []portal.Rule {
			var rules []portal.Rule
			for _, r := range ManyRules(60) {
				if random.IntN(3) == 0 {
					continue
				}
				r.Action = portal.Action(random.IntN(3))
				r.LocalPort = uint16(1 + random.IntN(3))
				if random.IntN(3) == 0 {
					r.Sources = portal.SourcesOf(Prefixes(fmt.Sprintf("192.0.2.%d/32", random.IntN(3))))
				}
				rules = append(rules, r)
			}
			return rules
		}
		have := noContents()
		rules := portal.ByTarget(nil)
		for range 200 {
			next := some()
			wanted := want(next...)
			if random.IntN(2) == 0 { // as Apply does
				for t := range maps.Keys(rules) {
					wanted.targets = append(wanted.targets, t)
				}
				for _, r := range next {
					if _, was := rules[r.Target]; !was {
						wanted.targets = append(wanted.targets, r.Target)
					}
				}
			}
			parts := diff(have, wanted).parts(1 + random.IntN(50))
			for _, p := range parts {
				have = p.done(have)
			}
			rules = wanted.rules
			again := diff(have, want(next...))
			Expect(again.empty()).To(BeTrue(), "%+v", again)
			users := map[string]int{}
			for _, v := range have.elements {
				if c := v.verdict.chain(); c != "" {
					users[c]++
				}
			}
			Expect(have.users).To(Equal(users))
		}
	})

	It("replaces an element in one transaction, and removes chains in the last one", func() {
		c := &change{goneChains: []string{"from-x"}}
		for i := range uint16(10) {
			k := mapKey{target: To(portal.TCP, web.Addr, 1+i)}
			c.del = append(c.del, k)
			if i%2 == 0 {
				c.add = append(c.add, mapElement{key: k})
			}
		}
		parts := c.parts(3)
		dels := 0
		for i, p := range parts {
			for _, e := range p.add {
				Expect(slices.Contains(p.del, e.key)).To(BeTrue())
			}
			dels += len(p.del)
			Expect(len(p.goneChains) > 0).To(Equal(i == len(parts)-1))
		}
		Expect(dels).To(Equal(10))
	})
})

func BenchmarkDiffOneOf10000(b *testing.B) {
	rules := portal.ByTarget(ManyRules(10000))
	have := diff(noContents(), wanted{fixed: fixedChains(portal.IPv4, redirects.Usual), rules: rules}).done(noContents())
	t := To(portal.TCP, netip.MustParseAddr("10.111.0.1"), 81)
	rules[t] = Redirect(t, 4000)
	b.ReportAllocs()
	for b.Loop() {
		if c := diff(have, wanted{fixed: fixedChains(portal.IPv4, redirects.Usual), rules: rules, targets: []portal.Target{t}}); len(c.add) != 1 {
			b.Fatal("no change found")
		}
	}
}

var _ = Describe("the error of a transaction", func() {
	It("is only the first of its messages' errors", func() {
		var all error
		for _, err := range []error{unix.ENOENT, unix.EEXIST, unix.ENODEV} {
			all = errors.Join(all, err)
		}
		Expect(shorter(fmt.Errorf("conn.Receive: %w", all))).To(Equal(unix.ENOENT))
	})
})
