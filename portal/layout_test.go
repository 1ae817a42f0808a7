package portal

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var allMatches = matches{comment: true, addrtype: true}

// manyRules returns n rules: three quarters are cluster IPs spread over
// 10.96.0.0/12, the others node ports.
func manyRules(n int) []Rule {
	random := rand.New(rand.NewPCG(1, 2))
	rules := map[Target]Rule{}
	for len(rules) < n {
		t := Target{TCP, netip.AddrFrom4([4]byte{10, 96 | byte(random.IntN(16)), byte(random.IntN(256)), byte(random.IntN(256))}), 80}
		if len(rules)%4 == 3 {
			t = Target{[]Protocol{TCP, UDP}[random.IntN(2)], anyIPv4, uint16(30000 + random.IntN(2768))}
		}
		rules[t] = redirect(t, uint16(10000+len(rules)))
	}
	return inOrder(rules)
}

func inOrder(rules map[Target]Rule) []Rule {
	var out []Rule
	for _, t := range sortedTargets(rules) {
		out = append(out, rules[t])
	}
	return out
}

// walk does what the kernel does with a packet for t: it returns the rule
// that the packet ends with, and with how many rules it was compared.
func walk(chains map[string][]spec, chain string, t Target, local bool) (end *spec, compared int) {
	for _, s := range chains[chain] {
		compared++
		if s.dst.IsValid() && !s.dst.Contains(t.Addr) || s.proto != 0 && s.proto != t.Protocol ||
			!s.ports.contains(t.Port) || s.local && !local {
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
	web := target(TCP, "10.96.0.10:80")

	It("is nothing at all without rules", func() {
		Expect(layOut(nil, allMatches)).To(BeEmpty())
	})

	It("is one flat chain while there are few rules", func() {
		tables := layOut([]Rule{redirect(web, 40001), reject(target(UDP, "10.96.0.11:53"))}, allMatches)
		Expect(tables).To(HaveLen(1))
		nat := tables["nat"]
		Expect(nat.chains).To(HaveLen(1))
		Expect(lines(nat.chains, "USHER-PORTALS")).To(Equal([]string{
			`-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "default/web:http" -j REDIRECT --to-ports 40001`,
			`-d 10.96.0.11/32 -p udp -m udp --dport 53 -m comment --comment "default/none:http" -j REDIRECT --to-ports 0`,
		}))
		jump := spec{comment: "usher: portals of Services", jump: "USHER-PORTALS", toPort: -1}
		Expect(nat.jumps).To(Equal([]wantedJump{{"PREROUTING", jump}, {"OUTPUT", jump}}))
	})

	It("asks for node ports after all VIPs, and only at addresses of this node", func() {
		tables := layOut([]Rule{redirect(target(TCP, "0.0.0.0:30080"), 40001), redirect(web, 40001)}, allMatches)
		Expect(lines(tables["nat"].chains, "USHER-PORTALS")).To(HaveExactElements(
			HavePrefix("-d 10.96.0.10/32"), Equal("-m addrtype --dst-type LOCAL -j USHER-NODEPORTS")))
		Expect(lines(tables["nat"].chains, "USHER-NODEPORTS")).To(HaveExactElements(HavePrefix("-p tcp -m tcp --dport 30080 ")))
	})

	It("lists this node's addresses where addrtype is missing, and leaves out comments where they are", func() {
		tables := layOut([]Rule{redirect(target(TCP, "0.0.0.0:30080"), 40001)},
			matches{local: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.1/32")}})
		Expect(lines(tables["nat"].chains, "USHER-PORTALS")).To(Equal([]string{
			"-d 127.0.0.0/8 -j USHER-NODEPORTS", "-d 10.0.0.1/32 -j USHER-NODEPORTS"}))
		Expect(lines(tables["nat"].chains, "USHER-NODEPORTS")).To(Equal([]string{
			"-p tcp -m tcp --dport 30080 -j REDIRECT --to-ports 40001"}))
	})

	It("drops new connections in mangle, and redirects the node's own if a port is given", func() {
		local := drop(web)
		tables := layOut([]Rule{local}, allMatches)
		Expect(tables).To(HaveLen(1))
		Expect(lines(tables["mangle"].chains, "USHER-DROP")).To(HaveExactElements(HaveSuffix("-j DROP")))
		Expect(tables["mangle"].jumps).To(HaveLen(1))
		Expect(tables["mangle"].jumps[0].chain).To(Equal("PREROUTING"))
		Expect(tables["mangle"].jumps[0].spec.fresh).To(BeTrue())

		local.LocalPort = 40001
		tables = layOut([]Rule{local}, allMatches)
		Expect(lines(tables["nat"].chains, "USHER-PORTALS")).To(HaveExactElements(HaveSuffix("--to-ports 40001")))
		Expect(tables["mangle"].chains).To(HaveKey("USHER-DROP"))
	})

	DescribeTable("finds each of many rules after few comparisons",
		func(rules []Rule, most int) {
			chains := layOut(rules, allMatches)["nat"].chains
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
		Entry("10,000, cluster IPs and node ports", manyRules(10000), 110),
		Entry("as many as are still flat", manyRules(32), 33),
		Entry("one more than that", manyRules(33), 60),
		Entry("one VIP with 3,000 ports of two protocols", func() (rules []Rule) {
			for i := range 3000 {
				rules = append(rules, redirect(Target{[]Protocol{TCP, UDP}[i/1500], netip.MustParseAddr("10.0.0.1"), uint16(1000 + i%1500)}, uint16(i+1)))
			}
			return
		}(), 80),
		Entry("2,000 IPv6 VIPs of a /112 and two elsewhere", func() (rules []Rule) {
			byTarget := map[Target]Rule{}
			for i := range 2000 {
				t := target(TCP, fmt.Sprintf("[fd00:10:96::%x]:443", i*29+1))
				byTarget[t] = redirect(t, uint16(i+1))
			}
			for i, a := range []string{"[2001:db8::1]:443", "[fd00:10:97::1]:443"} {
				byTarget[target(TCP, a)] = redirect(target(TCP, a), uint16(5000+i))
			}
			return inOrder(byTarget)
		}(), 110),
	)

	It("changes few chains when one Service is added among 10,000", func() {
		rules := manyRules(10001)
		before := slices.Delete(slices.Clone(rules), 7000, 7001)
		had := asInstalled(layOut(before, allMatches), nil)
		c := diff(had, layOut(rules, allMatches), nil, true)
		Expect(len(c.repairs)).To(BeNumerically("<=", 3))
		Expect(len(c.script)).To(BeNumerically("<", 10000))
	})
})

func BenchmarkLayoutAndDiff10000(b *testing.B) {
	rules := manyRules(10001)
	had := asInstalled(layOut(slices.Delete(slices.Clone(rules), 7000, 7001), allMatches), nil)
	b.ReportAllocs()
	for b.Loop() {
		if c := diff(had, layOut(rules, allMatches), nil, true); c.script == "" {
			b.Fatal("no change found")
		}
	}
}

func BenchmarkFirstScript10000(b *testing.B) {
	rules := manyRules(10000)
	b.ReportAllocs()
	for b.Loop() {
		diff(nil, layOut(rules, allMatches), nil, true)
	}
}
