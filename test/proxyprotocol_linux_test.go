package test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/test/lab"
)

// startHAProxy and startNginx start these servers in ns until the test ends. They wait until each of the addresses
// accepts connections.
func startHAProxy(ns *lab.Namespace, config string, addresses ...string) {
	GinkgoHelper()
	missing("haproxy")
	path := filepath.Join(GinkgoT().TempDir(), "haproxy.cfg")
	writeFile(path, "defaults\n  timeout connect 10s\n  timeout client 10s\n  timeout server 10s\n"+config)
	startPeer(ns, exec.Command("haproxy", "-db", "-f", path), addresses)
}

func startNginx(ns *lab.Namespace, config string, addresses ...string) {
	GinkgoHelper()
	missing("nginx")
	const stream = "/usr/lib/nginx/modules/ngx_stream_module.so"
	if found, _ := filepath.Glob(stream); found == nil {
		Skip("nginx's stream module is not installed")
	}
	dir := GinkgoT().TempDir()
	path := filepath.Join(dir, "nginx.conf")
	writeFile(path, fmt.Sprintf("load_module %s;\ndaemon off;\nmaster_process off;\npid %s/pid;\nevents {}\n%s", stream, dir, config))
	startPeer(ns, exec.Command("nginx", "-c", path, "-e", filepath.Join(dir, "error.log")), addresses)
}

func startPeer(ns *lab.Namespace, cmd *exec.Cmd, addresses []string) {
	GinkgoHelper()
	var s *gexec.Session
	ns.Do(func() (err error) {
		s, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
		return err
	})
	DeferCleanup(func() { s.Kill().Wait(30 * time.Second) })
	d := ns.NewDialer(1)
	for _, a := range addresses {
		Eventually(func() error {
			c, err := d.Dial("", a, time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}).WithTimeout(time.Minute).Should(Succeed(), "%s on %s", cmd.Path, a)
	}
}

// tellers starts HAProxy and nginx as endpoints that expect a header. They answer with its contents:
// "haproxy 203.0.113.9 4711 10.96.0.10 80".
func tellers(l *lab.Lab) (v4, v6 []netip.AddrPort) {
	GinkgoHelper()
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 8080) }
	v4, v6 = []netip.AddrPort{at(lab.Pod(1)), at(lab.Pod(2))}, []netip.AddrPort{at(lab.Pod6(1)), at(lab.Pod6(2))}
	startHAProxy(l.Pods, fmt.Sprintf("frontend endpoint\n  mode http\n  bind %s accept-proxy\n  bind %s accept-proxy\n", v4[0], v6[0])+
		`  http-request return status 200 content-type text/plain lf-string "haproxy %[src] %[src_port] %[dst] %[dst_port]"`+"\n", v4[0].String(), v6[0].String())
	startNginx(l.Pods, fmt.Sprintf("http { access_log off; server { listen %s proxy_protocol; listen %s proxy_protocol;\n", v4[1], v6[1])+
		`location / { return 200 "nginx $proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port"; } } }`+"\n", v4[1].String(), v6[1].String())
	return v4, v6
}

// learned sends a request to one of the tellers over c, after a header that may be empty. It returns the teller's name
// and the header's contents as the teller reports them.
func learned(c *net.TCPConn, header []byte) (by, what string) {
	GinkgoHelper()
	defer c.Close()
	Expect(c.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
	Expect(c.Write(append(header, "GET / HTTP/1.0\r\n\r\n"...))).Error().NotTo(HaveOccurred())
	answer, err := io.ReadAll(c)
	Expect(err).NotTo(HaveOccurred())
	_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	by, what, _ = strings.Cut(body, " ")
	return by, what
}

func words(from, to netip.AddrPort) string {
	return fmt.Sprintf("%s %d %s %d", from.Addr(), from.Port(), to.Addr(), to.Port())
}

func localOf(c net.Conn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

// These clients are behind the load balancers at lab.Outside4 and Outside6.
const (
	beyond4, otherBeyond4 = "203.0.113.9", "203.0.113.200"
	beyond6               = "2001:db8:1::9"
)

func addBeyond(l *lab.Lab) {
	for _, a := range []string{beyond4, otherBeyond4, beyond6} {
		l.Outside.Output("ip", "address", "add", a, "dev", "lo")
	}
}

var _ = Describe("the PROXY protocol, with", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("the "+portal+" portal,", func() { proxyProtocolSpecs(portal) })
	}
})

