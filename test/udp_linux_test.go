package test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// These specs hold for every portal.
var _ = Describe("UDP through", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("the "+portal+" portal", func() { udpSpecs(portal) })
	}
})

// who is the datagram that an echo server answers with its address.
const who = "who are you?"

// startEcho starts a server that sends back each datagram.
func startEcho(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	at := netip.AddrPortFrom(addr, 5300)
	serveEcho(ns.ListenUDP(at.String()), at)
	return at
}

func serveEcho(c *net.UDPConn, at netip.AddrPort) {
	name := []byte(at.String())
	_ = c.SetReadBuffer(4 << 20)
	lab.ServeUDP(c, func(datagram []byte, _ netip.AddrPort) []byte {
		if string(datagram) == who {
			return name
		}
		return datagram
	})
}

// exchange sends one datagram and returns the next one received.
func exchange(c net.Conn, datagram []byte, timeout time.Duration) ([]byte, error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(datagram); err != nil {
		return nil, err
	}
	buf := make([]byte, 65536)
	n, err := c.Read(buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// askWho acts as one new client and returns the endpoint that answers it.
func askWho(d *lab.Dialer, from, vip string) (netip.AddrPort, error) {
	c, err := d.DialUDP(from, vip)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	return whoAnswers(c)
}

// askAnew is askWho with a client port that stays reserved until the spec ends. The kernel may reuse the port of a
// closed socket, for which usher still has a session.
func askAnew(d *lab.Dialer, vip string) netip.AddrPort {
	GinkgoHelper()
	c, err := d.DialUDP("", vip)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	endpoint, err := whoAnswers(c)
	Expect(err).NotTo(HaveOccurred())
	return endpoint
}

func whoAnswers(c *net.UDPConn) (netip.AddrPort, error) {
	answer, err := exchange(c, []byte(who), 10*time.Second)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(string(answer))
}

func udpSpecs(portal string) {
	var (
		l       *lab.Lab
		pod     *lab.Dialer
		node    *lab.Dialer
		outside *lab.Dialer
		dns     service
		dir     string
		dead    = func(n int) netip.AddrPort { return netip.AddrPortFrom(lab.Pod(n), 5300) }
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod, node, outside = l.Pods.NewDialer(8), l.Node.NewDialer(2), l.Outside.NewDialer(2)
		dns = service{name: "dns", clusterIP: clusterIP, port: 53, protocol: "UDP"}
		dir = manifestsDir()
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		dns.write(dir)
		return startUsher(l.Node, dir, append([]string{"--portal=" + portal}, args...)...)
	}

	It("reaches all endpoints in rotation, from Pods, the node and outside, with datagrams of every size over IPv4 and IPv6", func() {
		for n := 1; n <= 3; n++ {
			dns.endpoints = append(dns.endpoints, startEcho(l.Pods, lab.Pod(n)))
		}
		six := service{name: "six", clusterIP: "fd00:10:96::10", port: 53, protocol: "UDP", endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod6(1))}}
		six.write(dir)
		u := start("--drain-timeout=5m")
		for _, client := range []*lab.Dialer{pod, node, outside} {
			seen := map[netip.AddrPort]int{}
			for range 9 {
				seen[askAnew(client, dns.vip())]++
			}
			Expect(seen).To(Equal(map[netip.AddrPort]int{dns.endpoints[0]: 3, dns.endpoints[1]: 3, dns.endpoints[2]: 3}))
			Expect(askWho(client, "", six.vip())).To(Equal(six.endpoints[0]))
			expectEverySize(client, six.vip())
		}
		for _, client := range []*lab.Dialer{pod, node} {
			expectEverySize(client, dns.vip())
		}

		By("ending its sessions when usher stops")
		Expect(metric(node, "usher_udp_sessions_open")).To(BeNumerically(">", 0))
		u.stop()
	})

	It("replies from the address that the client sent to, on a node with several", func() {
		l.Node.Output("ip", "addr", "add", "192.0.2.7/24", "dev", "to-outside")
		l.Node.Output("ip", "addr", "add", "198.51.100.1/32", "dev", "lo")
		l.Node.Output("ip", "addr", "add", "2001:db8::7/64", "dev", "to-outside", "nodad")
		dns.portFields, dns.spec = ", nodePort: 30053", "  type: NodePort\n  externalIPs: [203.0.113.9]\n"
		dns.endpoints = append(dns.endpoints, startEcho(l.Pods, lab.Pod(1)))
		six := service{name: "six", clusterIP: "fd00:10:96::10", port: 53, protocol: "UDP", portFields: ", nodePort: 30054", spec: "  type: NodePort\n",
			endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod6(1))}}
		six.write(dir)
		start("--trace")
		// A connected socket accepts datagrams only from the address to which it sends.
		for _, at := range []string{"192.0.2.1:30053", "192.0.2.7:30053", "198.51.100.1:30053", "10.244.0.1:30053", "203.0.113.9:53", dns.vip()} {
			Expect(askWho(outside, "", at)).To(Equal(dns.endpoints[0]), at)
			Expect(askWho(pod, "", at)).To(Equal(dns.endpoints[0]), at)
			Expect(askWho(node, "", at)).To(Equal(dns.endpoints[0]), at)
		}
		for _, at := range []string{"[fd00:244::1]:30054", "[2001:db8::1]:30054", "[2001:db8::7]:30054"} {
			// The Pod comes first: without link-local addresses (see lab) the node discovers its neighbors only by an
			// address of the same interface.
			Expect(askWho(pod, "", at)).To(Equal(six.endpoints[0]), at)
			Expect(askWho(outside, "", at)).To(Equal(six.endpoints[0]), at)
		}
	})

	It("retries on the next endpoint if one refuses or its host does not respond, refuses clients while there is none, and moves those of a removed one", func() {
		good := startEcho(l.Pods, lab.Pod(1))
		dns.endpoints = []netip.AddrPort{dead(2), dead(3), good}
		at := func(name, clusterIP string, endpoints ...netip.AddrPort) *service {
			s := &service{name: name, clusterIP: clusterIP, port: 53, protocol: "UDP", endpoints: endpoints}
			s.write(dir)
			return s
		}
		vanished := at("vanished", "10.96.0.11", netip.MustParseAddrPort("10.244.0.98:5300"), good) // no host has this address
		refusing := at("refusing", "10.96.0.12", dead(4), dead(5))
		empty := at("empty", "10.96.0.13")
		moving := at("moving", "10.96.0.14", good)
		u := start("--trace")
		var took []time.Duration
		for range 50 {
			began := time.Now()
			Expect(askWho(pod, "", dns.vip())).To(Equal(good))
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		AddReportEntry("slowest answers", fmt.Sprint(took[40:]))
		Expect(took[len(took)/2]).To(BeNumerically("<", 200*time.Millisecond), "two of three clients get a refusing endpoint first")
		Eventually(u.Out).Should(gbytes.Say(`attempt 1 → 10\.244\.0\.1[23]:5300 .*connection refused after`))
		Eventually(u.Out).Should(gbytes.Say(`attempt \d → 10\.244\.0\.11:5300 .*answered in`))

		By("retrying when the kernel reports that the first endpoint's host does not respond")
		for range 2 {
			c, err := pod.DialUDP("", vanished.vip())
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
			Expect(exchange(c, []byte(who), 30*time.Second)).To(BeEquivalentTo(good.String()), "the only datagram is sent again")
		}
		Eventually(u.Out).Should(gbytes.Say(`attempt 1 → 10\.244\.0\.98:5300 .*no route to host after`))

		By("sending no reply when all endpoints refuse")
		c, err := pod.DialUDP("", refusing.vip())
		Expect(err).NotTo(HaveOccurred())
		Expect(exchange(c, []byte(who), 300*time.Millisecond)).Error().To(MatchError(os.ErrDeadlineExceeded))
		Eventually(u.Out).Should(gbytes.Say(`closed after .*: attempts-failed`))

		By("serving the same client as soon as one answers")
		refusing.endpoints = append(refusing.endpoints, startEcho(l.Pods, lab.Pod(6)))
		refusing.write(dir)
		Eventually(func() (string, error) {
			answer, err := exchange(c, []byte(who), 300*time.Millisecond)
			return string(answer), err
		}).WithTimeout(30 * time.Second).Should(Equal(refusing.endpoints[2].String()))

		By("refusing clients while there are no endpoints")
		ask := func(timeout time.Duration) error {
			c, err := pod.DialUDP("", empty.vip())
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			_, err = exchange(c, []byte(who), timeout)
			return err
		}
		Expect(ask(2 * time.Second)).To(refused)
		empty.endpoints = []netip.AddrPort{good}
		empty.write(dir)
		// The node does not send an ICMP error for each datagram.
		Eventually(func() error { return ask(100 * time.Millisecond) }).WithTimeout(30 * time.Second).Should(Succeed())

		By("moving a client that sends continuously to another endpoint when its endpoint is removed")
		second := startEcho(l.Pods, lab.Pod(7))
		c, err = pod.DialUDP("", moving.vip())
		Expect(err).NotTo(HaveOccurred())
		asked, stop := keepAsking(c, 10*time.Second) // later answers count as lost
		Eventually(asked.latest).Should(Equal(good.String()))
		moving.endpoints = []netip.AddrPort{second}
		moving.write(dir)
		Eventually(asked.latest).WithTimeout(30 * time.Second).Should(Equal(second.String()))
		Eventually(u.Out).Should(gbytes.Say("closed after .*: endpoint-removed"))
		Consistently(asked.latest).WithTimeout(300 * time.Millisecond).Should(Equal(second.String()))
		stop()
		Expect(asked.unanswered.Load()).To(BeNumerically("<=", 2))
	})

	It("serves a client that sends continuously across restarts of usher", func() {
		dns.endpoints = []netip.AddrPort{startEcho(l.Pods, lab.Pod(1))}
		u := start()
		c, err := pod.DialUDP("", dns.vip())
		Expect(err).NotTo(HaveOccurred())
		asked, stop := keepAsking(c, 100*time.Millisecond)
		defer stop()
		for i := range 3 {
			Eventually(asked.latest).Should(Equal(dns.endpoints[0].String()))
			at := listenerOf(u, "dns") // read it now: after usher stops, the table may show a refusal
			if i%2 == 0 {
				u.Kill().Wait(30 * time.Second)
			} else {
				u.stop()
			}
			// Another process takes the local port, so the listener moves.
			if portal == "iptables" {
				l.Node.ListenUDP(at)
			}
			before := asked.answered.Load()
			u = start()
			Eventually(asked.answered.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", before+5))
		}
	})

	It("keeps a client's endpoint with ClientIP affinity, and enforces source ranges", func() {
		dns.spec = "  sessionAffinity: ClientIP\n"
		for n := 1; n <= 3; n++ {
			dns.endpoints = append(dns.endpoints, startEcho(l.Pods, lab.Pod(n)))
		}
		limited := service{name: "limited", clusterIP: "10.96.0.11", port: 53, protocol: "UDP", portFields: ", nodePort: 30053", endpoints: dns.endpoints[:1],
			spec: "  type: LoadBalancer\n  loadBalancerSourceRanges: [192.0.2.0/24]\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}\n"}
		limited.write(dir)
		u := start("--trace")
		first, err := askWho(pod, "", dns.vip())
		Expect(err).NotTo(HaveOccurred())
		for range 10 {
			Expect(askWho(pod, "", dns.vip())).To(Equal(first))
		}
		Expect(askWho(pod, lab.Pod(50).String(), dns.vip())).NotTo(Equal(first))
		dns.endpoints = slices.DeleteFunc(slices.Clone(dns.endpoints), func(e netip.AddrPort) bool { return e == first })
		dns.write(dir)
		Eventually(func() (netip.AddrPort, error) { return askWho(pod, "", dns.vip()) }).ShouldNot(Equal(first))

		By("enforcing source ranges")
		Expect(askWho(outside, "", "203.0.113.10:53")).To(Equal(limited.endpoints[0]))
		c, err := pod.DialUDP("", "203.0.113.10:53")
		Expect(err).NotTo(HaveOccurred())
		Expect(exchange(c, []byte(who), 300*time.Millisecond)).Error().To(MatchError(os.ErrDeadlineExceeded))
		if portal == "address" { // with other portals the kernel checks sources
			Eventually(u.Out).Should(gbytes.Say("closed after .*: source-denied"))
		}
	})

	It("ends idle sessions after the timeout of the flag or the Service's annotation", func() {
		echo := startEcho(l.Pods, lab.Pod(1))
		dns.endpoints = []netip.AddrPort{echo}
		slow := dns
		slow.name, slow.clusterIP, slow.metadata = "slow", "10.96.0.11", `, annotations: {usher.io/udp-idle-timeout: "1h"}`
		slow.write(dir)
		u := start("--udp-idle-timeout=10s", "--trace")
		Expect(askWho(pod, "", dns.vip())).To(Equal(echo))
		Expect(askWho(pod, "", slow.vip())).To(Equal(echo))
		Expect(metric(node, "usher_udp_sessions_open")).To(BeEquivalentTo(2))
		Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`default/dns:main closed after [1-9]\d[\d.]* s: idle, 12 bytes to 10.244.0.11:5300, 16 bytes to the client`))
		Eventually(sample(node, "usher_udp_sessions_open")).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
	})

	It("ends the longest-idle sessions when the limit is reached", func() {
		dns.endpoints = []netip.AddrPort{startEcho(l.Pods, lab.Pod(1))}
		u := start("--max-udp-sessions=40", "--trace")
		var clients []*net.UDPConn
		for range 60 {
			c, err := pod.DialUDP("", dns.vip())
			Expect(err).NotTo(HaveOccurred())
			clients = append(clients, c)
			Expect(exchange(c, []byte(who), 10*time.Second)).Error().NotTo(HaveOccurred())
		}
		Eventually(sample(node, "usher_udp_sessions_open")).WithTimeout(30 * time.Second).Should(BeNumerically("<=", 20))
		Eventually(sample(node, `usher_udp_sessions_ended_total{end="limit"}`)).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 40))
		Eventually(u.Out).WithTimeout(30 * time.Second).Should(gbytes.Say(`closed after .*: limit, .*had been idle longest`))
		for _, c := range clients { // clients whose sessions were closed start new ones
			Expect(exchange(c, []byte(who), 10*time.Second)).Error().NotTo(HaveOccurred())
		}
	})

	It("ends only the sessions of the client that opens too many", func() {
		at := netip.AddrPortFrom(lab.Pod(1), 5300)
		dns.endpoints = []netip.AddrPort{at}
		// The server answers with usher's source port: each session has one.
		lab.ServeUDP(l.Pods.ListenUDP(at.String()), func(_ []byte, from netip.AddrPort) []byte { return []byte(from.String()) })
		start("--max-udp-sessions=80")
		var quiet []*net.UDPConn
		var before []string
		sessions := func() (ports []string) {
			GinkgoHelper()
			for _, c := range quiet {
				port, err := exchange(c, []byte("?"), 5*time.Second)
				Expect(err).NotTo(HaveOccurred())
				ports = append(ports, string(port))
			}
			return ports
		}
		for range 4 {
			c, err := node.DialUDP("", dns.vip())
			Expect(err).NotTo(HaveOccurred())
			quiet = append(quiet, c)
		}
		before = sessions()
		for range 300 {
			Expect(askWho(pod, "", dns.vip())).Error().NotTo(HaveOccurred())
		}
		Eventually(sample(node, `usher_udp_sessions_ended_total{end="limit"}`)).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 200))
		Expect(sessions()).To(Equal(before), "each quiet client still has its session")
	})

	It("answers each query to a real DNS server, at the latest at the first retry, while endpoints change and one is dead", func() {
		missing("dnsmasq")
		missing("dig")
		for n := 1; n <= 4; n++ {
			dns.endpoints = append(dns.endpoints, startDNS(l.Pods, lab.Pod(n)))
		}
		all := dns.endpoints
		dns.endpoints = []netip.AddrPort{all[0], all[1], dead(60)}
		u := start()
		var out []byte
		l.Pods.Do(func() (err error) {
			out, err = exec.Command("dig", "+short", "+tries=3", "@"+clusterIP, "web.example.test").CombinedOutput()
			return err
		})
		Expect(string(out)).To(Equal("192.0.2.80\n"))

		rolling, vip := dns, dns.vip()
		stop := make(chan struct{})
		var roll sync.WaitGroup
		roll.Go(func() {
			defer GinkgoRecover()
			ticker := time.NewTicker(time.Second)
			defer ticker.Stop()
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				case <-ticker.C:
				}
				rolling.endpoints = []netip.AddrPort{all[i%4], all[(i+1)%4], dead(60)}
				rolling.write(u.manifests)
			}
		})
		var unanswered, retried atomic.Int64
		var slowest atomic.Int64
		var wg sync.WaitGroup
		const clients, each = 4, 1000
		for range clients {
			wg.Go(func() {
				defer GinkgoRecover()
				for i := range each {
					began := time.Now()
					if err := query(pod, vip, i%10 == 0, &retried); err != nil {
						unanswered.Add(1)
						AddReportEntry("unanswered", err.Error())
					}
					slowest.Store(max(slowest.Load(), int64(time.Since(began))))
					time.Sleep(5 * time.Millisecond) // the endpoints change several times meanwhile
				}
			})
		}
		wg.Wait()
		close(stop)
		roll.Wait()
		AddReportEntry("slowest answer", time.Duration(slowest.Load()).String())
		AddReportEntry("retried", retried.Load())
		Expect(unanswered.Load()).To(BeZero(), "of %d", clients*each)
		Expect(retried.Load()).To(BeNumerically("<=", clients*each/500), "of %d", clients*each)
	})
}

