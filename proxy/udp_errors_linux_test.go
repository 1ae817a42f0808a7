package proxy_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

// withTraits is a portal with the traits of another portal.
type withTraits struct {
	portal.Portal
	traits portal.Traits
}

func (p withTraits) Traits() portal.Traits { return p.traits }

// These specs cover the errors that usher learns about a UDP endpoint, and those that it does not.
var _ = Describe("a UDP session", func() {
	var (
		o             proxy.Options
		proxyProtocol config.ProxyProtocol
		policy        config.Policy
	)
	BeforeEach(func() {
		proxyProtocol, policy = 0, config.DefaultPolicy()
		o = defaults()
	})
	// serve serves these endpoints, and returns the proxy and a function that creates a client.
	serve := func(endpoints ...netip.AddrPort) (*proxy.Proxy, func() *net.UDPConn) {
		GinkgoHelper()
		p := proxy.New(o)
		DeferCleanup(p.Stop)
		family, vip := config.IPv4, netip.MustParseAddr("10.96.0.1")
		if endpoints[0].Addr().Is6() {
			family, vip = config.IPv6, netip.MustParseAddr("fd00:10:96::1")
		}
		port := config.ServicePort{
			ID:       config.PortID{Namespace: "of-udp-errors", Service: "echo", Family: family},
			Protocol: config.UDP,
			Policy:   policy, ProxyProtocol: proxyProtocol,
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: vip, Port: 53}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "of-udp-errors", Name: "echo"}, Ports: []config.ServicePort{port}}})
		return p, func() *net.UDPConn {
			GinkgoHelper()
			client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.Status()[0].Listeners[0]))
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(client.Close)
			Expect(client.SetDeadline(time.Now().Add(time.Minute))).To(Succeed())
			return client
		}
	}
	// listen opens an endpoint that does not respond.
	listen := func(at string) (*net.UDPConn, netip.AddrPort) {
		GinkgoHelper()
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		return c, c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	receive := func(c *net.UDPConn) (string, netip.AddrPort) {
		GinkgoHelper()
		buf := make([]byte, 2048)
		Expect(c.SetReadDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
		n, from, err := c.ReadFromUDPAddrPort(buf)
		Expect(err).NotTo(HaveOccurred())
		return string(buf[:n]), from
	}
	send := func(c *net.UDPConn, text string) {
		GinkgoHelper()
		_, err := c.Write([]byte(text))
		Expect(err).NotTo(HaveOccurred())
	}

	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		It("continues after an error that a datagram was too big, to "+at, func() {
			endpoint, addr := listen(at)
			p, newClient := serve(addr)
			client := newClient()
			tooBig := func() {
				GinkgoHelper()
				send(client, "a probe of the path")
				_, session := receive(endpoint)
				before := p.Stats().Sessions.Dropped[frontend.DropTooBig]
				sendICMP(packetTooBig, session, addr)
				Eventually(func() int64 { return p.Stats().Sessions.Dropped[frontend.DropTooBig] }).WithTimeout(30 * time.Second).Should(Equal(before + 1))
			}

			By("reporting the error before the endpoint has answered")
			tooBig()
			send(client, "hello")
			got, session := receive(endpoint)
			Expect(got).To(Equal("hello"))
			_, err := endpoint.WriteToUDPAddrPort([]byte("welcome"), session)
			Expect(err).NotTo(HaveOccurred())
			got, _ = receive(client)
			Expect(got).To(Equal("welcome"))

			By("reporting the error after the endpoint has answered")
			tooBig()
			send(client, "smaller")
			got, again := receive(endpoint)
			Expect(got).To(Equal("smaller"))
			Expect(again).To(Equal(session), "the session is the same")
			s := p.Stats()
			Expect(s.Quarantines).To(BeZero())
			Expect(s.Sessions.Begun).To(BeEquivalentTo(1))
			Expect(s.Sessions.Ends).To(BeEmpty())

			expectIdle()
		})

		It("treats an endpoint as unreachable only after an ICMP error that means it, from "+at, func() {
			endpoint, addr := listen(at)
			other, second := listen(at)
			p, newClient := serve(addr)
			client := newClient()
			limitHops(client, 20)
			send(client, "hello")
			_, session := receive(endpoint)
			dropped := func() int64 { return p.Stats().Sessions.Dropped[frontend.DropNotSent] }

			By("reporting that the client's low hop limit is reached")
			sendICMP(hopLimitReached, session, addr)
			Eventually(dropped).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
			Expect(p.Stats().Quarantines).To(BeZero())

			By("reporting that a fragment of the client's was lost")
			if addr.Addr().Is6() { // Linux ignores the IPv4 error
				sendICMP(fragmentsLost, session, addr)
				Eventually(dropped).WithTimeout(30 * time.Second).Should(BeEquivalentTo(2))
				Expect(p.Stats().Quarantines).To(BeZero())
			}
			before := dropped()

			By("reporting, after an answer, that the host is unreachable")
			_, err := endpoint.WriteToUDPAddrPort([]byte("welcome"), session)
			Expect(err).NotTo(HaveOccurred())
			receive(client)
			sendICMP(hostUnreachable, session, addr)
			Eventually(dropped).WithTimeout(30 * time.Second).Should(Equal(before + 1))
			s := p.Stats()
			Expect(s.Quarantines).To(BeZero())
			Expect(s.Sessions.Ends).To(BeEmpty())

			By("reporting, after an answer and from another address, that the port is closed")
			for _, forged := range []icmp{portUnreachable, prohibited} {
				before = dropped()
				for range 50 {
					sendICMPFrom(stranger[addr.Addr().Is6()], forged, session, addr)
				}
				Eventually(dropped).WithTimeout(30 * time.Second).Should(BeNumerically(">", before))
			}
			send(client, "still there?")
			got, same := receive(endpoint)
			Expect(got).To(Equal("still there?"))
			Expect(same).To(Equal(session))
			s = p.Stats()
			Expect(s.Quarantines).To(BeZero())
			Expect(s.Sessions.Ends).To(BeEmpty())

			By("reporting, after an answer, that the port is closed")
			sendICMP(portUnreachable, session, addr)
			Eventually(func() int64 { return p.Stats().Sessions.Ends[outcome.EndpointReset] }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
			Expect(p.Stats().Quarantines).To(BeEquivalentTo(1))

			By("reporting, before an answer, that the host is unreachable")
			p, newClient = serve(addr, second)
			client = newClient()
			send(client, "hello again")
			type arrival struct {
				text        string
				at, session netip.AddrPort
			}
			arrived := make(chan arrival, 2)
			for at, c := range map[netip.AddrPort]*net.UDPConn{addr: endpoint, second: other} {
				go func() {
					buf := make([]byte, 100)
					if n, session, err := c.ReadFromUDPAddrPort(buf); err == nil {
						arrived <- arrival{string(buf[:n]), at, session}
					}
				}()
			}
			first := <-arrived
			sendICMP(hostUnreachable, first.session, first.at)
			var again arrival
			Eventually(arrived).WithTimeout(30 * time.Second).Should(Receive(&again))
			Expect(again.text).To(Equal(first.text), "the other endpoint gets the datagram")
			Expect(p.Stats().Quarantines).To(BeEquivalentTo(1))
			expectIdle()
		})
	}

	It("uses no CPU time after a send has failed with an error that stays in the queue", func() {
		_, addr := listen("127.0.0.1:0")
		proxyProtocol = config.ProxyV2
		p, newClient := serve(addr)
		_, err := newClient().Write(make([]byte, 65500)) // with the header, it is too big for a datagram
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() int64 { return p.Stats().Sessions.Dropped[frontend.DropTooBig] }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
		expectIdle()
	})

	DescribeTable("to an endpoint that is a VIP of another Service", func(traits portal.Traits, goes bool) {
		o.Portal = withTraits{o.Portal, traits}
		process, vip := listen("127.117.0.2:0")
		p, newClient := serve(vip)
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "of-udp-errors", Name: "vip"}, Ports: []config.ServicePort{{
			ID:       config.PortID{Namespace: "of-udp-errors", Service: "vip", Family: config.IPv4},
			Protocol: config.UDP,
			Policy:   config.DefaultPolicy(),
			VIPs:     []config.VIP{{Kind: config.ExternalIP, Addr: vip.Addr(), Port: vip.Port()}},
		}}}})
		client := newClient()
		send(client, "round and round")
		if goes {
			got, _ := receive(process)
			Expect(got).To(Equal("round and round"))
			return
		}
		Eventually(func() int64 { return p.Stats().Sessions.Ends[outcome.AttemptsFailed] }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
		Expect(process.SetReadDeadline(time.Now())).To(Succeed())
		Expect(process.ReadFromUDPAddrPort(make([]byte, 100))).Error().To(MatchError(os.ErrDeadlineExceeded))
	},
		Entry("is not sent if the portal cannot recognize usher's datagrams", portal.Traits{Local: true}, false),
		Entry("is sent if the kernel redirects no datagrams to usher", portal.Traits{}, true),
	)

	It("does not end a quarantine without an answer", func() {
		policy.UDPIdleTimeout = 2 * time.Second
		c, addr := listen("127.117.0.1:0") // no other process takes the port there
		c.Close()
		p, newClient := serve(addr)
		client := newClient()
		send(client, "is anybody there?")
		Eventually(func() int64 { return p.Stats().Quarantines }).Should(BeEquivalentTo(1))

		By("sending to the only endpoint, which no longer refuses but does not answer")
		c, _ = listen(addr.String())
		Consistently(func() int64 {
			send(client, "a line of a log")
			return p.Stats().Recoveries
		}).WithTimeout(1500 * time.Millisecond).WithPolling(50 * time.Millisecond).Should(BeZero())
		got, _ := receive(c)
		Expect(got).To(Equal("a line of a log"))
		Eventually(func() int64 { return p.Stats().Sessions.Ends[outcome.Idle] }).WithTimeout(20 * time.Second).Should(BeEquivalentTo(1))
		Expect(p.Stats().Recoveries).To(BeZero())

		By("ending the quarantine with an answer")
		send(client, "and now?")
		for {
			got, session := receive(c)
			if got == "and now?" {
				_, err := c.WriteToUDPAddrPort([]byte("yes"), session)
				Expect(err).NotTo(HaveOccurred())
				break
			}
		}
		Eventually(func() int64 { return p.Stats().Recoveries }).Should(BeEquivalentTo(1))
	})

	It("does not count a session that is evicted before its endpoint answers as failed", func() {
		o.Limits.MaxUDPSessions = 1
		collector, addr := listen("127.0.0.1:0")
		p, newClient := serve(addr)
		send(newClient(), "first")
		got, _ := receive(collector)
		Expect(got).To(Equal("first"))
		send(newClient(), "second")
		got, _ = receive(collector)
		Expect(got).To(Equal("second"))
		s := p.Stats()
		Expect(s.Sessions.Ends).To(Equal(map[outcome.Outcome]int64{outcome.Limit: 1}))
		Expect(s.All.Failed).To(BeZero())
	})

	It("serves an endpoint that never answers by design, despite a dead one", func() {
		o.Quarantine.First, o.Quarantine.Max = 50*time.Millisecond, 100*time.Millisecond
		dead, nobody := listen("127.117.0.1:0")
		dead.Close()
		collector, addr := listen("127.0.0.1:0")
		p, newClient := serve(nobody, addr)
		for range 5 { // after each quarantine the unresponsive endpoint gets a datagram again
			before := p.Stats().Quarantines
			Eventually(func() int64 {
				send(newClient(), "a line of a log")
				got, _ := receive(collector)
				Expect(got).To(Equal("a line of a log"))
				return p.Stats().Quarantines
			}).WithTimeout(20 * time.Second).Should(BeNumerically(">", before))
		}
		Expect(p.Stats().Sessions.Dropped[frontend.DropNoEndpoint]).To(BeZero())
	})
})

