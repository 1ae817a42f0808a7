package address

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

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("portal address", func() {
	var n *Net
	BeforeEach(func() { n = NewNet() })
	ours := func() string {
		return n.Node.Sh("ip route show table local proto 117; ip -6 route show table local proto 117")
	}

	It("serves the node and Pods on a node without iptables", func() {
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
		p := n.Open(Mode, portal.Options{})
		binds, _ := n.Publish(p, "web", Web4, Web6, WebNode4)
		Expect(binds).To(HaveLen(3))
		n.Publish(p, "dns", DNS4, DNS6)
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(Web4)).To(HavePrefix("web"))
			Expect(from.Ask(Web6)).To(HavePrefix("web"))
			Expect(from.Ask(DNS4)).To(Equal("dns"))
			Expect(from.Ask(DNS6)).To(Equal("dns"))
			Expect(from.Ask(At(WebNode4, NodeIP4))).To(HavePrefix("web"))
		}
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(HavePrefix("web"))
		n.Remove(p)
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(ours()).To(BeEmpty())
	})

	It("requests listeners at the addresses and ports of the targets", func() {
		p := n.Open(Mode, portal.Options{})
		Expect(p.Listen("default/web", []portal.Target{Web4, WebNode4})).To(ConsistOf(
			portal.Bind{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Targets: []portal.Target{Web4}},
			portal.Bind{Addr: netip.MustParseAddrPort("0.0.0.0:30080"), Targets: []portal.Target{WebNode4}},
		))
	})

	It("requests a listener for each node port address, and reports when these addresses change", func() {
		p := n.Open(Mode, portal.Options{NodePortAddresses: Prefixes("10.1.0.0/16", "127.0.0.0/8", "fd01::/64", "fe80::/10")})
		addrs := func(t portal.Target) (addrs []string) {
			for _, b := range p.Listen("default/web", []portal.Target{t}) {
				Expect(b.Targets).To(Equal([]portal.Target{t}))
				Expect(b.Addr.Port()).To(Equal(t.Port))
				addrs = append(addrs, b.Addr.Addr().String())
			}
			return addrs
		}
		Expect(addrs(WebNode6)).To(HaveExactElements("fd01::1"))
		Expect(addrs(WebNode4)).To(HaveExactElements("10.1.0.1", "127.0.0.1"))
		n.Publish(p, "web", WebNode4)
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(At(WebNode4, NodeIP4))).To(HavePrefix("web"))
		}
		Expect(n.Node.Ask(At(WebNode4, Localhost4))).To(HavePrefix("web"))
		Expect(n.Check(p)).To(BeZero())

		n.Node.Sh("ip addr add 10.1.77.1/32 dev lo; ip addr add 10.3.0.1/32 dev lo")
		later := At(WebNode4, netip.MustParseAddr("10.1.77.1"))
		n.Node.Do(func() {
			for range 2 {
				Expect(p.Check(Background).Moved).To(Equal([]portal.Target{WebNode4}))
			}
		})
		Expect(n.Node.Ask(later)).To(Equal("refused"))
		Expect(addrs(WebNode4)).To(HaveExactElements("10.1.0.1", "10.1.77.1", "127.0.0.1"))
		Expect(n.Check(p)).To(BeZero())

		n.Node.Sh("ip addr del 10.1.77.1/32 dev lo")
		n.Node.Do(func() {
			Expect(p.Check(Background).Moved).To(Equal([]portal.Target{WebNode4}))
		})
		n.Apply(p, []portal.Rule{Reject(WebNode4)}, nil)
		Expect(n.Check(p)).To(BeZero(), "without listeners, none has to move")
	})

	It("requests a listener for each address for a node port with the port of a VIP, and then keeps them", func() {
		p := n.Open(Mode, portal.Options{})
		vip := To(portal.TCP, VIP4, WebNode4.Port)
		addrs := func(targets ...portal.Target) (addrs []netip.Addr) {
			for _, b := range p.Listen("default/web", targets) {
				addrs = append(addrs, b.Addr.Addr())
			}
			return addrs
		}
		each := ContainElements(NodeIP4, netip.MustParseAddr("127.0.0.1"))
		moved := func(set []portal.Rule, gone ...portal.Target) (moved []portal.Target) {
			n.Node.Do(func() { moved = p.Apply(Background, set, gone).Moved })
			return moved
		}
		Expect(moved([]portal.Rule{Redirect(WebNode4, 30080), Reject(Web4), Reject(To(portal.UDP, VIP4, 30080))})).To(BeEmpty())
		Expect(addrs(WebNode4)).To(HaveExactElements(portal.IPv4.Any()))
		Expect(moved([]portal.Rule{Reject(vip)})).To(HaveExactElements(WebNode4), "its listener takes the VIP's port")
		Expect(addrs(WebNode4)).To(each)
		Expect(moved([]portal.Rule{Redirect(vip, 30080)})).To(BeEmpty())
		Expect(moved(nil, vip)).To(BeEmpty())
		Expect(addrs(WebNode4)).To(each)
		Expect(moved(nil, WebNode4)).To(BeEmpty())
		Expect(addrs(WebNode4)).To(HaveExactElements(portal.IPv4.Any()))

		Expect(addrs(WebNode4, vip)).To(And(each, ContainElement(VIP4)), "of one Service")
		own := addrs(WebNode4, To(portal.TCP, NodeIP4, WebNode4.Port))
		Expect(own).To(each)
		Expect(own).To(HaveLen(len(addrs(WebNode4))), "one listener at an external IP that is an address of the node")
	})

	It("serves no node ports if no address is in their networks", func() {
		p := n.Open(Mode, portal.Options{NodePortAddresses: Prefixes("192.0.2.0/24")})
		Expect(p.Listen("default/web", []portal.Target{WebNode4, WebNode6})).To(BeEmpty())
	})

	It("refuses rejected targets and other ports of the VIP at once", func() {
		p := n.Open(Mode, portal.Options{})
		n.Apply(p, []portal.Rule{Reject(Web4), Reject(DNS6)}, nil)
		for _, from := range []*Host{n.Node, n.Pod} {
			Expect(from.Ask(Web4)).To(Equal("refused"))
			Expect(from.Ask(DNS6)).To(Equal("refused"))
			Expect(from.Ask(To(portal.TCP, VIP4, 81))).To(Equal("refused"))
		}
	})

	It("keeps a VIP until its last target is removed", func() {
		p := n.Open(Mode, portal.Options{})
		n.Apply(p, []portal.Rule{Redirect(Web4, 80), Redirect(DNS4, 53), Redirect(WebNode4, 30080)}, nil)
		n.Apply(p, []portal.Rule{Reject(Web4)}, nil)
		n.Apply(p, nil, []portal.Target{Web4, WebNode4})
		Expect(ours()).To(Equal("local 10.96.0.10 dev lo scope host \n"))
		n.Apply(p, nil, []portal.Target{Web4})
		Expect(ours()).NotTo(BeEmpty(), "removing a target twice")
		n.Apply(p, nil, []portal.Target{DNS4})
		Expect(ours()).To(BeEmpty())
	})

	It("keeps a VIP without targets until its last connection closes, and refuses new ones", func() {
		for _, t := range []portal.Target{Web4, Web6} {
			p := n.Open(Mode, portal.Options{})
			var l net.Listener
			n.Node.Do(func() { l = listenOn(t) })
			n.Apply(p, []portal.Rule{Redirect(t, 80)}, nil)
			remote, local := connect(n.Pod, l, t), connect(n.Node, l, t)
			n.Apply(p, nil, []portal.Target{t})
			l.Close()
			for _, from := range []*Host{n.Pod, n.Node} {
				Expect(from.Ask(t)).To(Equal("refused"))
			}
			Expect(n.Check(p)).To(BeZero())
			carries(remote)
			carries(local)

			By("a restart")
			p = n.Open(Mode, portal.Options{})
			n.Apply(p, nil, nil)
			carries(remote)

			By("another Service at that VIP")
			again := To(portal.TCP, t.Addr, 81)
			n.Apply(p, []portal.Rule{Redirect(again, 81)}, nil)
			n.Apply(p, nil, []portal.Target{again})
			carries(remote)

			By("the end of the connections")
			remote.end()
			local.end()
			Eventually(func() string { Expect(n.Check(p)).To(BeZero()); return ours() }).Should(BeEmpty())
		}
	})

	It("keeps a VIP while the kernel sends the remaining data of a closed connection", func() {
		p := n.Open(Mode, portal.Options{})
		var l net.Listener
		n.Node.Do(func() { l = listenOn(Web4) })
		n.Apply(p, []portal.Rule{Redirect(Web4, 80)}, nil)
		c := connect(n.Pod, l, Web4)
		_, err := c.server.Write(make([]byte, 64<<10))
		Expect(err).NotTo(HaveOccurred())
		n.Pod.Sh("ip link set eth0 down")
		c.server.Close()
		n.Apply(p, nil, []portal.Target{Web4})
		Expect(ours()).To(ContainSubstring(VIP4.String()))

		By("the end of the connection")
		n.Pod.Sh("ip link set eth0 up; ip route add default via 10.1.0.1")
		Expect(io.Copy(io.Discard, c.client)).To(BeEquivalentTo(64 << 10))
		c.client.Close()
		Eventually(func() string { Expect(n.Check(p)).To(BeZero()); return ours() }).WithTimeout(30 * time.Second).Should(BeEmpty())
	})

	It("repairs routes that other programs removed", func() {
		p := n.Open(Mode, portal.Options{})
		n.Publish(p, "web", Web4, Web6)
		Expect(n.Check(p)).To(BeZero())
		n.Node.Sh("ip route del local 10.96.0.10 table local; ip -6 route del local fd96::10 table local")
		Expect(n.Check(p)).To(Equal(2))
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))
		Expect(n.Pod.Ask(Web6)).To(HavePrefix("web"))
		Expect(n.Check(p)).To(BeZero())
	})

	It("restores a route that was removed while only an old connection used it", func() {
		p := n.Open(Mode, portal.Options{})
		n.Watch(p)
		_, rules := n.Publish(p, "web", Web4)
		Expect(n.Check(p)).To(BeZero())
		var conn net.Conn
		n.Node.Do(func() {
			var err error
			conn, err = net.Dial("tcp", "10.96.0.10:80")
			Expect(err).NotTo(HaveOccurred())
		})
		DeferCleanup(conn.Close)
		n.Apply(p, nil, []portal.Target{Web4})
		n.Check(p)
		Expect(ours()).To(ContainSubstring("10.96.0.10"), "for the connection")
		n.Node.Sh("ip route flush table local proto 117")
		n.Apply(p, rules, nil)
		Eventually(func() string {
			n.Check(p)
			return ours()
		}).Should(ContainSubstring("10.96.0.10"))
	})

	It("takes over the routes of an earlier process, and removes those no longer wanted", func() {
		n.Apply(n.Open(Mode, portal.Options{}), []portal.Rule{Redirect(Web4, 80), Redirect(Target(portal.TCP, "10.96.0.77:80"), 80)}, nil)
		second := n.Open(Mode, portal.Options{})
		Expect(n.Check(second)).To(BeZero())
		Expect(ours()).To(ContainSubstring("10.96.0.77"))
		n.Apply(second, []portal.Rule{Redirect(Web4, 80)}, nil)
		Expect(ours()).To(Equal("local 10.96.0.10 dev lo scope host \n"))
	})

	It("adds no route for an address of the node until the node loses it", func() {
		n.Node.Sh("ip addr add 10.96.0.10/32 dev pod0; ip route add local 10.97.0.0/16 dev lo")
		p := n.Open(Mode, portal.Options{})
		n.Publish(p, "web", Web4)
		n.Publish(p, "wide", Target(portal.TCP, "10.97.0.5:80"))
		Expect(ours()).To(BeEmpty())
		n.Node.Sh("ip addr del 10.96.0.10/32 dev pod0")
		Expect(n.Check(p)).To(Equal(1))
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("web"))
	})

	It("leaves nothing behind", func() {
		before := n.Node.State()
		p := n.Open(Mode, portal.Options{})
		Expect(n.Node.State()).To(Equal(before), "after New")
		n.Publish(p, "web", Web4, Web6, WebNode4)
		Expect(n.Node.State()).NotTo(Equal(before))
		n.Remove(p)
		Expect(n.Node.State()).To(Equal(before))
	})

	It("fails with advice if lo is down", func() {
		n.Node.Sh("ip link set lo down")
		n.Node.Do(func() {
			_, err := Mode.New(Background, portal.Options{})
			Expect(err).To(MatchError(ContainSubstring("ip link set lo up")))
		})
	})

	It("refuses VIPs that another program has a route for, until that route is removed", func() {
		p := n.Open(Mode, portal.Options{})
		n.Node.Sh("ip route add blackhole 10.96.0.10 table local")
		n.Node.Do(func() {
			Expect(p.Apply(Background, []portal.Rule{Redirect(Web4, 80)}, nil).Refused).To(HaveKeyWithValue(Web4, MatchError(And(
				ContainSubstring("file exists: another program has a route for it"), ContainSubstring("10.96.0.10")))))
			Expect(p.Check(Background).Refused).To(HaveKeyWithValue(Web4, MatchError(ContainSubstring("file exists"))))
		})
		n.Node.Sh("ip route del blackhole 10.96.0.10 table local")
		Expect(n.Check(p)).To(Equal(1))
	})

	It("refuses only IPv6 VIPs if IPv6 is disabled", func() {
		n.Node.Sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1")
		p := n.Open(Mode, portal.Options{})
		n.Node.Do(func() {
			Expect(p.Apply(Background, []portal.Rule{Redirect(Web4, 80), Redirect(Web6, 80)}, nil).Refused).To(And(HaveLen(1), HaveKey(Web6)))
		})
		Expect(ours()).To(ContainSubstring("10.96.0.10"))
	})

	It("is fast with 10,000 VIPs", Label("slow"), func() {
		const added = "one added"
		steps := [...]string{"first apply", "check", added, "remove"}
		redirect := func(i int) portal.Rule {
			return Redirect(To(portal.TCP, netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}), 80), 80)
		}
		// took returns the duration of each step with count VIPs.
		took := func(count int) (times [len(steps)]time.Duration) {
			GinkgoHelper()
			p := n.Open(Mode, portal.Options{})
			var rules []portal.Rule
			for i := range count {
				rules = append(rules, redirect(i))
			}
			measure := func(f func()) time.Duration {
				began := time.Now()
				f()
				return time.Since(began)
			}
			times[0] = measure(func() { n.Apply(p, rules, nil) })
			times[1] = measure(func() { Expect(n.Check(p)).To(BeZero()) })
			times[2] = time.Hour
			for i := range 5 { // the machine may have been busy
				times[2] = min(times[2], measure(func() { n.Apply(p, []portal.Rule{redirect(count + i)}, nil) }))
			}
			times[3] = measure(func() { n.Remove(p) })
			Expect(strings.TrimSpace(ours())).To(BeEmpty())
			return times
		}
		few := took(1000)
		for range 2 {
			for step, t := range took(1000) {
				few[step] = min(few[step], t)
			}
		}
		for step, t := range took(10000) {
			AddReportEntry(fmt.Sprintf("address, 10,000 VIPs: %s: %v", steps[step], t.Round(10*time.Microsecond)))
			most := 40*few[step] + time.Second // grows with the number of VIPs
			if steps[step] == added {
				most = 100 * time.Millisecond // for any number of VIPs
			}
			Expect(t).To(BeNumerically("<", most), steps[step])
		}
	})
})

var _ = Describe("a VIP that could not be routed", func() {
	It("is no longer missing once its route exists", func() {
		p, vip := &addressPortal{opts: portal.Options{OtherProxies: true}}, netip.MustParseAddr("10.96.0.10")
		p.clear()
		p.users[vip], p.routed[vip] = 1, true
		p.missing[vip] = unix.EEXIST
		Expect(p.updateVIPs(Background, []netip.Addr{vip})).To(BeEmpty())
		Expect(p.missing).To(BeEmpty())
	})
})

// connection holds both ends of a TCP connection.
type connection struct{ client, server net.Conn }

// listenOn listens at a TCP target in the calling thread's network namespace.
func listenOn(t portal.Target) net.Listener {
	GinkgoHelper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(Background, "tcp", netip.AddrPortFrom(t.Addr, t.Port).String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { l.Close() })
	return l
}

// connect connects from a host to l, at t.
func connect(from *Host, l net.Listener, t portal.Target) *connection {
	GinkgoHelper()
	c := &connection{}
	from.Do(func() {
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

// end closes the connection, the client's end first.
func (c *connection) end() {
	c.client.Close()
	c.server.Close()
}

// carries expects that a connection carries bytes in both directions.
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