// expectEverySize exchanges datagrams from empty to the largest.
func expectEverySize(d *lab.Dialer, vip string) {
	GinkgoHelper()
	for _, size := range []int{0, 1, 2, 63, 64, 511, 512, 1231, 1472, 1473, 4096, 4097, 9000, 32768, 65506, 65507} {
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(rand.Uint32())
		}
		var got []byte
		for try := 1; ; try++ { // a busy machine may lose 1 of 45 fragments
			c, err := d.DialUDP("", vip)
			Expect(err).NotTo(HaveOccurred())
			got, err = exchange(c, sent, 2*time.Second)
			c.Close()
			if err == nil {
				break
			}
			Expect(try).To(BeNumerically("<", 4), "%d bytes: %s", size, err)
		}
		Expect(bytes.Equal(got, sent)).To(BeTrue(), "%d bytes sent, %d came back", size, len(got))
	}
}

// asking holds the results of a client that keeps asking.
type asking struct {
	last                 atomic.Value
	answered, unanswered atomic.Int64
}

func (a *asking) latest() string {
	s, _ := a.last.Load().(string)
	return s
}

// keepAsking sends who over c every 10 ms until stop is called.
func keepAsking(c *net.UDPConn, patience time.Duration) (a *asking, stop func()) {
	a = new(asking)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			answer, err := exchange(c, []byte(who), patience)
			if err != nil {
				a.unanswered.Add(1)
				continue
			}
			a.answered.Add(1)
			a.last.Store(string(answer))
		}
	})
	return a, sync.OnceFunc(func() { close(done); wg.Wait() })
}

