package redirect

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("the comparison of wanted and installed rules", func() {
	web := Redirect(To(portal.TCP, netip.MustParseAddr("10.96.0.10"), 80), 4000)
	dns := Reject(To(portal.UDP, netip.MustParseAddr("10.96.0.11"), 53))
	limited := web
	limited.Sources = portal.SourcesOf([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	moved := web
	moved.LocalPort = 4001
	unnamed := web
	unnamed.Comment = ""

	nftables, iptables := portal.Mode{Name: "nftables"}, portal.Mode{Name: "iptables"}
	wanted := func(rules ...portal.Rule) map[portal.Target]portal.Rule { return portal.ByTarget(rules) }
	in := func(mode portal.Mode, rules ...portal.Rule) (all []portal.Comparison) {
		for _, r := range rules {
			all = append(all, portal.Comparison{Mode: mode.Name, Rule: r, State: portal.StateExtra})
		}
		return all
	}
	is := func(state portal.State, mode portal.Mode, r portal.Rule) portal.Comparison {
		return portal.Comparison{Mode: mode.Name, Rule: r, State: state}
	}
	differs := func(r, installed portal.Rule) portal.Comparison {
		return portal.Comparison{Mode: nftables.Name, Rule: r, State: portal.StateDiffers, Installed: installed}
	}

	DescribeTable("for a portal with rules", func(wanted map[portal.Target]portal.Rule, installed []portal.Comparison, expected ...portal.Comparison) {
		Expect(compare(nftables, wanted, installed)).To(HaveExactElements(expected))
	},
		Entry("is empty if no rule is wanted or installed", nil, nil),
		Entry("accepts rules that are as wanted", wanted(web, dns), in(nftables, dns, web),
			is(portal.StateOK, nftables, web), is(portal.StateOK, nftables, dns)),
		Entry("ignores a comment that the kernel does not keep", wanted(web), in(nftables, unnamed), is(portal.StateOK, nftables, web)),
		Entry("reports a missing rule", wanted(web, dns), in(nftables, dns),
			is(portal.StateMissing, nftables, web), is(portal.StateOK, nftables, dns)),
		Entry("reports both rules if another port is installed", wanted(web), in(nftables, moved), differs(web, moved)),
		Entry("reports both rules if the sources differ", wanted(limited), in(nftables, web), differs(limited, web)),
		Entry("reports an unwanted rule", wanted(web), in(nftables, web, dns),
			is(portal.StateOK, nftables, web), is(portal.StateExtra, nftables, dns)),
		Entry("does not accept a rule of another mode", wanted(web), in(iptables, web),
			is(portal.StateExtra, iptables, web), is(portal.StateMissing, nftables, web)),
		Entry("reports the worse of two rules for the same target", wanted(web), in(nftables, moved, web), differs(web, moved)),
	)

})