func proxyProtocolSpecs(portal string) {
	var (
		l            *lab.Lab
		pod, outside *lab.Dialer
		dir          string
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod, outside = l.Pods.NewDialer(4), l.Outside.NewDialer(4)
		dir = manifestsDir()
		addBeyond(l)
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		return startUsher(l.Node, dir, append([]string{"--portal=" + portal, "--trace"}, args...)...)
	}

	It("passes client address and VIP to HAProxy and nginx: v1 and v2, IPv4 and IPv6, and prepends a version 2 header to datagrams", func() {
		v4, v6 := tellers(l)
		vips := map[string]netip.AddrPort{}
		for i, version := range []string{"v1", "v2"} {
			for _, s := range []service{
				{name: version + "-4", clusterIP: fmt.Sprintf("10.96.0.%d", 10+i), spec: fmt.Sprintf("  externalIPs: [198.51.100.%d]\n", 10+i), endpoints: v4},
				{name: version + "-6", clusterIP: fmt.Sprintf("fd00:10:96::%d", 10+i), spec: fmt.Sprintf("  externalIPs: [\"2001:db8:2::%d\"]\n", 10+i), endpoints: v6},
			} {
				s.port, s.metadata = 80, ", annotations: {usher.io/proxy-protocol: "+version+"}"
				s.write(dir)
				vips[s.name] = netip.MustParseAddrPort(s.vip())
			}
			vips[version+"-4 external"] = netip.MustParseAddrPort(fmt.Sprintf("198.51.100.%d:80", 10+i))
			vips[version+"-6 external"] = netip.MustParseAddrPort(fmt.Sprintf("[2001:db8:2::%d]:80", 10+i))
		}
		dns := service{name: "dns", clusterIP: "10.96.0.53", port: 53, protocol: "UDP", metadata: ", annotations: {usher.io/proxy-protocol: v2}",
			endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod(1))}}
		dns.write(dir)
		start()
		for name, vip := range vips {
			client, from := pod, ""
			if strings.HasSuffix(name, "external") {
				if client, from = outside, beyond4; vip.Addr().Is6() {
					from = beyond6
				}
			}
			seen := map[string]bool{}
			for range 2 {
				c, err := client.Dial(from, vip.String(), 10*time.Second)
				Expect(err).NotTo(HaveOccurred())
				by, what := learned(c, nil)
				Expect(what).To(Equal(words(localOf(c), vip)), "%s by %s", name, by)
				seen[by] = true
			}
			Expect(seen).To(And(HaveKey("haproxy"), HaveKey("nginx")), name)
		}

		By("prepending a header to datagrams")
		c, err := pod.DialUDP("", dns.vip())
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		header := proxyproto.Header(config.ProxyV2, config.UDP, c.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort(dns.vip()))
		for range 3 {
			Expect(exchange(c, []byte("question"), 10*time.Second)).To(BeEquivalentTo(string(header) + "question"))
		}
	})

	It("accepts the client address from HAProxy and nginx, and passes it on", func() {
		v4, v6 := tellers(l)
		const annotations = ", annotations: {usher.io/proxy-protocol: v2, usher.io/accept-proxy-protocol: \"192.0.2.2/32, 2001:db8::2\"}"
		service{name: "web", clusterIP: clusterIP, port: 80, portFields: ", nodePort: 30080", metadata: annotations, spec: "  type: NodePort\n", endpoints: v4}.write(dir)
		service{name: "web6", clusterIP: "fd00:10:96::10", port: 80, portFields: ", nodePort: 30081", metadata: annotations, spec: "  type: NodePort\n", endpoints: v6}.write(dir)
		u := start()
		var haproxy, stream strings.Builder
		balancers := []string{}
		for family, ips := range [][2]string{{lab.Outside4, lab.NodeOut4}, {lab.Outside6, lab.NodeOut6}} {
			node := net.JoinHostPort(ips[1], fmt.Sprint(30080+family))
			for i, send := range []string{"send-proxy", "send-proxy-v2", "nginx"} {
				at := net.JoinHostPort(ips[0], fmt.Sprint(18000+10*family+i))
				balancers = append(balancers, at)
				if send == "nginx" {
					fmt.Fprintf(&stream, "server { listen %s; proxy_pass %s; proxy_protocol on; }\n", at, node)
				} else {
					fmt.Fprintf(&haproxy, "listen %s-%d\n  mode tcp\n  bind %s\n  server node %s %s\n", send, family, at, node, send)
				}
			}
		}
		startHAProxy(l.Outside, haproxy.String())
		startNginx(l.Outside, "stream {\n"+stream.String()+"}\n")
		for _, at := range balancers {
			balancer := netip.MustParseAddrPort(at)
			from, node := beyond4, netip.MustParseAddrPort(lab.NodeOut4+":30080")
			if balancer.Addr().Is6() {
				from, node = beyond6, netip.AddrPortFrom(netip.MustParseAddr(lab.NodeOut6), 30081)
			}
			var c *net.TCPConn
			Eventually(func() (err error) {
				c, err = outside.Dial(from, at, 10*time.Second)
				return err
			}).WithTimeout(time.Minute).Should(Succeed())
			_, what := learned(c, nil)
			Expect(what).To(Equal(words(localOf(c), node)), at)
			Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say("accepted .*%s → .*, through the load balancer at .*%s", localOf(c).String()[1:], balancer.Addr().String()[1:]))
		}
	})

	It("uses the client address from trusted load balancers only", func() {
		web := service{name: "web", clusterIP: clusterIP, port: 80, portFields: ", nodePort: 30080",
			metadata: ", annotations: {usher.io/accept-proxy-protocol: 192.0.2.2/32}",
			spec: "  type: LoadBalancer\n  sessionAffinity: ClientIP\n  loadBalancerSourceRanges: [203.0.113.0/25, \"2001:db8:1::/64\"]\n" +
				"status: {loadBalancer: {ingress: [{ip: 198.51.100.10}]}}\n"}
		endpoints := []*backend{}
		for n := 1; n <= 3; n++ {
			endpoints = append(endpoints, startBackend(l.Pods, lab.Pod(n), 8080))
			web.endpoints = append(web.endpoints, endpoints[n-1].addr)
		}
		web.write(dir)
		u := start()
		const vip, nodePort = "198.51.100.10:80", lab.NodeOut4 + ":30080"
		header := func(client string) []byte {
			return proxyproto.Header(config.ProxyV2, config.TCP, netip.AddrPortFrom(netip.MustParseAddr(client), 99), netip.MustParseAddrPort(vip))
		}
		// name returns the first line that the endpoint sends to a client which starts with first.
		name := func(from, to string, first []byte) (netip.AddrPort, error) {
			c, err := outside.Dial(from, to, 5*time.Second)
			if err != nil {
				return netip.AddrPort{}, err
			}
			defer c.Close()
			_, _ = c.Write(first) // the read below reports the error
			return readName(c)
		}
		for _, to := range []string{vip, nodePort} {
			had := map[string]netip.AddrPort{}
			for i := range 12 {
				client := fmt.Sprint("203.0.113.", 1+i%6)
				endpoint, err := name("", to, header(client))
				Expect(err).NotTo(HaveOccurred())
				if i < 6 {
					had[client] = endpoint
				}
				Expect(endpoint).To(Equal(had[client]), "affinity of %s", client)
			}
			Expect(had).To(And(ContainElement(web.endpoints[0]), ContainElement(web.endpoints[1]), ContainElement(web.endpoints[2])), "all from one address")

			By("accepting a client of the other address family, at " + to)
			Expect(name("", to, header(beyond6))).Error().NotTo(HaveOccurred())

			By("resetting a client outside the source ranges, at " + to)
			_, err := name("", to, header(otherBeyond4))
			Expect(err).To(reset)
			Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say("accepted 203.0.113.200:99 → "))
			Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say("source-denied"))

			By("resetting a load balancer that sends no header, at " + to)
			_, err = name("", to, []byte("GET / HTTP/1.0\r\n\r\n"))
			Expect(err).To(reset)
			Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say("proxy-header-invalid .*missing PROXY protocol header"))

			By("serving a direct client, at " + to)
			Expect(name(beyond4, to, nil)).Error().NotTo(HaveOccurred())
			Expect(name(beyond4, to, header("203.0.113.1"))).Error().NotTo(HaveOccurred(), "its header is data for the endpoint")
			Expect(u.Out).NotTo(gbytes.Say("accepted 203.0.113.1:99"))
		}

		By("rejecting a direct client outside the source ranges")
		_, err := name(otherBeyond4, vip, header("203.0.113.1"))
		Expect(err).To(HaveOccurred())

		By("requiring no header at the cluster IP")
		Expect(name("", web.vip(), nil)).Error().NotTo(HaveOccurred())

		By("requiring no header after the annotation is removed")
		web.metadata = ""
		web.spec = "  type: NodePort\n"
		web.write(dir)
		Eventually(func() error {
			_, err := name("", nodePort, []byte("?"))
			return err
		}).WithTimeout(time.Minute).Should(Succeed())
	})
}

