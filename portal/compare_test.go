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

	wanted := func(rules ...Rule) map[Target]Rule { return byTarget(rules) }
	in := func(mode string, rules ...Rule) (all []Installed) {
		for _, r := range rules {
			all = append(all, Installed{mode, r})
		}
		return all
	}
	is := func(state State, mode string, r Rule) Comparison {
		return Comparison{Mode: mode, Rule: r, State: state}
	}
	differs := func(r, installed Rule) Comparison {
		return Comparison{Mode: ModeNFTables, Rule: r, State: StateDiffers, Installed: installed}
	}

	DescribeTable("of a portal with rules", func(wanted map[Target]Rule, installed []Installed, expected ...Comparison) {
		Expect(compare(ModeNFTables, wanted, installed)).To(HaveExactElements(expected))
	},
		Entry("finds nothing where nothing is wanted nor installed", nil, nil),
		Entry("is content with what is as wanted", wanted(web, dns), in(ModeNFTables, dns, web),
			is(StateOK, ModeNFTables, web), is(StateOK, ModeNFTables, dns)),
		Entry("does not mind a comment that the kernel does not keep", wanted(web), in(ModeNFTables, unnamed), is(StateOK, ModeNFTables, web)),
		Entry("misses what is not there", wanted(web, dns), in(ModeNFTables, dns),
			is(StateMissing, ModeNFTables, web), is(StateOK, ModeNFTables, dns)),
		Entry("shows both where another port is installed", wanted(web), in(ModeNFTables, moved), differs(web, moved)),
		Entry("shows both where others may connect", wanted(limited), in(ModeNFTables, web), differs(limited, web)),
		Entry("finds what nobody wants", wanted(web), in(ModeNFTables, web, dns),
			is(StateOK, ModeNFTables, web), is(StateExtra, ModeNFTables, dns)),
		Entry("does not take another mode's rule for its own", wanted(web), in(ModeIPTables, web),
			is(StateExtra, ModeIPTables, web), is(StateMissing, ModeNFTables, web)),
		Entry("counts the worse of two rules for the same target", wanted(web), in(ModeNFTables, moved, web), differs(web, moved)),
	)

	It("of addresses goes by whether the VIP is local, and leaves node ports alone", func() {
		node := redirect(Target{TCP, IPv4.Any(), 30080}, 30080)
		lost := redirect(Target{TCP, netip.MustParseAddr("10.96.0.12"), 80}, 80)
		left := Rule{Target: Target{Addr: netip.MustParseAddr("10.96.0.99")}}
		local := func(a netip.Addr) bool { return a == web.Target.Addr }
		installed := in(ModeAddress, Rule{Target: Target{Addr: web.Target.Addr}}, left)
		Expect(compareLocal(wanted(node, web, lost), local, installed)).To(HaveExactElements(
			is(StateOK, ModeAddress, node), is(StateOK, ModeAddress, web), is(StateMissing, ModeAddress, lost), is(StateExtra, ModeAddress, left)))
	})
})