// icmp is an ICMP error: type, code, and the value after the checksum, for each family.
type icmp struct{ v4, v6 [3]byte }

// RFC 792, RFC 1191 and RFC 4443.
var (
	packetTooBig    = icmp{[3]byte{3, 4, 5}, [3]byte{2, 0, 5}} // 1280
	hopLimitReached = icmp{[3]byte{11, 0, 0}, [3]byte{3, 0, 0}}
	fragmentsLost   = icmp{[3]byte{11, 1, 0}, [3]byte{3, 1, 0}}
	hostUnreachable = icmp{[3]byte{3, 1, 0}, [3]byte{1, 3, 0}}
	portUnreachable = icmp{[3]byte{3, 3, 0}, [3]byte{1, 4, 0}}
	prohibited      = icmp{[3]byte{3, 13, 0}, [3]byte{1, 1, 0}}
)

// sendICMP sends an ICMP error to the UDP socket at address to, about its datagram to address from.
func sendICMP(what icmp, to, from netip.AddrPort) {
	GinkgoHelper()
	sendICMPFrom(from.Addr(), what, to, from)
}

// sendICMPFrom is sendICMP from the address sender, which need not be one of this node.
func sendICMPFrom(sender netip.Addr, what icmp, to, from netip.AddrPort) {
	GinkgoHelper()
	if os.Geteuid() != 0 {
		Skip("needs root, to send an ICMP error")
	}
	udp := binary.BigEndian.AppendUint16(nil, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, from.Port())
	udp = append(udp, 0, 8, 0, 0)
	network, message := "ip4:icmp", []byte{what.v4[0], what.v4[1], 0, 0, 0, 0, what.v4[2], 0}
	if to.Addr().Is4() {
		ip := []byte{0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0}
		ip = append(append(ip, to.Addr().AsSlice()...), from.Addr().AsSlice()...)
		message = append(append(message, ip...), udp...)
		var sum uint32
		for i := 0; i < len(message); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(message[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	} else {
		network, message = "ip6:ipv6-icmp", []byte{what.v6[0], what.v6[1], 0, 0, 0, 0, what.v6[2], 0} // the kernel fills in the checksum
		ip := []byte{0x60, 0, 0, 0, 0, 8, 17, 64}
		ip = append(append(ip, to.Addr().AsSlice()...), from.Addr().AsSlice()...)
		message = append(append(message, ip...), udp...)
	}
	dialer := net.Dialer{LocalAddr: &net.IPAddr{IP: sender.AsSlice()}}
	if sender.Is6() && !sender.IsLoopback() { // each IPv4 sender is an address of lo
		dialer.Control = func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = forward.SetTransparent(int(fd), sender) })
			return errors.Join(err, failed)
		}
	}
	c, err := dialer.Dial(network, to.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	defer c.Close()
	_, err = c.Write(message)
	Expect(err).NotTo(HaveOccurred())
}

// stranger is an address of neither the client nor the endpoint, by whether it is of IPv6.
var stranger = map[bool]netip.Addr{false: netip.MustParseAddr("127.117.0.3"), true: netip.MustParseAddr("fd00:117::3")}

// limitHops sets the hop limit of the client's datagrams.
func limitHops(client *net.UDPConn, hops int) {
	GinkgoHelper()
	raw, err := client.SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	Expect(raw.Control(func(fd uintptr) {
		GinkgoHelper()
		if client.LocalAddr().(*net.UDPAddr).IP.To4() != nil {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hops)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
		}
	})).To(Succeed())
	Expect(err).NotTo(HaveOccurred())
}

// expectIdle expects that this process uses nearly no CPU time: no loop is called again and again.
func expectIdle() {
	GinkgoHelper()
	Eventually(func() time.Duration {
		before := cpuTime()
		time.Sleep(time.Second)
		return cpuTime() - before
	}).WithTimeout(30 * time.Second).Should(BeNumerically("<", 200*time.Millisecond))
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	GinkgoHelper()
	var usage unix.Rusage
	Expect(unix.Getrusage(unix.RUSAGE_SELF, &usage)).To(Succeed())
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
