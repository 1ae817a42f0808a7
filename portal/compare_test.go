package portal

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("comparing what is wanted with what is installed", func() {
	web := redirect(Target{TCP, netip.MustParseAddr("10.96.0.10"), 80}, 4000)
	dns := reject(Target{UDP, netip.MustParseAddr("10.96.0.11"), 53})
	limited := web
	limited.Sources = SourcesOf([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	moved := web
	moved.LocalPort = 4001
	unnamed := web
	unnamed.Comment = ""

	nftables, iptables := Mode{Name: "nftables"}, Mode{Name: "iptables"}
	wanted := func(rules ...Rule) map[Target]Rule { return byTarget(rules) }
	in := func(mode Mode, rules ...Rule) (all []Installed) {
		for _, r := range rules {
			all = append(all, Installed{Mode: mode.Name, Rule: r})
		}
		return all
	}
	is := func(state State, mode Mode, r Rule) Comparison {
		return Comparison{Mode: mode.Name, Rule: r, State: state}
	}
	differs := func(r, installed Rule) Comparison {
		return Comparison{Mode: nftables.Name, Rule: r, State: StateDiffers, Installed: installed}
	}

	DescribeTable("of a portal with rules", func(wanted map[Target]Rule, installed []Installed, expected ...Comparison) {
		Expect(compare(nftables, wanted, installed)).To(HaveExactElements(expected))
	},
		Entry("finds nothing where nothing is wanted nor installed", nil, nil),
		Entry("is content with what is as wanted", wanted(web, dns), in(nftables, dns, web),
			is(StateOK, nftables, web), is(StateOK, nftables, dns)),
		Entry("does not mind a comment that the kernel does not keep", wanted(web), in(nftables, unnamed), is(StateOK, nftables, web)),
		Entry("misses what is not there", wanted(web, dns), in(nftables, dns),
			is(StateMissing, nftables, web), is(StateOK, nftables, dns)),
		Entry("shows both where another port is installed", wanted(web), in(nftables, moved), differs(web, moved)),
		Entry("shows both where others may connect", wanted(limited), in(nftables, web), differs(limited, web)),
		Entry("finds what nobody wants", wanted(web), in(nftables, web, dns),
			is(StateOK, nftables, web), is(StateExtra, nftables, dns)),
		Entry("does not take another mode's rule for its own", wanted(web), in(iptables, web),
			is(StateExtra, iptables, web), is(StateMissing, nftables, web)),
		Entry("counts the worse of two rules for the same target", wanted(web), in(nftables, moved, web), differs(web, moved)),
	)

})
