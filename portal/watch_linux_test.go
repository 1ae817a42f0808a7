package portal

import (
	"context"
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("watching a portal", func() {
	var n *testNet
	BeforeEach(func() { n = newTestNet() })

	// watch watches p, which is to tell of nothing else until the spec ends.
	watch := func(p Portal) <-chan struct{} {
		GinkgoHelper()
		ctx, cancel := context.WithCancel(background)
		var told <-chan struct{}
		n.node.do(func() {
			var err error
			told, err = p.(Watcher).Watch(ctx)
			Expect(err).NotTo(HaveOccurred())
		})
		DeferCleanup(func() {
			cancel()
			Eventually(told).Should(BeClosed())
		})
		return told
	}
	const tellsNothing = 500 * time.Millisecond

	for _, kind := range []struct {
		name              string
		mode              Mode
		variant           string
		damages, harmless []string
	}{
		{"nftables", nftablesMode, "",
			[]string{
				"nft delete element ip usher portals { 10.96.0.10 . tcp . 80 }", "nft flush chain ip6 usher portals",
				"nft flush ruleset", "ip route del local 192.0.0.117 table local",
			},
			[]string{"nft 'table ip other { chain c { drop; }; }'", "ip addr add 10.77.0.1/32 dev lo"}},
		{"iptables-nft", iptablesMode, "nft",
			[]string{
				"iptables-nft -t nat -F", "iptables-nft -t nat -D PREROUTING 1", "iptables-nft -t nat -F USHER-PORTALS",
				"nft flush ruleset", "ip -6 route del local fd75:7368:6572::1 table local",
			},
			[]string{"iptables-nft -t nat -N OTHER; iptables-nft -t nat -A OTHER -j RETURN; iptables-nft -t nat -A POSTROUTING -j OTHER"}},
		{"iptables-legacy", iptablesMode, "legacy",
			[]string{"ip route del local 192.0.0.117 table local"},
			[]string{"nft 'table ip nat { chain c { drop; }; }'"}},
		{"address", addressMode, "",
			[]string{"ip route del local 10.96.0.10 table local", "ip -6 route flush table local proto 117"},
			[]string{"ip addr add 10.77.0.1/32 dev lo; ip addr del 10.77.0.1/32 dev lo", "nft flush ruleset"}},
	} {
		It("tells of changes by others, and of nothing that the portal does itself: "+kind.name, func() {
			if _, err := exec.LookPath("nft"); err != nil {
				Skip("needs nft")
			}
			p := n.open(kind.mode, Options{IPTablesVariant: kind.variant})
			told := watch(p)
			n.publish(p, "web", web4, web6)
			n.apply(p, []Rule{reject(dns4), redirect(target(TCP, "10.96.0.11:80"), 4000)}, nil)
			n.apply(p, []Rule{drop(dns4)}, []Target{target(TCP, "10.96.0.11:80")})
			n.check(p)
			Consistently(told, tellsNothing).ShouldNot(Receive())
			for _, harmless := range kind.harmless {
				n.node.sh(harmless)
			}
			Consistently(told, tellsNothing).ShouldNot(Receive())
			for _, damage := range kind.damages {
				By(damage)
				n.node.sh(damage)
				Eventually(told, time.Second).Should(Receive())
				Expect(n.check(p)).To(BeNumerically(">", 0))
				if kind.variant != "legacy" {
					Expect(n.pod.ask(web4)).To(HavePrefix("web"))
				}
				Consistently(told, tellsNothing).ShouldNot(Receive(), "after the repair")
			}
			n.remove(p)
			Consistently(told, tellsNothing).ShouldNot(Receive())
		})
	}

	It("tells mode address when node ports have other addresses", func() {
		p := n.open(addressMode, Options{NodePortAddresses: prefixes("10.0.0.0/8")})
		told := watch(p)
		n.publish(p, "web", webNode4)
		n.node.sh("ip addr add 10.77.0.1/32 dev lo")
		Eventually(told, time.Second).Should(Receive())
	})

	It("tells now and then while others change things all the time", func() {
		p := n.open(nftablesMode, Options{})
		n.publish(p, "web", web4)
		told := watch(p)
		n.node.sh("for i in $(seq 150); do nft add element ip usher portals { 10.0.0.$i . tcp . 80 : 1 }; done")
		count := 0
		for done := false; !done; {
			select {
			case <-told:
				count++
			case <-time.After(tellsNothing):
				done = true
			}
		}
		Expect(count).To(And(BeNumerically(">=", 1), BeNumerically("<=", 10)))
	})
})
