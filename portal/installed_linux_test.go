package portal

import (
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("listing what is installed", func() {
	list := func(n *testNet) (all []Installed) {
		GinkgoHelper()
		n.node.do(func() {
			var err error
			all, err = List(background, nil)
			Expect(err).NotTo(HaveOccurred())
		})
		return all
	}

	for _, kind := range []struct {
		mode    Mode
		variant string
	}{{nftablesMode, ""}, {iptablesMode, "nft"}, {iptablesMode, "legacy"}} {
		It("returns the very rules that were put in by mode "+kind.mode.Name+" "+kind.variant, func() {
			if _, err := exec.LookPath("iptables-" + kind.variant); kind.variant != "" && err != nil {
				Skip("needs iptables-" + kind.variant)
			}
			n := newTestNet()
			Expect(list(n)).To(BeEmpty())
			limited, limited6, inside := redirect(Target{TCP, vip4, 81}, 4000), redirect(Target{UDP, vip6, 81}, 4000), drop(Target{TCP, vip4, 82})
			limited.Sources = SourcesOf(prefixes("192.0.2.0/24", "198.51.100.7/32"))
			limited6.Sources = SourcesOf(prefixes("2001:db8::/32"))
			inside.LocalPort, inside.Sources = 4000, SourcesOf(prefixes("192.0.2.0/25"))
			outside := drop(Target{UDP, vip4, 82})
			outside.LocalPort = 4001
			rules := []Rule{
				redirect(webNode4, 4000), redirect(web4, 4000), limited, inside, reject(dns4), outside, drop(Target{SCTP, vip4, 53}),
				reject(webNode6), redirect(web6, 4000), limited6,
			}
			n.apply(n.open(kind.mode, Options{IPTablesVariant: kind.variant}), rules, nil)
			var want []Installed
			for _, r := range rules {
				want = append(want, Installed{Mode: kind.mode.Name, Traits: kind.mode.Traits, Rule: r})
			}
			Expect(list(n)).To(HaveExactElements(want))
		})
	}

	It("returns the addresses of mode address", func() {
		n := newTestNet()
		n.apply(n.open(addressMode, Options{}), []Rule{redirect(web4, 80), redirect(webNode4, 30080), redirect(web6, 80)}, nil)
		Expect(list(n)).To(HaveExactElements(
			Installed{Mode: addressMode.Name, Traits: addressMode.Traits, Rule: Rule{Target: Target{Addr: vip4}}}, Installed{Mode: addressMode.Name, Traits: addressMode.Traits, Rule: Rule{Target: Target{Addr: vip6}}}))
	})
})
