package modes

import (
	"context"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/nftables"
	. "github.com/usherproxy/usher/test/portaltest"
)

// inputDrops runs a script on a dedicated node, and returns the rules of its kernel that drop input.
func inputDrops(n *Net, script string) (drops []string) {
	GinkgoHelper()
	n.Node.Sh("set -e\n" + script)
	n.Node.Do(func() {
		var err error
		drops, err = kernel.InputDrops()
		Expect(err).NotTo(HaveOccurred())
	})
	return drops
}

var _ = Describe("a host firewall", func() {
	// both returns a script for both iptables and ip6tables.
	both := func(variant, script string) string {
		for4 := strings.NewReplacer("IPT", "iptables-"+variant, "LANDING", "192.0.0.117").Replace(script)
		return for4 + "\n" + strings.NewReplacer("IPT", "ip6tables-"+variant, "LANDING", "fd75:7368:6572::1").Replace(script)
	}
	for _, variant := range []string{"nft", "legacy"} {
		chain := func(name string) []string {
			if variant == "nft" {
				return []string{"chain " + name + " of table ip filter", "chain " + name + " of table ip6 filter"}
			}
			return []string{"chain " + name + " of table filter of iptables-legacy", "chain " + name + " of table filter of ip6tables-legacy"}
		}
		DescribeTable("of iptables-"+variant+" is detected if it may drop redirected packets", func(script, drops string) {
			want := []string{}
			if drops != "" {
				want = chain(drops)
			}
			Expect(inputDrops(NewNet(), both(variant, script))).To(ConsistOf(want))
		},
			Entry("not if it has no such rule", "IPT -A INPUT -p tcp --dport 23 -j DROP", ""),
			Entry("by policy", "IPT -P INPUT DROP; IPT -A INPUT -p tcp --dport 22 -j ACCEPT", "INPUT"),
			Entry("by its last rule, with a comment", `IPT -A INPUT -p tcp --dport 22 -j ACCEPT; IPT -A INPUT -m comment --comment "no -j ACCEPT" -j REJECT`, "INPUT"),
			Entry("in a chain that all packets traverse", "IPT -N ours; IPT -N deny; IPT -A INPUT -i lo -j ACCEPT; IPT -A INPUT -j ours; IPT -A ours -j deny; IPT -A deny -j DROP", "deny"),
			Entry("in a chain that some packets traverse", "IPT -N from-pods; IPT -A INPUT -i pod0 -j from-pods; IPT -A from-pods -j DROP", "from-pods"),
			Entry("as ufw does, which first filters packets for other destinations",
				"IPT -P INPUT DROP; IPT -N not-local; IPT -N before; IPT -A INPUT -j before; IPT -A before -i lo -j ACCEPT; IPT -A before -j not-local; IPT -A not-local -m addrtype --dst-type LOCAL -j RETURN; IPT -A not-local -j DROP", "INPUT"),
			Entry("not if it accepts all packets in a chain", "IPT -P INPUT DROP; IPT -N all; IPT -A INPUT -j all; IPT -A all -j ACCEPT", ""),
			Entry("not if it accepts the redirect address in a chain", "IPT -P INPUT DROP; IPT -N user; IPT -A INPUT -j user; IPT -A user -d LANDING -j ACCEPT", ""),
			Entry("not if it accepts translated packets", "IPT -P INPUT DROP; IPT -A INPUT -m conntrack --ctstate DNAT -j ACCEPT", ""),
			Entry("even if it accepts the redirect address too late", "IPT -A INPUT -j DROP; IPT -A INPUT -d LANDING -j ACCEPT", "INPUT"),
		)

		It("of iptables-"+variant+" is reported only if usher's rules do not override it", func() {
			n := NewNet()
			for _, target := range portal.IPTablesTargets {
				p := n.Open(iptables.Mode, portal.Options{IPTablesVariant: variant, IPTablesTarget: target})
				n.Publish(p, "web", Web4, Web6)
				Expect(inputDrops(n, both(variant, "IPT -P INPUT DROP"))).To(BeEmpty(), target)
				n.Remove(p)
			}
			other := map[string]string{"nft": "legacy", "legacy": "nft"}[variant]
			n.Publish(n.Open(iptables.Mode, portal.Options{IPTablesVariant: other}), "web", Web4, Web6)
			Expect(inputDrops(n, "")).To(Equal(chain("INPUT")))
		})
	}

	DescribeTable("in an nftables table is detected if it may drop redirected packets", func(rules string, drops ...string) {
		if drops == nil {
			drops = []string{}
		}
		Expect(inputDrops(NewNet(), "nft -f - <<'END'\ntable inet fw {\n"+rules+"\n}\nEND")).To(ConsistOf(drops))
	},
		Entry("as firewalld does", "chain in { type filter hook input priority 10; ct state established,related accept; iifname lo accept; jump zones; reject with icmpx admin-prohibited; }; chain zones { tcp dport 22 accept; }", "chain in of table inet fw"),
		Entry("in a chain of a verdict map", `chain wan { counter log drop; }; chain in { type filter hook input priority 0; iifname vmap { "eth0" : jump wan }; }`, "chain wan of table inet fw"),
		Entry("not as newer firewalld does", "chain in { type filter hook input priority 10; ct status dnat accept; reject; }"),
		Entry("not if a set has the redirect address", "set ok { type ipv4_addr; elements = { 192.0.0.117 }; }; chain in { type filter hook input priority 0; policy drop; ip daddr @ok accept; }"),
		Entry("not if an anonymous set has the redirect address", "chain in { type filter hook input priority 0; policy drop; ip6 daddr { fd75:7368:6572::1, ::1 } accept; }"),
		Entry("not at another hook", "chain f { type filter hook forward priority 0; policy drop; }"),
	)

	DescribeTable("is detected by a test connection through an interface", func(mode portal.Mode, opts portal.Options, script, want string) {
		n := NewNet()
		n.Publish(n.Open(mode, opts), "web", Web4, Web6)
		before := n.Node.State()
		n.Node.Sh("set -e\n" + script)
		during := n.Node.State()
		n.Node.Do(func() {
			for _, to := range []portal.Target{Web4, Web6} {
				ctx, cancel := context.WithTimeout(Background, 5*time.Second)
				defer cancel()
				refusal, err := kernel.TryInput(ctx, netip.AddrPortFrom(to.Addr, to.Port))
				Expect(err).NotTo(HaveOccurred())
				Expect(refusal).To(Equal(want), to.String())
			}
		})
		Expect(n.Node.State()).To(Equal(during))
		if script == "" {
			Expect(before).To(Equal(during))
		}
	},
		Entry("not if there is none", nftables.Mode, portal.Options{}, "", ""),
		Entry("not if there is none, with strict reverse path filters", nftables.Mode, portal.Options{}, "sysctl -qw net.ipv4.conf.all.rp_filter=1", ""),
		Entry("not if there is none, with REDIRECT", iptables.Mode, portal.Options{IPTablesTarget: "redirect"}, "", ""),
		Entry("not if iptables rules override it", iptables.Mode, portal.Options{}, "iptables -P INPUT DROP; ip6tables -P INPUT DROP", ""),
		Entry("if nftables rules do not override it, although local connections pass", nftables.Mode, portal.Options{},
			"for c in iptables ip6tables; do $c -P INPUT DROP; $c -A INPUT -i lo -j ACCEPT; done", "got no response within 600ms"),
		Entry("if it rejects packets", nftables.Mode, portal.Options{}, "for c in iptables ip6tables; do $c -A INPUT -i lo -j ACCEPT; $c -A INPUT -j REJECT; done", "was rejected by ICMP"),
		Entry("if it resets connections", nftables.Mode, portal.Options{}, "for c in iptables ip6tables; do $c -A INPUT -p tcp -j REJECT --reject-with tcp-reset; done", "was reset"),
	)
})