var listensOn = regexp.MustCompile(`default/(\w+) .* (\S+:\d+) +\S+`)

// listenerOf returns the address on which usher listens for a Service, from usher's table.
func listenerOf(u *usher, name string) (at string) {
	GinkgoHelper()
	Eventually(func() string {
		for _, m := range listensOn.FindAllStringSubmatch(string(u.Out.Contents()), -1) {
			if m[1] == name {
				at = m[2]
			}
		}
		return at
	}).ShouldNot(BeEmpty(), "the table that usher prints when it serves lists the Service")
	return at
}

// metric returns the value of a metric that usher serves on the node's loopback address.
func metric(node *lab.Dialer, name string) float64 {
	GinkgoHelper()
	for line := range strings.Lines(adminText(node, "/metrics")) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			Expect(err).NotTo(HaveOccurred())
			return number
		}
	}
	return 0
}

// sample returns metric for Eventually: usher counts some events after they have become visible.
func sample(node *lab.Dialer, name string) func() float64 {
	return func() float64 { return metric(node, name) }
}

// adminText returns usher's response at its admin address.
func adminText(node *lab.Dialer, path string) string {
	GinkgoHelper()
	res, err := node.Client().Get("http://127.0.0.1:10249" + path)
	Expect(err).NotTo(HaveOccurred())
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// startDNS starts dnsmasq on port 53 of an address.
func startDNS(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--log-facility=-",
		"--pid-file="+filepath.Join(GinkgoT().TempDir(), "pid"), "--bind-interfaces", "--except-interface=lo", "--listen-address="+addr.String(),
		"--port=5300", "--cache-size=1000", "--address=/example.test/192.0.2.80")
	session := launchServer(ns, cmd)
	Eventually(session.Err).WithTimeout(time.Minute).Should(gbytes.Say("started"))
	return netip.AddrPortFrom(addr, 5300)
}

