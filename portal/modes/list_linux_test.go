package modes

import (
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/nftables"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("the list of installed rules", func() {
	list := func(n *Net) (all []portal.Comparison) {
		GinkgoHelper()
		n.Node.Do(func() {
			var err error
			all, err = List(Background, nil)
			Expect(err).NotTo(HaveOccurred())
		})
		return all
	}

	for _, kind := range []struct {
		mode    portal.Mode
		variant string
	}{{nftables.Mode, ""}, {iptables.Mode, "nft"}, {iptables.Mode, "legacy"}} {
		It("contains exactly the rules that were installed by mode "+kind.mode.Name+" "+kind.variant, func() {
			if _, err := exec.LookPath("iptables-" + kind.variant); kind.variant != "" && err != nil {
				Skip("needs iptables-" + kind.variant)
			}
			n := NewNet()
			Expect(list(n)).To(BeEmpty())
			limited, limited6, inside := Redirect(To(portal.TCP, VIP4, 81), 4000), Redirect(To(portal.UDP, VIP6, 81), 4000), Drop(To(portal.TCP, VIP4, 82))
			limited.Sources = portal.SourcesOf(Prefixes("192.0.2.0/24", "198.51.100.7/32"))
			limited6.Sources = portal.SourcesOf(Prefixes("2001:db8::/32"))
			inside.LocalPort, inside.Sources = 4000, portal.SourcesOf(Prefixes("192.0.2.0/25"))
			outside := Drop(To(portal.UDP, VIP4, 82))
			outside.LocalPort = 4001
			rules := []portal.Rule{
				Redirect(WebNode4, 4000), Redirect(Web4, 4000), limited, inside, Reject(DNS4), outside, Drop(To(portal.SCTP, VIP4, 53)),
				Reject(WebNode6), Redirect(Web6, 4000), limited6,
			}
			n.Apply(n.Open(kind.mode, portal.Options{IPTablesVariant: kind.variant}), rules, nil)
			var want []portal.Comparison
			for _, r := range rules {
				want = append(want, portal.Comparison{Mode: kind.mode.Name, Traits: kind.mode.Traits, Rule: r, State: portal.StateExtra})
			}
			Expect(list(n)).To(HaveExactElements(want))
		})
	}

	It("contains the addresses of mode address", func() {
		n := NewNet()
		n.Apply(n.Open(address.Mode, portal.Options{}), []portal.Rule{Redirect(Web4, 80), Redirect(WebNode4, 30080), Redirect(Web6, 80)}, nil)
		Expect(list(n)).To(HaveExactElements(
			portal.Comparison{Mode: address.Mode.Name, Traits: address.Mode.Traits, Rule: portal.Rule{Target: portal.Target{Addr: VIP4}}, State: portal.StateExtra},
			portal.Comparison{Mode: address.Mode.Name, Traits: address.Mode.Traits, Rule: portal.Rule{Target: portal.Target{Addr: VIP6}}, State: portal.StateExtra}))
	})
})
