package portal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

var _ = Describe("portal address", func() {
	var n *testNet
	BeforeEach(func() { n = newTestNet() })
	ours := func() string {
		return n.node.sh("ip route show table local proto 117; ip -6 route show table local proto 117")
	}

	It("works from the node and from Pods where there is no iptables at all", func() {
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
		p := n.open(addressMode, Options{})
		binds, _ := n.publish(p, "web", web4, web6, webNode4)
		Expect(binds).To(HaveLen(3))
		n.publish(p, "dns", dns4, dns6)
		for _, from := range []*host{n.node, n.pod} {
			Expect(from.ask(web4)).To(HavePrefix("web"))
			Expect(from.ask(web6)).To(HavePrefix("web"))
			Expect(from.ask(dns4)).To(Equal("dns"))
			Expect(from.ask(dns6)).To(Equal("dns"))
			Expect(from.ask(at(webNode4, nodeIP4))).To(HavePrefix("web"))
		}
		Expect(n.node.ask(at(webNode4, localhost4))).To(HavePrefix("web"))
		n.remove(p)
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(ours()).To(BeEmpty())
	})

	It("asks for listeners at the very targets", func() {
		p := n.open(addressMode, Options{})
		Expect(p.Listen("default/web", []Target{web4, webNode4})).To(ConsistOf(
			Bind{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Targets: []Target{web4}},
			Bind{Addr: netip.MustParseAddrPort("0.0.0.0:30080"), Targets: []Target{webNode4}},
		))
	})

	It("asks for a listener at each address that has node ports, and tells when they have to move", func() {
		p := n.open(addressMode, Options{NodePortAddresses: prefixes("10.1.0.0/16", "127.0.0.0/8", "fd01::/64", "fe80::/10")})
		addrs := func(t Target) (addrs []string) {
			for _, b := range p.Listen("default/web", []Target{t}) {
				Expect(b.Targets).To(Equal([]Target{t}))
				Expect(b.Addr.Port()).To(Equal(t.Port))
				addrs = append(addrs, b.Addr.Addr().String())
			}
			return addrs
		}
		Expect(addrs(webNode6)).To(HaveExactElements("fd01::1"))
		Expect(addrs(webNode4)).To(HaveExactElements("10.1.0.1", "127.0.0.1"))
		n.publish(p, "web", webNode4)
		for _, from := range []*host{n.node, n.pod} {
			Expect(from.ask(at(webNode4, nodeIP4))).To(HavePrefix("web"))
		}
		Expect(n.node.ask(at(webNode4, localhost4))).To(HavePrefix("web"))
		Expect(n.check(p)).To(BeZero())

		n.node.sh("ip addr add 10.1.77.1/32 dev lo; ip addr add 10.3.0.1/32 dev lo")
		later := at(webNode4, netip.MustParseAddr("10.1.77.1"))
		n.node.do(func() {
			for range 2 {
				_, err := p.Check(background)
				var again *ListenAgainError
				Expect(errors.As(err, &again)).To(BeTrue(), "%v", err)
				Expect(again.Targets).To(Equal([]Target{webNode4}))
			}
		})
		Expect(n.node.ask(later)).To(Equal("refused"))
		Expect(addrs(webNode4)).To(HaveExactElements("10.1.0.1", "10.1.77.1", "127.0.0.1"))
		Expect(n.check(p)).To(BeZero())

		n.node.sh("ip addr del 10.1.77.1/32 dev lo")
		n.node.do(func() {
			_, err := p.Check(background)
			Expect(err).To(MatchError(ContainSubstring("0.0.0.0:30080/tcp")))
		})
		n.apply(p, []Rule{reject(webNode4)}, nil)
		Expect(n.check(p)).To(BeZero(), "without listener none has to move")
	})

	It("has no node ports where no address has", func() {
		p := n.open(addressMode, Options{NodePortAddresses: prefixes("192.0.2.0/24")})
		Expect(p.Listen("default/web", []Target{webNode4, webNode6})).To(BeEmpty())
	})

	It("refuses rejected targets at once, and another port of the VIP too", func() {
		p := n.open(addressMode, Options{})
		n.apply(p, []Rule{reject(web4), reject(dns6)}, nil)
		for _, from := range []*host{n.node, n.pod} {
			Expect(from.ask(web4)).To(Equal("refused"))
			Expect(from.ask(dns6)).To(Equal("refused"))
			Expect(from.ask(Target{TCP, vip4, 81})).To(Equal("refused"))
		}
	})

	It("keeps a VIP until its last target is gone", func() {
		p := n.open(addressMode, Options{})
		n.apply(p, []Rule{redirect(web4, 80), redirect(dns4, 53), redirect(webNode4, 30080)}, nil)
		n.apply(p, []Rule{reject(web4)}, nil)
		n.apply(p, nil, []Target{web4, webNode4})
		Expect(ours()).To(Equal("local 10.96.0.10 dev lo scope host \n"))
		n.apply(p, nil, []Target{web4})
		Expect(ours()).NotTo(BeEmpty(), "taking away twice what was there once")
		n.apply(p, nil, []Target{dns4})
		Expect(ours()).To(BeEmpty())
	})

	It("keeps a VIP that has lost its last target until its last connection has ended, and refuses new ones", func() {
		for _, t := range []Target{web4, web6} {
			p := n.open(addressMode, Options{})
			var l net.Listener
			n.node.do(func() { l = listenOn(t) })
			n.apply(p, []Rule{redirect(t, 80)}, nil)
			remote, local := connect(n.pod, l, t), connect(n.node, l, t)
			n.apply(p, nil, []Target{t})
			l.Close()
			for _, from := range []*host{n.pod, n.node} {
				Expect(from.ask(t)).To(Equal("refused"))
			}
			Expect(n.check(p)).To(BeZero())
			carries(remote)
			carries(local)

			By("a restart")
			p = n.open(addressMode, Options{})
			n.apply(p, nil, nil)
			carries(remote)

			By("another Service at that VIP")
			again := Target{TCP, t.Addr, 81}
			n.apply(p, []Rule{redirect(again, 81)}, nil)
			n.apply(p, nil, []Target{again})
			carries(remote)

			By("the end")
			remote.end()
			local.end()
			Eventually(func() string { Expect(n.check(p)).To(BeZero()); return ours() }).Should(BeEmpty())
		}
	})

	It("keeps a VIP while the kernel sends what a closed connection has left", func() {
		p := n.open(addressMode, Options{})
		var l net.Listener
		n.node.do(func() { l = listenOn(web4) })
		n.apply(p, []Rule{redirect(web4, 80)}, nil)
		c := connect(n.pod, l, web4)
		_, err := c.server.Write(make([]byte, 64<<10))
		Expect(err).NotTo(HaveOccurred())
		n.pod.sh("ip link set eth0 down")
		c.server.Close()
		n.apply(p, nil, []Target{web4})
		Expect(ours()).To(ContainSubstring(vip4.String()))

		By("the end")
		n.pod.sh("ip link set eth0 up; ip route add default via 10.1.0.1")
		Expect(io.Copy(io.Discard, c.client)).To(BeEquivalentTo(64 << 10))
		c.client.Close()
		Eventually(func() string { Expect(n.check(p)).To(BeZero()); return ours() }).WithTimeout(10 * time.Second).Should(BeEmpty())
	})

	It("repairs routes that others removed", func() {
		p := n.open(addressMode, Options{})
		n.publish(p, "web", web4, web6)
		Expect(n.check(p)).To(BeZero())
		n.node.sh("ip route del local 10.96.0.10 table local; ip -6 route del local fd96::10 table local")
		Expect(n.check(p)).To(Equal(2))
		Expect(n.pod.ask(web4)).To(HavePrefix("web"))
		Expect(n.pod.ask(web6)).To(HavePrefix("web"))
		Expect(n.check(p)).To(BeZero())
	})

	It("takes over what an earlier process left, and removes what is not wanted any more", func() {
		n.apply(n.open(addressMode, Options{}), []Rule{redirect(web4, 80), redirect(target(TCP, "10.96.0.77:80"), 80)}, nil)
		second := n.open(addressMode, Options{})
		Expect(n.check(second)).To(BeZero())
		Expect(ours()).To(ContainSubstring("10.96.0.77"))
		n.apply(second, []Rule{redirect(web4, 80)}, nil)
		Expect(ours()).To(Equal("local 10.96.0.10 dev lo scope host \n"))
	})

	It("leaves addresses alone that the node has anyhow, until it has them no more", func() {
		n.node.sh("ip addr add 10.96.0.10/32 dev pod0; ip route add local 10.97.0.0/16 dev lo")
		p := n.open(addressMode, Options{})
		n.publish(p, "web", web4)
		n.publish(p, "wide", target(TCP, "10.97.0.5:80"))
		Expect(ours()).To(BeEmpty())
		n.node.sh("ip addr del 10.96.0.10/32 dev pod0")
		Expect(n.check(p)).To(Equal(1))
		Expect(n.pod.ask(web4)).To(HavePrefix("web"))
	})

	It("leaves nothing behind", func() {
		before := n.node.state()
		p := n.open(addressMode, Options{})
		Expect(n.node.state()).To(Equal(before), "after New")
		n.publish(p, "web", web4, web6, webNode4)
		Expect(n.node.state()).NotTo(Equal(before))
		n.remove(p)
		Expect(n.node.state()).To(Equal(before))
	})

	It("says so when lo is down", func() {
		n.node.sh("ip link set lo down")
		n.node.do(func() {
			_, err := addressMode.New(background, Options{})
			Expect(err).To(MatchError(ContainSubstring("ip link set lo up")))
		})
	})

	It("names the VIPs that cannot be had where IPv6 is off", func() {
		n.node.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1")
		p := n.open(addressMode, Options{NoIPv6: true})
		n.node.do(func() {
			err := p.Apply(background, []Rule{redirect(web4, 80), redirect(web6, 80)}, nil)
			Expect(err).To(MatchError(ContainSubstring("[fd96::10]:80/tcp")))
		})
		Expect(ours()).To(ContainSubstring("10.96.0.10"))
	})

	It("is fast with 10,000 VIPs", Label("slow"), func() {
		p := n.open(addressMode, Options{})
		var rules []Rule
		for i := range 10000 {
			rules = append(rules, redirect(Target{TCP, netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}), 80}, 80))
		}
		measure := func(what string, most time.Duration, f func()) {
			GinkgoHelper()
			began := time.Now()
			f()
			AddReportEntry(fmt.Sprintf("address, 10,000 VIPs: %s: %v", what, time.Since(began).Round(10*time.Microsecond)))
			Expect(time.Since(began)).To(BeNumerically("<", most), what)
		}
		measure("first apply", 6*time.Second, func() { n.apply(p, rules, nil) })
		measure("check", 3*time.Second, func() { Expect(n.check(p)).To(BeZero()) })
		measure("one added", 100*time.Millisecond, func() { n.apply(p, []Rule{redirect(web4, 80)}, nil) })
		measure("remove", 6*time.Second, func() { n.remove(p) })
		Expect(strings.TrimSpace(ours())).To(BeEmpty())
	})
})

