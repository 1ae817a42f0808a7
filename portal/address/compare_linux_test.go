package address

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("the comparison of wanted and installed rules in mode address", func() {
	It("depends on whether a VIP is local, and always accepts node ports", func() {
		node := Redirect(Target(portal.TCP, "0.0.0.0:30080"), 30080)
		web := Redirect(Target(portal.TCP, "10.96.0.10:80"), 4000)
		lost := Redirect(Target(portal.TCP, "10.96.0.12:80"), 80)
		routed := portal.Rule{Target: portal.Target{Addr: web.Target.Addr}}
		left := portal.Rule{Target: portal.Target{Addr: netip.MustParseAddr("10.96.0.99")}}
		is := func(state portal.State, r portal.Rule) portal.Comparison {
			return portal.Comparison{Mode: Mode.Name, Traits: Mode.Traits, Rule: r, State: state}
		}
		in := func(r portal.Rule) portal.Comparison {
			return portal.Comparison{Mode: Mode.Name, Traits: Mode.Traits, Rule: r, State: portal.StateExtra}
		}
		local := func(a netip.Addr) bool { return a == web.Target.Addr }
		wanted := map[portal.Target]portal.Rule{node.Target: node, web.Target: web, lost.Target: lost}
		Expect(compare(wanted, local, []portal.Comparison{in(routed), in(left)})).To(HaveExactElements(
			is(portal.StateOK, node), is(portal.StateOK, web), is(portal.StateMissing, lost), is(portal.StateExtra, left)))
	})
})
