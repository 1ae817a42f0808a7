package test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

// These specs check which clients are served, through which port and by which endpoint, if rules redirect to usher.
var _ = Describe("A UDP Service behind a redirect of", func() {
	for _, portal := range []string{"iptables", "nftables"} {
		Describe(portal, func() { redirectedUDPSpecs(portal) })
	}
})

// countedEcho is an echo server that counts the datagrams that it receives.
type countedEcho struct {
	addr netip.AddrPort
	got  atomic.Int64
}

func startCountedEcho(ns *lab.Namespace, addr netip.Addr) *countedEcho {
	GinkgoHelper()
	e := &countedEcho{addr: netip.AddrPortFrom(addr, 5300)}
	lab.ServeUDP(ns.ListenUDP(e.addr.String()), func([]byte, netip.AddrPort) []byte {
		e.got.Add(1)
		return []byte(e.addr.String())
	})
	return e
}

func redirectedUDPSpecs(portal string) {
	var (
		l             *lab.Lab
		pod, node     *lab.Dialer
		outside       *lab.Dialer
		dns           service
		dir           string
		first, second *countedEcho
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod, node, outside = l.Pods.NewDialer(2), l.Node.NewDialer(2), l.Outside.NewDialer(2)
		dir = manifestsDir()
		first, second = startCountedEcho(l.Pods, lab.Pod(1)), startCountedEcho(l.Pods, lab.Pod(2))
		dns = service{name: "dns", clusterIP: clusterIP, port: 53, protocol: "UDP", endpoints: []netip.AddrPort{first.addr}}
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		dns.write(dir)
		return startUsher(l.Node, dir, append([]string{"--portal=" + portal, "--trace"}, args...)...)
	}
	reaches := func(from *lab.Dialer, e *countedEcho) {
		GinkgoHelper()
		Expect(askAnew(from, dns.vip())).To(Equal(e.addr))
	}

	It("does not answer clients that bypass the portal and send to the listener's port, and resets those of a TCP Service", func() {
		backend := startBackend(l.Pods, lab.Pod(3), 8080)
		web := service{name: "web", clusterIP: "10.96.0.11", port: 80, endpoints: []netip.AddrPort{backend.addr}}
		web.write(dir)
		u := start()
		_, port, err := net.SplitHostPort(listenerOf(u, "dns"))
		Expect(err).NotTo(HaveOccurred())
		refused := 0
		for _, c := range []struct {
			from *lab.Dialer
			to   string
		}{{pod, "10.244.0.1"}, {outside, "192.0.2.1"}, {node, "127.0.0.1"}} {
			direct, err := c.from.DialUDP("", net.JoinHostPort(c.to, port))
			Expect(err).NotTo(HaveOccurred())
			Expect(exchange(direct, []byte(who), 300*time.Millisecond)).Error().To(MatchError(os.ErrDeadlineExceeded), c.to)
			refused++
			Eventually(sample(node, `usher_udp_datagrams_dropped_total{reason="not-admitted"}`)).WithTimeout(30*time.Second).Should(BeEquivalentTo(refused), c.to)
			direct.Close()
		}
		Eventually(u.Out).Should(gbytes.Say("closed after .*: bypassed-portal"))
		Eventually(sample(node, "usher_udp_sessions_open")).WithTimeout(30 * time.Second).Should(BeZero())
		Expect(first.got.Load()).To(BeZero(), "datagrams that the endpoint received")
		reaches(pod, first)

		By("resetting TCP clients")
		_, port, err = net.SplitHostPort(listenerOf(u, "web"))
		Expect(err).NotTo(HaveOccurred())
		for _, client := range []*lab.Dialer{outside, pod, node} {
			Expect(ask(client, net.JoinHostPort(lab.NodeOut4, port))).Error().To(reset)
			Eventually(u.Out).Should(gbytes.Say("default/web:main closed after .*: bypassed-portal"))
		}
		Expect(backend.connections()).To(BeZero())
		Expect(ask(outside, web.vip())).To(Equal(backend.addr), "it is served through the portal")
	})

	It("ends no session without a port of the node when others need one", func() {
		l.Node.Output("sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40031") // sessions may have 16 of them, those of one Service 8
		var own []service                                                          // their only client is their endpoint, which gets the node's address and a port of it
		for n := range 4 {
			s := service{name: fmt.Sprint("own-", n), clusterIP: fmt.Sprintf("10.96.0.%d", 20+n), port: 53, protocol: "UDP", endpoints: []netip.AddrPort{second.addr}}
			s.write(dir)
			own = append(own, s)
		}
		start("--cluster-cidr=10.244.0.0/24")         // the endpoints are Pods of this node
		client, err := outside.DialUDP("", dns.vip()) // its endpoint gets its address
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()
		Expect(whoAnswers(client)).To(Equal(first.addr))
		for _, s := range own {
			for range 12 {
				Expect(askWho(pod, lab.Pod(2).String(), s.vip())).To(Equal(second.addr))
			}
		}
		Eventually(sample(node, `usher_udp_sessions_ended_total{end="limit"}`)).WithTimeout(30 * time.Second).Should(BeNumerically(">", 4*(12-8)))
		Expect(whoAnswers(client)).To(Equal(first.addr))
		Expect(metric(node, `usher_service_connections_total{namespace="default",service="dns"}`)).To(BeEquivalentTo(1), "the session continues")
	})

	It("skips endpoints that are a node port of this node or usher's own address", func() {
		dns.portFields, dns.spec = ", nodePort: 30053", "  type: NodePort\n"
		dns.endpoints = []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:30053"), first.addr}
		four := service{name: "four", clusterIP: "10.96.0.12", port: 53, protocol: "UDP", portFields: ", nodePort: 30055", spec: "  type: NodePort\n",
			endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.0.117:30055"), second.addr}}
		four.write(dir)
		six := service{name: "six", clusterIP: "fd00:10:96::10", port: 53, protocol: "UDP", portFields: ", nodePort: 30054", spec: "  type: NodePort\n",
			endpoints: []netip.AddrPort{netip.MustParseAddrPort("[fd75:7368:6572::1]:30054"), startEcho(l.Pods, lab.Pod6(1))}}
		six.write(dir)
		web := service{name: "web", clusterIP: "10.96.0.11", port: 80, portFields: ", nodePort: 30080", spec: "  type: NodePort\n",
			endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.0.117:30080"), startBackend(l.Pods, lab.Pod(3), 8080).addr}}
		web.write(dir)
		u := start()
		for range 4 {
			reaches(pod, first)
			Expect(askAnew(pod, four.vip())).To(Equal(four.endpoints[1]))
			Expect(askAnew(pod, six.vip())).To(Equal(six.endpoints[1]))
			Expect(ask(pod, web.vip())).To(Equal(web.endpoints[1]))
		}
		Eventually(func() string { return string(u.Out.Contents()) }).Should(MatchRegexp(`→ 10\.244\.0\.1:30053 .*refused: the endpoint is a VIP, a node port of this node`))
		for _, own := range []string{`192\.0\.0\.117:30055`, `\[fd75:7368:6572::1\]:30054`, `192\.0\.0\.117:30080`} {
			Eventually(func() string { return string(u.Out.Contents()) }).Should(MatchRegexp(`→ ` + own + ` .*refused: .*usher's own address`))
		}
		Expect(first.got.Load()).To(BeEquivalentTo(4))
		Expect(metric(node, "usher_udp_sessions_open")).To(BeEquivalentTo(12))
	})

	It("limits the hops of a datagram that loops between nodes, over IPv4 and IPv6", func() {
		at := func(addr string, nodePort uint16) []netip.AddrPort {
			return []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(addr), nodePort)}
		}
		six := service{name: "six", clusterIP: "fd00:10:96::10", port: 53, protocol: "UDP", portFields: ", nodePort: 30054", spec: "  type: NodePort\n"}
		dns.portFields, dns.spec = ", nodePort: 30053", "  type: NodePort\n"
		elsewhere := manifestsDir()
		dns.endpoints, six.endpoints = at(lab.NodeOut4, 30053), at(lab.NodeOut6, 30054)
		dns.write(elsewhere)
		six.write(elsewhere)
		dns.endpoints, six.endpoints = at(lab.Outside4, 30053), at(lab.Outside6, 30054)
		six.write(dir)
		start()
		startUsher(l.Outside, elsewhere, "--portal="+portal)
		both := func(name string) func() float64 {
			return func() float64 { return metric(node, name) + metric(outside, name) }
		}
		dropped, sent := both(`usher_udp_datagrams_dropped_total{reason="hop-limit"}`), both(`usher_udp_datagrams_total{to="endpoint"}`)
		for i, vip := range []string{dns.vip(), six.vip()} {
			before := sent()
			c, err := pod.DialUDP("", vip)
			Expect(err).NotTo(HaveOccurred())
			_, err = c.Write([]byte(who))
			Expect(err).NotTo(HaveOccurred())
			Eventually(dropped).WithTimeout(10*time.Second).Should(BeEquivalentTo(1+i), vip)
			Expect(sent()-before).To(And(BeNumerically(">", 2), BeNumerically("<=", 64)), "64 is the Pod's hop limit")
		}
	})

	It("listens on a free port of --proxy-port-range if the preferred one is taken", func() {
		for _, taken := range []string{"0.0.0.0:20000", "0.0.0.0:20001", "0.0.0.0:20003"} {
			l.Node.ListenUDP(taken)
		}
		u := start("--proxy-port-range=20000-20003")
		Expect(listenerOf(u, "dns")).To(Equal("0.0.0.0:20002"))
		reaches(pod, first)

		By("not listening outside the range when all ports are taken")
		other := service{name: "other", clusterIP: "10.96.0.11", port: 53, protocol: "UDP", endpoints: dns.endpoints}
		other.write(dir)
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say(`Service port is not served as configured.*address already in use`))
		reaches(pod, first)
	})

	// conditions writes the Service again, with these conditions of its endpoints in the EndpointSlices.
	conditions := func(of map[*countedEcho]string) {
		GinkgoHelper()
		text := dns.yaml()
		for e, c := range of {
			ready := fmt.Sprintf("[%q], conditions: {ready: true}", e.addr.Addr())
			Expect(text).To(ContainSubstring(ready))
			text = strings.Replace(text, ready, fmt.Sprintf("[%q], conditions: {%s}", e.addr.Addr(), c), 1)
		}
		writeFile(filepath.Join(dir, "dns.yaml"), text)
	}

	It("keeps a session with a terminating endpoint while that endpoint serves", func() {
		dns.endpoints = append(dns.endpoints, second.addr)
		ready, terminating, gone := "ready: true", "ready: false, serving: true, terminating: true", "ready: false, serving: false, terminating: true"
		conditions(map[*countedEcho]string{first: ready, second: gone})
		u := startUsher(l.Node, dir, "--portal="+portal, "--trace")
		c, err := pod.DialUDP("", dns.vip())
		Expect(err).NotTo(HaveOccurred())
		asked, stop := keepAsking(c, 100*time.Millisecond)
		defer stop()
		Eventually(asked.latest).Should(Equal(first.addr.String()))

		conditions(map[*countedEcho]string{first: terminating, second: ready})
		Eventually(func() (netip.AddrPort, error) { return askWho(pod, "", dns.vip()) }).WithTimeout(time.Minute).
			Should(Equal(second.addr), "new clients get the ready endpoint")
		before := asked.answered.Load()
		Eventually(asked.answered.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", before+50))
		Expect(asked.latest()).To(Equal(first.addr.String()))
		Expect(u.Out).NotTo(gbytes.Say("closed after .*: endpoint-removed"))

		By("ending it once that endpoint no longer serves")
		conditions(map[*countedEcho]string{first: gone, second: ready})
		Eventually(asked.latest).WithTimeout(time.Minute).Should(Equal(second.addr.String()))
		Eventually(u.Out).Should(gbytes.Say("closed after .*: endpoint-removed"))

		By("keeping it with a terminating endpoint if none is ready")
		conditions(map[*countedEcho]string{first: gone, second: terminating})
		before = asked.answered.Load()
		Eventually(asked.answered.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", before+50))
		Expect(asked.latest()).To(Equal(second.addr.String()))
		conditions(map[*countedEcho]string{first: gone, second: gone})
		Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say("closed after .*: endpoint-removed"))
		Eventually(asked.unanswered.Load).WithTimeout(time.Minute).Should(BeNumerically(">", 5))
	})
}