// connection is a TCP connection of which the specs have both ends.
type connection struct{ client, server net.Conn }

// listenOn listens at a TCP target, from the calling thread's host.
func listenOn(t Target) net.Listener {
	GinkgoHelper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(background, "tcp", netip.AddrPortFrom(t.Addr, t.Port).String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { l.Close() })
	return l
}

// connect connects from a host to l, at t.
func connect(from *host, l net.Listener, t Target) *connection {
	GinkgoHelper()
	c := &connection{}
	from.do(func() {
		var err error
		c.client, err = net.Dial("tcp", netip.AddrPortFrom(t.Addr, t.Port).String())
		Expect(err).NotTo(HaveOccurred())
	})
	var err error
	c.server, err = l.Accept()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.end)
	return c
}

// end ends it, the client first.
func (c *connection) end() {
	c.client.Close()
	c.server.Close()
}

// carries expects that a connection carries bytes both ways.
func carries(c *connection) {
	GinkgoHelper()
	for _, way := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		_, err := way[0].Write([]byte("?"))
		Expect(err).NotTo(HaveOccurred())
		Expect(way[1].SetReadDeadline(time.Now().Add(2 * time.Second))).To(Succeed())
		_, err = way[1].Read(make([]byte, 1))
		Expect(err).NotTo(HaveOccurred())
	}
}
