package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
	. "github.com/usherproxy/usher/test/portaltest"
	"github.com/usherproxy/usher/test/portaltest/redirects"
)

// walk evaluates the rules for a packet to t as the kernel does. It returns the final rule, and the number of rules
// compared.
func walk(chains map[string][]spec, chain string, t portal.Target, local bool) (end *spec, compared int) {
	for _, s := range chains[chain] {
		compared++
		if s.Dst.IsValid() && !s.Dst.Contains(t.Addr) || s.proto != 0 && s.proto != t.Protocol ||
			!s.ports.Contains(t.Port) || s.DstLocal && !local {
			continue
		}
		if _, isChain := chains[s.jump]; !isChain {
			return &s, compared
		}
		found, n := walk(chains, s.jump, t, local)
		compared += n
		if found != nil {
			return found, compared
		}
	}
	return nil, compared
}

var _ = Describe("the layout of iptables chains", func() {
	lines := func(chains map[string][]spec, chain string) []string {
		var out []string
		for _, s := range chains[chain] {
			out = append(out, s.String())
		}
		return out
	}
	web := Target(portal.TCP, "10.96.0.10:80")

	It("is empty without rules", func() {
		Expect(layOut(nil, redirects.Usual)).To(BeEmpty())
	})

	It("is one flat chain for few rules", func() {
		tables := layOut([]portal.Rule{Redirect(web, 40001), Reject(Target(portal.UDP, "10.96.0.11:53"))}, redirects.Usual)
		Expect(tables).To(HaveLen(1))
		nat := tables["nat"]
		Expect(nat.chains).To(HaveLen(1))
		Expect(lines(nat.chains, "USHER-PORTALS")).To(Equal([]string{
			`-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "default/web:http" -j DNAT --to-destination 192.0.0.117:40001`,
			`-d 10.96.0.11/32 -p udp -m udp --dport 53 -m comment --comment "default/none:http" -j DNAT --to-destination 192.0.0.117:0`,
		}))
		jump := spec{comment: "usher: portals of Services", jump: "USHER-PORTALS", toPort: -1}
		Expect(nat.jumps).To(Equal([]jumpRule{{chain: "PREROUTING", spec: jump}, {chain: "OUTPUT", spec: jump}}))
	})

	It("skips packets that this node sends with the mark, also when they arrive on lo", func() {
		limited, marking := Redirect(web, 40001), redirects.Usual
		limited.Sources, marking.Mark = portal.SourcesOf(Prefixes("192.0.2.0/24")), 0x1000
		var jumps []string
		for _, table := range []string{"nat", "mangle"} {
			for _, j := range layOut([]portal.Rule{limited}, marking)[table].jumps {
				Expect(parseSpec(words(j.spec.String()))).To(Equal(j.spec))
				jumps = append(jumps, table+" "+j.chain+" "+j.spec.String())
			}
		}
		Expect(jumps).To(Equal([]string{
			`nat PREROUTING -m comment --comment "usher: portals of Services" -j USHER-PORTALS`,
			`nat OUTPUT -m mark ! --mark 0x1000/0x1000 -m comment --comment "usher: portals of Services" -j USHER-PORTALS`,
			`mangle PREROUTING -m conntrack --ctstate NEW -m mark ! --mark 0x1000/0x1000 -m comment --comment "usher: clients that Services do not admit" -j USHER-DROP`,
			`mangle OUTPUT -m conntrack --ctstate NEW -m mark ! --mark 0x1000/0x1000 -m comment --comment "usher: clients that Services do not admit" -j USHER-DROP`,
		}))
	})

	It("lets only transparent sockets receive new flows to the redirect address, except on port 0", func() {
		at := redirects.Usual
		at.OwnOnly = true
		tables := map[string]*contents{}
		addListeners(tables, at)
		mangle := tables[tableMangle]
		Expect(mangle.jumps).To(HaveLen(1))
		Expect(mangle.jumps[0].chain).To(Equal("INPUT"))
		Expect(mangle.jumps[0].spec.String()).To(Equal(`-d 192.0.0.117/32 -m comment --comment "usher: its listeners only" -j USHER-LISTENERS`))
		Expect(mangle.jumps[0].anywhere()).To(BeFalse(), "no earlier rule may accept these packets")
		rules := lines(mangle.chains, "USHER-LISTENERS")
		Expect(rules).To(Equal([]string{
			"-m socket --transparent --nowildcard -j RETURN",
			"-p tcp -m tcp --dport 1:65535 -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP",
			"-p udp -m multiport --dports 1:65535 -j DROP",
		}))
		for i, text := range rules {
			Expect(parseSpec(words(text))).To(Equal(mangle.chains["USHER-LISTENERS"][i]))
		}
		Expect(parseSpec(words("-m socket --transparent -j RETURN"))).NotTo(Equal(mangle.chains["USHER-LISTENERS"][0]))
	})

	It("accepts packets redirected to the redirect address, but not those sent to it", func() {
		tables := map[string]*contents{}
		at := redirects.Usual
		at.HealthChecks = []uint16{32000}
		addAccept(tables, at, accepted(nil, at, portal.IPv4))
		filter := tables["filter"]
		Expect(filter.jumps[0].chain + " " + filter.jumps[0].spec.String()).To(Equal(`INPUT -m comment --comment "usher: redirected packets and health checks" -j USHER-ACCEPT`))
		rules := lines(filter.chains, "USHER-ACCEPT")
		Expect(rules).To(Equal([]string{"-d 192.0.0.117/32 -m conntrack --ctstate DNAT -j ACCEPT", `-p tcp -m tcp --dport 32000 -m comment --comment "health checks" -j ACCEPT`}))
		for i, rule := range rules {
			Expect(parseSpec(words(rule))).To(Equal(filter.chains["USHER-ACCEPT"][i]))
		}
	})

	It("accepts packets redirected to ports, with few comparisons per packet", func() {
		at := redirects.Usual
		at.RedirectAddr, at.HealthChecks = netip.Addr{}, []uint16{32000}
		node := netip.MustParseAddr("192.168.1.1")
		rules := map[portal.Target]portal.Rule{}
		for i := range uint16(1000) {
			t := To(portal.TCP, netip.MustParseAddr("10.96.0.10"), 1+i)
			rules[t] = Redirect(t, 40000+i)
		}
		tables := map[string]*contents{}
		addAccept(tables, at, accepted(rules, at, portal.IPv4))
		end, compared := walk(tables["filter"].chains, "USHER-ACCEPT", To(portal.TCP, node, 40999), true)
		Expect(end.String()).To(Equal("-p tcp -m tcp --dport 40999 -m conntrack --ctstate DNAT -j ACCEPT"))
		Expect(compared).To(BeNumerically("<", 100))
		end, _ = walk(tables["filter"].chains, "USHER-ACCEPT", To(portal.TCP, node, 39999), true)
		Expect(end).To(BeNil())
	})

	Describe("with answers to clients' own addresses", func() {
		at := redirects.Usual
		at.Mark, at.Answers = 0x1000, true
		at.Aliases = []redirect.Alias{{Of: netip.MustParsePrefix("10.1.1.0/24"), As: netip.MustParsePrefix("198.18.1.0/24")}}
		layOut := func(at redirect.Setting, rules ...portal.Rule) map[string]*contents {
			tables := layOut(rules, at)
			addAnswers(tables, at)
			return tables
		}

		It("marks usher's connections and their answers, and translates aliases in usher's packets", func() {
			tables := layOut(at, Redirect(web, 40001))
			mangle, nat := tables["mangle"], tables["nat"]
			Expect(lines(mangle.chains, chainSent)).To(Equal([]string{
				"-m conntrack --ctstate NEW -m mark --mark 0x1000/0x1000 -j CONNMARK --set-xmark 0x1000/0x1000",
				"-m connmark --mark 0x1000/0x1000 -m conntrack --ctdir REPLY -j MARK --set-xmark 0x1001/0x1001",
			}))
			Expect(lines(mangle.chains, chainAnswers)).To(Equal([]string{"-m connmark --mark 0x1000/0x1000 -m conntrack --ctdir REPLY -j MARK --set-xmark 0x1000/0x1000"}))
			Expect(lines(nat.chains, chainAliases)).To(Equal([]string{"-s 198.18.1.0/24 -m mark --mark 0x1000/0x1000 -j NETMAP --to 10.1.1.0/24"}))
			var jumps []string
			for _, j := range append(mangle.jumps, nat.jumps[2:]...) {
				jumps = append(jumps, j.chain+" "+j.spec.String())
			}
			Expect(jumps).To(Equal([]string{
				`OUTPUT -m comment --comment "usher: clients' own addresses" -j USHER-SENT`,
				`PREROUTING -m comment --comment "usher: clients' own addresses" -j USHER-ANSWERS`,
				`POSTROUTING -m comment --comment "usher: clients' own addresses" -j USHER-ALIASES`,
			}))
			for _, t := range tables {
				for chain := range t.chains {
					for _, s := range t.chains[chain] {
						Expect(parseSpec(words(s.String()))).To(Equal(s), "it is parsed as it was written")
					}
				}
			}
		})

		It("has no alias rules if NETMAP is missing", func() {
			without := at
			without.NoAliases = true
			Expect(layOut(without, Redirect(web, 40001))["nat"].chains).NotTo(HaveKey(chainAliases))
		})

		It("moves only the jump that translates to the front of its chain", func() {
			tables := layOut(at, Redirect(web, 40001))
			have := asInstalled(tables, nil)
			for _, table := range have {
				for i := range table.jumps {
					table.jumps[i].position = 3
				}
			}
			Expect(movedDown(have, map[string]*contents{"mangle": tables["mangle"]})).To(BeFalse())
			Expect(movedDown(have, tables)).To(BeTrue())
			c := diff(have, tables, nil, true)
			Expect(c.script).To(And(ContainSubstring("-I POSTROUTING 1 "), Not(ContainSubstring("*mangle"))))
			Expect(diff(map[string]*contents{}, tables, nil, true).script).To(And(ContainSubstring("-A OUTPUT "), ContainSubstring("-A PREROUTING ")))
		})
	})

	DescribeTable("does not mistake a rule with another effect for usher's", func(rule string) {
		Expect(parseSpec(words(rule)).other).NotTo(BeEmpty())
	},
		Entry(nil, "-m connmark --mark 0x1000/0x1000 -j MARK --set-xmark 0x1000/0x1000"),
		Entry(nil, "-m conntrack --ctdir REPLY -j MARK --set-xmark 0x1000/0x1000"),
		Entry(nil, "-m connmark --mark 0x1000/0x1000 -m conntrack --ctdir ORIGINAL -j MARK --set-xmark 0x1000/0x1000"),
		Entry(nil, "-m mark --mark 0x1000/0xf000 -j CONNMARK --set-xmark 0x1000/0x1000"),
		Entry(nil, "-m connmark ! --mark 0x1000/0x1000 -m conntrack --ctdir REPLY -j MARK --set-xmark 0x1000/0x1000"),
		Entry(nil, "-m mark --mark 0x1000/0x1000 -j MARK --set-xmark 0x1000/0xffffffff"),
		Entry(nil, "-j CONNMARK --restore-mark --nfmask 0x1000 --ctmask 0x1000"),
	)

	It("rejects with REDIRECT if iptables does not support DNAT to port 0", func() {
		old := redirects.Usual
		old.NoPort0 = true
		chains := layOut([]portal.Rule{Redirect(web, 40001), Reject(Target(portal.SCTP, "10.96.0.11:80"))}, old)["nat"].chains
		Expect(lines(chains, "USHER-PORTALS")).To(HaveExactElements(
			HaveSuffix("-j DNAT --to-destination 192.0.0.117:40001"), HaveSuffix("-j REDIRECT --to-ports 0")))
	})

	It("matches node ports after all VIPs, and only at addresses of this node", func() {
		tables := layOut([]portal.Rule{Redirect(Target(portal.TCP, "0.0.0.0:30080"), 40001), Redirect(web, 40001)}, redirects.Usual)
		Expect(lines(tables["nat"].chains, "USHER-PORTALS")).To(HaveExactElements(
			HavePrefix("-d 10.96.0.10/32"), Equal("-m addrtype --dst-type LOCAL -j USHER-NODEPORTS")))
		Expect(lines(tables["nat"].chains, "USHER-NODEPORTS")).To(HaveExactElements(HavePrefix("-p tcp -m tcp --dport 30080 ")))
	})

	It("works without comments, and uses REDIRECT without a redirect address", func() {
		tables := layOut([]portal.Rule{Redirect(Target(portal.TCP, "0.0.0.0:30080"), 40001)}, redirect.Setting{})
		Expect(lines(tables["nat"].chains, "USHER-PORTALS")).To(Equal([]string{"-m addrtype --dst-type LOCAL -j USHER-NODEPORTS"}))
		Expect(lines(tables["nat"].chains, "USHER-NODEPORTS")).To(Equal([]string{
			"-p tcp -m tcp --dport 30080 -j REDIRECT --to-ports 40001"}))
	})

	It("matches node ports only at this node's addresses in the configured networks", func() {
		within := redirects.Usual
		within.NodePorts = Prefixes("10.0.0.0/8", "127.0.0.1/32", "fd00::/8")
		jumps := func(rule portal.Rule) []string {
			return lines(layOut([]portal.Rule{rule}, within)["nat"].chains, "USHER-PORTALS")
		}
		four, six := Redirect(Target(portal.TCP, "0.0.0.0:30080"), 40001), Redirect(Target(portal.TCP, "[::]:30080"), 40001)
		Expect(jumps(four)).To(Equal([]string{
			"-d 10.0.0.0/8 -m addrtype --dst-type LOCAL -j USHER-NODEPORTS", "-d 127.0.0.1/32 -m addrtype --dst-type LOCAL -j USHER-NODEPORTS"}))
		Expect(jumps(six)).To(Equal([]string{"-d fd00::/8 -m addrtype --dst-type LOCAL -j USHER-NODEPORTS"}))

		within.NodePorts = Prefixes("0.0.0.0/0")
		Expect(jumps(four)).To(Equal([]string{"-m addrtype --dst-type LOCAL -j USHER-NODEPORTS"}))
		Expect(jumps(six)).To(BeEmpty())
	})

	It("drops new connections of all clients in mangle", func() {
		tables := layOut([]portal.Rule{Drop(web)}, redirects.Usual)
		Expect(tables).To(HaveLen(1))
		Expect(lines(tables["mangle"].chains, "USHER-DROP")).To(HaveExactElements(
			`-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "default/local:http" -j DROP`))
		jump := spec{fresh: true, comment: "usher: clients that Services do not admit", jump: "USHER-DROP", toPort: -1}
		Expect(tables["mangle"].jumps).To(Equal([]jumpRule{{chain: "PREROUTING", spec: jump}, {chain: "OUTPUT", spec: jump}}))
	})

	It("drops only connections from outside, and redirects this node's, if a port is given", func() {
		rule := Drop(web)
		rule.LocalPort = 40001
		at := redirects.Usual
		at.Pods = Prefixes("10.1.0.0/24", "fd01::/64")
		tables := layOut([]portal.Rule{rule}, at)
		Expect(lines(tables["nat"].chains, "USHER-PORTALS")).To(HaveExactElements(HaveSuffix(" --to-destination 192.0.0.117:40001")))
		Expect(lines(tables["mangle"].chains, "USHER-DROP")).To(HaveExactElements(HaveSuffix("-j USHER-OUTSIDE")))
		Expect(lines(tables["mangle"].chains, "USHER-OUTSIDE")).To(Equal([]string{
			"-m addrtype --src-type LOCAL -j RETURN", "-s 10.1.0.0/24 -j RETURN", "-j DROP"}))

		at.Pods, at.PodInterfaces = nil, "cali+"
		outside := layOut([]portal.Rule{rule}, at)["mangle"].chains["USHER-OUTSIDE"]
		Expect(outside[1].String()).To(Equal("-i cali+ -j RETURN"))
		Expect(parseSpec(words(outside[1].String()))).To(Equal(outside[1]))
	})

	It("drops connections from other sources, with one chain for rules with equal sources", func() {
		dns := Redirect(Target(portal.UDP, "10.96.0.10:53"), 40002)
		rules := []portal.Rule{Redirect(web, 40001), dns, Drop(Target(portal.TCP, "10.96.0.11:80")), Redirect(Target(portal.TCP, "10.96.0.12:80"), 1)}
		rules[0].Sources = portal.SourcesOf(Prefixes("192.0.2.7/24"))
		rules[1].Sources = rules[0].Sources
		rules[2].LocalPort = 40001
		rules[2].Sources = portal.SourcesOf(Prefixes("192.0.2.0/24", "198.51.100.0/24"))
		rules[3].Sources = portal.SourcesOf(Prefixes("0.0.0.0/0"))
		tables := layOut(rules, redirects.Usual)
		Expect(tables["nat"].chains["USHER-PORTALS"]).To(HaveLen(4))
		mangle := tables["mangle"].chains
		Expect(lines(mangle, "USHER-DROP")).To(HaveExactElements(
			HaveSuffix("-j USHER-FROM-192.0.2.0-24"), HaveSuffix("-j USHER-FROM-192.0.2.0-24"),
			HaveSuffix("-j USHER-OUTSIDE"), HaveSuffix("-j "+chainName("FROM", "192.0.2.0-24", "198.51.100.0-24"))))
		Expect(lines(mangle, "USHER-FROM-192.0.2.0-24")).To(Equal([]string{"-s 192.0.2.0/24 -j RETURN", "-j DROP"}))
		Expect(mangle).To(HaveLen(4))
	})

	DescribeTable("finds each of many rules after few comparisons",
		func(rules []portal.Rule, most int) {
			chains := layOut(rules, redirects.Usual)["nat"].chains
			worst := 0
			for _, r := range rules {
				t := r.Target
				local := t.Addr.IsUnspecified()
				if local {
					t.Addr = netip.MustParseAddr("192.168.1.1")
					if rules[len(rules)-1].Target.Addr.Is6() {
						t.Addr = netip.MustParseAddr("fd77::1")
					}
				}
				end, n := walk(chains, chainPortals, t, local)
				worst = max(worst, n)
				Expect(end).NotTo(BeNil(), t.String())
				Expect(end.toPort).To(BeEquivalentTo(r.LocalPort), t.String())
				t.Port ^= 0x4000
				end, n = walk(chains, chainPortals, t, local)
				worst = max(worst, n)
				Expect(end).To(BeNil())
			}
			for name, specs := range chains {
				Expect(len(name)).To(BeNumerically("<=", maxChainName), name)
				Expect(len(specs)).To(BeNumerically("<=", maxFlat+1), name)
			}
			GinkgoWriter.Printf("%d rules: %d chains, at most %d comparisons\n", len(rules), len(chains), worst)
			Expect(worst).To(BeNumerically("<=", most))
		},
		Entry("10,000, cluster IPs and node ports", ManyRules(10000), 110),
		Entry("the maximum for a flat chain", ManyRules(32), 33),
		Entry("one more than the maximum for a flat chain", ManyRules(33), 60),
		Entry("one VIP with 3,000 ports of two protocols", func() (rules []portal.Rule) {
			for i := range 3000 {
				rules = append(rules, Redirect(To([]portal.Protocol{portal.TCP, portal.UDP}[i/1500], netip.MustParseAddr("10.0.0.1"), uint16(1000+i%1500)), uint16(i+1)))
			}
			return
		}(), 80),
		Entry("2,000 IPv6 VIPs of a /112 and two elsewhere", func() (rules []portal.Rule) {
			byTarget := map[portal.Target]portal.Rule{}
			for i := range 2000 {
				t := Target(portal.TCP, fmt.Sprintf("[fd00:10:96::%x]:443", i*29+1))
				byTarget[t] = Redirect(t, uint16(i+1))
			}
			for i, a := range []string{"[2001:db8::1]:443", "[fd00:10:97::1]:443"} {
				byTarget[Target(portal.TCP, a)] = Redirect(Target(portal.TCP, a), uint16(5000+i))
			}
			return portal.InOrder(byTarget)
		}(), 110),
	)

	It("changes few chains when one Service is added among 10,000", func() {
		rules := ManyRules(10001)
		before := slices.Delete(slices.Clone(rules), 7000, 7001)
		had := asInstalled(layOut(before, redirects.Usual), nil)
		c := diff(had, layOut(rules, redirects.Usual), nil, true)
		Expect(len(c.repairs)).To(BeNumerically("<=", 3))
		Expect(len(c.script)).To(BeNumerically("<", 10000))
	})
})

func BenchmarkLayoutAndDiff10000(b *testing.B) {
	rules := ManyRules(10001)
	had := asInstalled(layOut(slices.Delete(slices.Clone(rules), 7000, 7001), redirects.Usual), nil)
	b.ReportAllocs()
	for b.Loop() {
		if c := diff(had, layOut(rules, redirects.Usual), nil, true); c.script == "" {
			b.Fatal("no change found")
		}
	}
}

func BenchmarkFirstScript10000(b *testing.B) {
	rules := ManyRules(10000)
	b.ReportAllocs()
	for b.Loop() {
		diff(nil, layOut(rules, redirects.Usual), nil, true)
	}
}