// launchServer starts a server that ends with the test.
func launchServer(ns *lab.Namespace, cmd *exec.Cmd) *gexec.Session {
	GinkgoHelper()
	var session *gexec.Session
	ns.Do(func() (err error) {
		session, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
		return err
	})
	DeferCleanup(func() { session.Kill().Wait(30 * time.Second) })
	return session
}

// query asks the DNS server behind vip for an address, as a resolver that retries once. It increases retried if it has to
// retry: a reply that the removed endpoint sends late, on a busy machine, is lost.
func query(d *lab.Dialer, vip string, random bool, retried *atomic.Int64) error {
	c, err := d.DialUDP("", vip)
	if err != nil {
		return err
	}
	defer c.Close()
	name := "web"
	if random {
		name = fmt.Sprintf("w%d", rand.IntN(1000))
	}
	id := byte(rand.Uint32())
	question := []byte{id, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, byte(len(name))}
	question = append(question, name...)
	question = append(question, "\x07example\x04test\x00\x00\x01\x00\x01"...)
	answer, err := exchange(c, question, 10*time.Second)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		retried.Add(1)
		answer, err = exchange(c, question, 10*time.Second)
	}
	if err != nil {
		return err
	}
	if len(answer) < 12 || answer[0] != id || !bytes.HasSuffix(answer, []byte{192, 0, 2, 80}) {
		return fmt.Errorf("%q is not the answer", answer)
	}
	return nil
}
