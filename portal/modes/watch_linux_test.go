package modes

import (
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/nftables"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("watching a portal", func() {
	var n *Net
	BeforeEach(func() { n = NewNet() })

	const quiet = 500 * time.Millisecond
	// count returns the number of events until there is none for some time.
	count := func(notified <-chan struct{}) (times int) {
		for {
			select {
			case <-notified:
				times++
			case <-time.After(quiet):
				return times
			}
		}
	}

	for _, kind := range []struct {
		name              string
		mode              portal.Mode
		variant           string
		damages, harmless []string
	}{
		{"nftables", nftables.Mode, "",
			[]string{
				"nft delete element ip usher portals { 10.96.0.10 . tcp . 80 }", "nft flush chain ip6 usher portals",
				"nft flush ruleset", "ip route del local 192.0.0.117 table local",
			},
			[]string{"nft 'table ip other { chain c { drop; }; }'", "ip addr add 10.77.0.1/32 dev lo"}},
		{"iptables-nft", iptables.Mode, "nft",
			[]string{
				"iptables-nft -t nat -F", "iptables-nft -t nat -D PREROUTING 1", "iptables-nft -t nat -F USHER-PORTALS",
				"nft flush ruleset", "ip -6 route del local fd75:7368:6572::1 table local",
			},
			[]string{"iptables-nft -t nat -N OTHER; iptables-nft -t nat -A OTHER -j RETURN; iptables-nft -t nat -A POSTROUTING -j OTHER"}},
		{"iptables-legacy", iptables.Mode, "legacy",
			[]string{"ip route del local 192.0.0.117 table local"},
			[]string{"nft 'table ip nat { chain c { drop; }; }'"}},
		{"address", address.Mode, "",
			[]string{"ip route del local 10.96.0.10 table local", "ip -6 route flush table local proto 117"},
			[]string{"ip addr add 10.77.0.1/32 dev lo; ip addr del 10.77.0.1/32 dev lo", "nft flush ruleset"}},
	} {
		It("reports changes by other programs, and none by the portal itself: "+kind.name, func() {
			if _, err := exec.LookPath("nft"); err != nil {
				Skip("needs nft")
			}
			p := n.Open(kind.mode, portal.Options{IPTablesVariant: kind.variant})
			notified := n.Watch(p)
			n.Publish(p, "web", Web4, Web6)
			n.Apply(p, []portal.Rule{Reject(DNS4), Redirect(Target(portal.TCP, "10.96.0.11:80"), 4000)}, nil)
			n.Apply(p, []portal.Rule{Drop(DNS4)}, []portal.Target{Target(portal.TCP, "10.96.0.11:80")})
			n.Check(p)
			Consistently(notified, quiet).ShouldNot(Receive())
			for _, harmless := range kind.harmless {
				n.Node.Sh(harmless)
			}
			Consistently(notified, quiet).ShouldNot(Receive())
			for _, damage := range kind.damages {
				By(damage)
				n.Node.Sh(damage)
				Eventually(notified, 10*time.Second).Should(Receive())
				count(notified) // on a busy machine, one damage may cause several events
				Expect(n.Check(p)).To(BeNumerically(">", 0))
				if kind.variant != "legacy" {
					Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))
				}
				Consistently(notified, quiet).ShouldNot(Receive(), "after the repair")
			}
			n.Remove(p)
			Consistently(notified, quiet).ShouldNot(Receive())
		})
	}

	It("reports a new node port address in mode address", func() {
		p := n.Open(address.Mode, portal.Options{NodePortAddresses: Prefixes("10.0.0.0/8")})
		notified := n.Watch(p)
		n.Publish(p, "web", WebNode4)
		n.Node.Sh("ip addr add 10.77.0.1/32 dev lo")
		Eventually(notified, 10*time.Second).Should(Receive())
	})

	It("reports continuous changes at a limited rate", func() {
		p := n.Open(nftables.Mode, portal.Options{})
		n.Publish(p, "web", Web4)
		notified := n.Watch(p)
		n.Node.Sh("for i in $(seq 150); do nft add element ip usher portals { 10.0.0.$i . tcp . 80 : 1 }; done")
		Expect(count(notified)).To(And(BeNumerically(">=", 1), BeNumerically("<=", 10)))
	})
})
