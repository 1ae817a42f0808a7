package address

import (
	"context"
	"net"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

// These specs cover systems in which local routes have no effect, such as gVisor.
var _ = Describe("portal address, with VIPs as addresses of an interface", func() {
	var n *Net
	BeforeEach(func() {
		n = NewNet()
		withoutRoutes = true
		DeferCleanup(func() { withoutRoutes = false })
	})
	addresses := func() string { return n.Node.Sh("ip -br addr show scope global dev usher-vips 2>&1 || true") }
	routes := func() string {
		return n.Node.Sh("ip route show table all proto 117; ip -6 route show table all proto 117")
	}

	It("serves the node and Pods without routes, and leaves nothing behind", func() {
		before := n.Node.State()
		p := n.Open(Mode, portal.Options{})
		Expect(n.Node.State()).To(Equal(before), "after New")
		Expect(p.Traits().About).To(ContainSubstring("usher-vips"))
		n.Publish(p, "web", Web4, Web6, WebNode4)
		n.Publish(p, "dns", DNS4, DNS6)
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(Web4)).To(HavePrefix("web"))
			Expect(from.Ask(Web6)).To(HavePrefix("web"))
			Expect(from.Ask(DNS4)).To(Equal("dns"))
			Expect(from.Ask(DNS6)).To(Equal("dns"))
			Expect(from.Ask(At(WebNode4, NodeIP4))).To(HavePrefix("web"))
			Expect(from.Ask(To(portal.TCP, VIP4, 81))).To(Equal("refused"))
		}
		Expect(routes()).To(BeEmpty())
		Expect(n.Check(p)).To(BeZero())
		n.Remove(p)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("makes a VIP local before the listener is bound to it", func() {
		p := n.Open(Mode, portal.Options{})
		n.Node.Do(func() {
			bind := func() error {
				l, err := net.Listen("tcp", "10.96.0.10:80")
				if err == nil {
					l.Close()
				}
				return err
			}
			Expect(bind()).To(MatchError(ContainSubstring("cannot assign requested address")))
			p.Listen("default/web", []portal.Target{Web4, WebNode4})
			Expect(bind()).To(Succeed())
		})
		Expect(n.Check(p)).To(BeZero())
		n.Apply(p, nil, nil)
		Expect(addresses()).NotTo(ContainSubstring("10.96.0.10"), "nothing is served there")
	})

	It("adds a VIP even if ip_nonlocal_bind lets sockets bind without it", func() {
		n.Node.Sh("sysctl -qw net.ipv4.ip_nonlocal_bind=1")
		p := n.Open(Mode, portal.Options{})
		n.Apply(p, []portal.Rule{Redirect(Web4, 80)}, nil)
		Expect(addresses()).To(ContainSubstring("10.96.0.10/32"))
	})

	It("takes over the addresses of a killed process, removes unwanted ones, and repairs the rest", func() {
		gone := Target(portal.TCP, "10.96.0.77:80")
		n.Apply(n.Open(Mode, portal.Options{}), []portal.Rule{Redirect(Web4, 80), Redirect(Web6, 80), Redirect(gone, 80)}, nil)
		p := n.Open(Mode, portal.Options{})
		Expect(addresses()).To(And(ContainSubstring("10.96.0.10/32"), ContainSubstring("10.96.0.77/32"), ContainSubstring("fd96::10/128")))
		n.Apply(p, []portal.Rule{Redirect(Web4, 80), Redirect(Web6, 80)}, nil)
		Expect(addresses()).To(And(ContainSubstring("10.96.0.10/32"), Not(ContainSubstring("10.96.0.77"))))
		n.Node.Sh("ip addr del 10.96.0.10/32 dev usher-vips")
		Expect(n.Check(p)).To(Equal(1))
		n.Node.Sh("ip link del usher-vips")
		Expect(n.Check(p)).To(Equal(2))
		Expect(addresses()).To(And(ContainSubstring("10.96.0.10/32"), ContainSubstring("fd96::10/128")))
	})

	It("listens for node ports at the node's addresses and not at VIPs", func() {
		p := n.Open(Mode, portal.Options{NodePortAddresses: Prefixes("10.0.0.0/8")})
		n.Apply(p, []portal.Rule{Redirect(Web4, 80)}, nil)
		Expect(p.Listen("default/web", []portal.Target{WebNode4})).To(ConsistOf(
			portal.Bind{Addr: netip.MustParseAddrPort("10.1.0.1:30080"), Targets: []portal.Target{WebNode4}}))
	})

	It("is listed and removed by a process that uses routes", func() {
		n.Apply(n.Open(Mode, portal.Options{}), []portal.Rule{Redirect(Web4, 80)}, nil)
		withoutRoutes = false
		n.Node.Do(func() {
			Expect(Mode.List(context.Background(), portal.Options{})).To(ConsistOf(portal.Rule{Target: portal.Target{Addr: VIP4}}))
			Expect(Mode.Remove(context.Background(), portal.Options{}, true)).To(ConsistOf("link: usher-vips, with 1 addresses"))
			Expect(Mode.Remove(context.Background(), portal.Options{}, true)).To(BeEmpty())
		})
	})

	It("does not change another interface named usher-vips", func() {
		n.Node.Sh("ip link add usher-vips type bridge; ip addr add 10.96.0.10/32 dev usher-vips")
		before := n.Node.State()
		n.Node.Do(func() {
			_, err := Mode.New(Background, portal.Options{})
			Expect(err).To(MatchError(ContainSubstring("an interface usher-vips exists that was not created by usher")))
			Expect(Mode.List(context.Background(), portal.Options{})).To(BeEmpty())
			Expect(Mode.Remove(context.Background(), portal.Options{}, true)).To(BeEmpty())
		})
		Expect(n.Node.State()).To(Equal(before))
	})
})