var _ = Describe("headers of the PROXY protocol", func() {
	It("are byte-for-byte identical to those of HAProxy and nginx", func() {
		l := lab.New()
		addBeyond(l)
		got := make(chan string, 1)
		lab.Serve(l.Outside.Listen("192.0.2.2:18100"), func(c net.Conn) {
			all, _ := io.ReadAll(c)
			got <- string(all)
		})
		type balancer struct {
			at      string
			version config.ProxyProtocol
		}
		balancers := []balancer{
			{"192.0.2.2:18101", config.ProxyV1}, {"[2001:db8::2]:18101", config.ProxyV1}, {"192.0.2.2:18102", config.ProxyV2}, {"[2001:db8::2]:18102", config.ProxyV2},
			{"192.0.2.2:18103", config.ProxyV1}, {"[2001:db8::2]:18103", config.ProxyV1},
		}
		startHAProxy(l.Outside, "listen one\n  mode tcp\n  bind 192.0.2.2:18101\n  bind [2001:db8::2]:18101\n  server s 192.0.2.2:18100 send-proxy\n"+
			"listen two\n  mode tcp\n  bind 192.0.2.2:18102\n  bind [2001:db8::2]:18102\n  server s 192.0.2.2:18100 send-proxy-v2\n")
		startNginx(l.Outside, "stream { server { listen 192.0.2.2:18103; listen [2001:db8::2]:18103; proxy_pass 192.0.2.2:18100; proxy_protocol on; } }\n")
		d := l.Outside.NewDialer(1)
		for _, b := range balancers {
			from, at := beyond4, netip.MustParseAddrPort(b.at)
			if at.Addr().Is6() {
				from = beyond6
			}
			var c *net.TCPConn
			Eventually(func() (err error) {
				c, err = d.Dial(from, b.at, 10*time.Second)
				return err
			}).WithTimeout(time.Minute).Should(Succeed())
			Expect(c.Write([]byte("payload"))).Error().NotTo(HaveOccurred())
			Expect(c.CloseWrite()).To(Succeed())
			Eventually(got).WithTimeout(30*time.Second).Should(Receive(Equal(string(proxyproto.Header(b.version, config.TCP, localOf(c), at))+"payload")), b.at)
			c.Close()
		}
	})
})
