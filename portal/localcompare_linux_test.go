package portal

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("comparing what is wanted with what is installed, in mode address", func() {
	It("goes by whether the VIP is local, and leaves node ports alone", func() {
		node := redirect(target(TCP, "0.0.0.0:30080"), 30080)
		web := redirect(target(TCP, "10.96.0.10:80"), 4000)
		lost := redirect(target(TCP, "10.96.0.12:80"), 80)
		routed := Rule{Target: Target{Addr: web.Target.Addr}}
		left := Rule{Target: Target{Addr: netip.MustParseAddr("10.96.0.99")}}
		is := func(state State, r Rule) Comparison {
			return Comparison{Mode: addressMode.Name, Traits: addressMode.Traits, Rule: r, State: state}
		}
		in := func(r Rule) Installed {
			return Installed{Mode: addressMode.Name, Traits: addressMode.Traits, Rule: r}
		}
		local := func(a netip.Addr) bool { return a == web.Target.Addr }
		wanted := map[Target]Rule{node.Target: node, web.Target: web, lost.Target: lost}
		Expect(compareLocal(addressMode, wanted, local, []Installed{in(routed), in(left)})).To(HaveExactElements(
			is(StateOK, node), is(StateOK, web), is(StateMissing, lost), is(StateExtra, left)))
	})
})
