//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ishidawataru/sctp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// redirectChecks are the checks of a portal that redirects; for all see sctpChecks.
func redirectChecks(portal string, all bool) []Check {
	const past = "a client that bypasses the portal is aborted"
	return slices.Concat(sctpChecks(ipv4, portal, all), sctpChecks(ipv6, portal, false), []Check{
		sctpCheck(ipv4, portal, past, directConnection),
		sctpCheck(ipv6, portal, past, directConnection),
	})
}

// Parts of usher that an SCTP check depends on.
const (
	byNothing = iota // associations after a portal has redirected them to usher
	byPortal         // routes and rules
	byFamily         // and addresses
)

// sctpChecks are valid for every portal. By default they are those that depend on the portal, and over IPv6 those that
// depend on the family. With all they are complete.
func sctpChecks(ip family, portal string, all bool) (checks []Check) {
	least := byPortal
	if ip.name == ipv6.name {
		least = byFamily
	}
	for _, c := range []struct {
		name string
		by   int
		body func(n *node, start func(...string))
	}{
		{"clients on the node, in Pods and outside are served from any of their addresses", byFamily, everywhere},
		{"1,000 messages on 8 streams keep boundary, stream, identifier and order flag", byNothing, echo},
		{"messages larger than a read arrive whole, and one above the limit ends the association", byNothing, largeMessages},
		{"a refusing and an unresponsive endpoint fail no association", byPortal, retry},
		{"the client is aborted after all attempts failed, and refused without endpoints", byFamily, noEndpoint},
		{"a client with ClientIP affinity keeps its endpoint", byNothing, stickiness},
		{"open associations continue after their endpoint is removed", byNothing, removal},
		{"open associations continue after their Service is removed", byPortal, serviceRemoval},
		{"a shutdown is forwarded in both directions, after all earlier messages", byNothing, shutdowns},
		{"an abort is forwarded in both directions", byNothing, aborts},
		{"a side that does not read blocks the other, and no message is lost", byNothing, backPressure},
		{"clients with several addresses keep their association", byFamily, multiHomed},
		{"a successor takes over the listener, and no association fails", byPortal, successor},
		{"usher drains associations when it stops, and aborts those that exceed the timeout", byNothing, draining},
	} {
		if all || c.by >= least {
			checks = append(checks, sctpCheck(ip, portal, c.name, c.body))
		}
	}
	return checks
}

// sctpCheck returns a check with a dedicated node; start starts usher on it.
func sctpCheck(ip family, portal, name string, body func(n *node, start func(flags ...string))) Check {
	return Check{fmt.Sprintf("SCTP over %s through the %s portal: %s", ip.name, portal, name), func() {
		n := newNode(ip)
		body(n, func(flags ...string) { n.start(append(flags, "--portal="+portal)...) })
	}}
}

// oneEndpoint starts usher with a Service that has one endpoint.
func (n *node) oneEndpoint(start func(...string), silent bool, flags ...string) (*endpoint, service) {
	GinkgoHelper()
	e := startEndpoint(n.Pods, n.ip.pod(1), silent)
	s := n.diameter(e.addr)
	n.put(s)
	start(flags...)
	return e, s
}

// anyAddr makes a client use all its addresses.
var anyAddr netip.Addr

// everywhere includes the addresses that the kernel's SCTP separates by scope: loopback, link-local, private and global
// ones. (An IPv6 link-local address is valid on one interface only, and a portal has no IPv6 loopback address.)
func everywhere(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, n.ip.pod(1), false)
	s := n.diameter(e.addr)
	s.spec = "  type: NodePort\n"
	s.nodePort = 30868
	n.put(s)
	n.Node.Output("ip", "addr", "add", linkLocal.String()+"/32", "dev", "lo")
	start()
	private, global := n.ip.toPods, n.ip.toOutside
	nodePort := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, s.nodePort) }
	type client struct {
		in   *lab.Namespace
		from netip.Addr
		to   netip.AddrPort
	}
	clients := []client{
		{n.Pods, anyAddr, s.vip}, {n.Pods, n.ip.podClient, s.vip}, {n.Pods, n.ip.podClient, nodePort(private)}, {n.Pods, n.ip.podClient, nodePort(global)},
		{n.Outside, anyAddr, s.vip}, {n.Outside, anyAddr, nodePort(private)}, {n.Outside, anyAddr, nodePort(global)},
		{n.Node, anyAddr, s.vip}, {n.Node, private, s.vip}, {n.Node, global, s.vip},
		{n.Node, anyAddr, nodePort(private)}, {n.Node, anyAddr, nodePort(global)},
	}
	if n.ip.podClient.Is4() {
		clients = append(clients, client{n.Node, anyAddr, nodePort(loopback)}, client{n.Node, loopback, nodePort(loopback)}, client{n.Node, anyAddr, nodePort(linkLocal)})
	}
	for _, client := range clients {
		p, name, err := ask(client.in, client.from, client.to)
		Expect(err).NotTo(HaveOccurred(), "in %s, from %s to %s", client.in.Name, client.from, client.to)
		Expect(name).To(Equal(e.addr))
		echoes(p)
		p.close()
	}
}

// successor tests a takeover: both processes accept until the new one has taken over.
func successor(n *node, start func(...string)) {
	_, s := n.oneEndpoint(start, false)
	first := n.usher
	open := associate(n.Pods, n.ip.podClient, s.vip)
	var failure error
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // both processes need the emulated CPU, too
			}
			p, _, err := ask(n.Pods, n.ip.podClient, s.vip)
			if err == nil {
				p.close()
			} else if failure == nil {
				failure = err
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
	defer end() // before the namespaces are removed, also if a check fails
	start("--take-over")
	Eventually(first.Err).WithTimeout(eventually).Should(gbytes.Say("has taken over"))
	echoes(open)
	open.close()
	Eventually(first).WithTimeout(eventually).Should(gexec.Exit(0))
	end()
	Expect(failure).NotTo(HaveOccurred())
}

var (
	linkLocal = netip.MustParseAddr("169.254.20.10")
	loopback  = netip.MustParseAddr("127.0.0.1")
)

func echo(n *node, start func(...string)) {
	e, s := n.oneEndpoint(start, false)
	p := associate(n.Pods, n.ip.podClient, s.vip)
	defer p.close()
	Expect(p.status.Ostreams).To(BeEquivalentTo(8))
	Expect(e.associations()[0].status.Instreams).To(BeEquivalentTo(8), "the endpoint gets as many streams as usher")
	Expect(e.associations()[0].status.Ostreams).To(BeEquivalentTo(8), "the endpoint can use as many streams as the client accepts")

	const count = 1000
	rnd := rand.New(rand.NewPCG(1, 2))
	sent := make([]message, count)
	for i := range sent {
		size := 1 + rnd.IntN(2000)
		if i%10 == 0 {
			size = 1 + rnd.IntN(64<<10)
		}
		if i == 500 {
			size = 64 << 10
		}
		// The identifier is also the message's number.
		sent[i] = message{stream: uint16(rnd.IntN(8)), ppid: uint32(i)<<8 | 0x80000001, unordered: rnd.IntN(3) == 0, data: strings.Repeat(string(rune('a'+i%26)), size)}
	}
	sent[0].data = "x"
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer GinkgoRecover()
		for _, m := range sent {
			Expect(p.send(m)).To(Succeed())
		}
	})
	came := map[int]bool{}
	last := map[uint16]int{} // the newest ordered message of each stream
	for range count {
		m, err := p.receive()
		Expect(err).NotTo(HaveOccurred())
		i := int(m.ppid&0x7fffffff) >> 8
		Expect(i).To(BeNumerically("<", count))
		Expect(m == sent[i]).To(BeTrue(), "message %d, stream %d, %d bytes, unordered %t, is not what was sent", i, m.stream, len(m.data), m.unordered)
		Expect(came[i]).To(BeFalse(), "message %d came twice", i)
		came[i] = true
		if !m.unordered {
			Expect(i).To(BeNumerically(">=", last[m.stream]), "order within stream %d", m.stream)
			last[m.stream] = i
		}
	}
	Expect(p.shutdown()).To(Succeed())
	Expect(p.receive()).Error().To(ended)
	n.said("closed after .*: client-closed")
}

func largeMessages(n *node, start func(...string)) {
	e, s := n.oneEndpoint(start, false)
	p := associate(n.Pods, n.ip.podClient, s.vip)
	for _, side := range []*peer{p, e.associations()[0]} {
		Expect(unix.SetsockoptInt(side.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2<<20)).To(Succeed())
	}
	for _, size := range []int{1, 65536, 65537, 200_000, 1 << 20} {
		m := message{stream: 1, ppid: uint32(size), data: string(bytes.Repeat([]byte{byte(size)}, size))}
		Expect(p.send(m)).To(Succeed())
		got, err := p.receive()
		Expect(err).NotTo(HaveOccurred(), "%d bytes", size)
		Expect(got == m).To(BeTrue(), "%d bytes came back as %d", size, len(got.data))
	}
	Expect(p.send(message{data: strings.Repeat("l", 1<<20+1)})).To(Succeed())
	Expect(p.receive()).Error().To(MatchError(syscall.ECONNRESET))
	n.said("closed after .*: limit.*larger than usher's maximum")
}

func retry(n *node, start func(...string)) {
	good := startEndpoint(n.Pods, n.ip.pod(1), false)
	s := n.diameter(netip.AddrPortFrom(n.ip.pod(2), 3868), netip.AddrPortFrom(n.ip.blackHole, 3868), good.addr)
	n.put(s)
	start("--quarantine=10m", "--quarantine-max=10m") // longer than this check takes
	for range 20 {
		p, name, err := ask(n.Pods, n.ip.podClient, s.vip)
		Expect(err).NotTo(HaveOccurred())
		Expect(name).To(Equal(good.addr))
		p.close()
	}
	said := string(n.usher.Out.Contents())
	Expect(said).To(ContainSubstring("connection refused after"))
	Expect(said).To(ContainSubstring("no answer after"))
	Expect(strings.Count(said, "connection refused after")).To(Equal(1), "then it is in quarantine")
	Expect(strings.Count(said, "no answer after")).To(Equal(1), "then it is in quarantine")
}

func noEndpoint(n *node, start func(...string)) {
	s := n.diameter(netip.AddrPortFrom(n.ip.pod(2), 3868))
	n.put(s)
	start("--dial-timeouts=50ms,50ms")
	p, err := dial(n.Pods, n.ip.podClient, s.vip, 1)
	if err == nil { // the association is established before usher accepts it
		_, err = p.receive()
		p.close()
	}
	// The error is "refused" if the abort arrives before connect(2) has checked.
	Expect(err).To(Or(MatchError(syscall.ECONNRESET), MatchError(syscall.ECONNREFUSED)))
	n.said("closed after .*: attempts-failed")

	s.endpoints = nil
	n.put(s)
	Eventually(func() error {
		p, err := dial(n.Pods, n.ip.podClient, s.vip, 1)
		if err == nil {
			p.abort()
		}
		return err
	}).WithTimeout(eventually).Should(MatchError(syscall.ECONNREFUSED))
}

func stickiness(n *node, start func(...string)) {
	s := n.diameter()
	for i := range 3 {
		s.endpoints = append(s.endpoints, startEndpoint(n.Pods, n.ip.pod(i+1), false).addr)
	}
	s.spec = "  sessionAffinity: ClientIP\n"
	n.put(s)
	start()
	first := map[netip.Addr]netip.AddrPort{}
	for range 5 {
		for _, client := range []netip.Addr{n.ip.pod(20), n.ip.pod(21), n.ip.pod(22)} {
			p, name, err := ask(n.Pods, client, s.vip)
			Expect(err).NotTo(HaveOccurred())
			p.close()
			if !first[client].IsValid() {
				first[client] = name
			}
			Expect(name).To(Equal(first[client]))
		}
	}
	Expect(first).To(ContainElements(s.endpoints), "each client has a different endpoint")
}

func removal(n *node, start func(...string)) {
	one, two := startEndpoint(n.Pods, n.ip.pod(1), false), startEndpoint(n.Pods, n.ip.pod(2), false)
	s := n.diameter(one.addr)
	n.put(s)
	start()
	p := associate(n.Pods, n.ip.podClient, s.vip)
	defer p.close()

	By("replacing the endpoint")
	s.endpoints = []netip.AddrPort{two.addr}
	n.put(s)
	Eventually(func() netip.AddrPort {
		q, name, err := ask(n.Pods, n.ip.podClient, s.vip)
		if err == nil {
			q.close()
		}
		return name
	}).WithTimeout(eventually).Should(Equal(two.addr))
	echoes(p)
}

func serviceRemoval(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, n.ip.pod(1), false)
	s := n.diameter(e.addr)
	n.put(s)
	// Without any NAT rule, the kernel stops tracking connections.
	n.put(service{name: "other", vip: netip.AddrPortFrom(n.ip.vip.Next(), 80), protocol: "TCP"})
	start("--portal-check-interval=200ms")
	var open []*peer
	for _, client := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		p := associate(client, anyAddr, s.vip)
		defer p.close()
		open = append(open, p)
	}
	n.remove(s)
	Eventually(func() error {
		q, _, err := ask(n.Pods, n.ip.podClient, s.vip)
		if err == nil {
			q.close()
		}
		return err
	}).WithTimeout(eventually).Should(HaveOccurred())
	for _, p := range open {
		echoes(p)
	}
	By("shutting them down")
	for _, p := range open {
		Expect(p.shutdown()).To(Succeed())
		Expect(p.receive()).Error().To(ended)
	}
	Eventually(func() string {
		return n.Node.Output("ip", n.ip.option, "route", "show", "table", "local", "proto", "117")
	}).WithTimeout(eventually).ShouldNot(ContainSubstring(s.vip.Addr().String()))
}

// pair creates an association through usher to an endpoint that leaves its side to the check.
func pair(n *node, s service, e *endpoint) (client, server *peer) {
	GinkgoHelper()
	client, err := dial(n.Pods, n.ip.podClient, s.vip, 8)
	Expect(err).NotTo(HaveOccurred())
	Eventually(e.arrived).WithTimeout(patience).Should(Receive(&server))
	return client, server
}

func shutdowns(n *node, start func(...string)) {
	e, s := n.oneEndpoint(start, true)
	for _, direction := range []struct {
		end   string
		sides func() (from, to *peer)
	}{
		{"client-closed", func() (*peer, *peer) { return pair(n, s, e) }},
		{"endpoint-closed", func() (*peer, *peer) { client, server := pair(n, s, e); return server, client }},
	} {
		from, to := direction.sides()
		const count = 50
		var wg sync.WaitGroup
		wg.Go(func() {
			defer GinkgoRecover()
			for i := range count {
				Expect(from.send(message{stream: uint16(i % 8), ppid: uint32(i), data: strings.Repeat("z", 20_000)})).To(Succeed())
			}
			Expect(from.shutdown()).To(Succeed())
		})
		for range count {
			m, err := to.receive()
			Expect(err).NotTo(HaveOccurred(), direction.end)
			Expect(m.data).To(HaveLen(20_000))
		}
		Expect(to.receive()).Error().To(MatchError(io.EOF))
		wg.Wait()
		to.close()
		Expect(from.receive()).Error().To(ended)
		from.close()
		n.said("closed after .*: " + direction.end)
	}
}

func aborts(n *node, start func(...string)) {
	e, s := n.oneEndpoint(start, true)
	client, server := pair(n, s, e)
	client.abort()
	Expect(server.receive()).Error().To(MatchError(syscall.ECONNRESET))
	server.close()
	n.said("closed after .*: client-reset")

	client, server = pair(n, s, e)
	Expect(client.send(message{data: "hello"})).To(Succeed())
	Expect(server.receive()).To(Equal(message{data: "hello"}))
	server.abort()
	Expect(client.receive()).Error().To(MatchError(syscall.ECONNRESET))
	client.close()
	n.said("closed after .*: endpoint-reset")
}

func backPressure(n *node, start func(...string)) {
	e, s := n.oneEndpoint(start, true)
	client, server := pair(n, s, e)
	const size = 10_000
	var mu sync.Mutex
	sent, stop := 0, false
	var wg sync.WaitGroup
	wg.Go(func() {
		defer GinkgoRecover()
		for {
			mu.Lock()
			done := stop
			mu.Unlock()
			if done {
				break
			}
			Expect(client.send(message{ppid: uint32(sent), data: strings.Repeat("p", size)})).To(Succeed())
			mu.Lock()
			sent++
			mu.Unlock()
		}
		Expect(client.shutdown()).To(Succeed())
	})
	count := func() int { mu.Lock(); defer mu.Unlock(); return sent }
	// Wait until the sender has been blocked for a while.
	for before := -1; before != count(); {
		before = count()
		time.Sleep(time.Second)
	}
	Expect(count()*size).To(BeNumerically("<", 4<<20), "bytes in transit, in the kernels' buffers and usher")
	mu.Lock()
	stop = true
	mu.Unlock()
	received := 0
	for {
		m, err := server.receive()
		if err == io.EOF {
			break
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(m.ppid).To(BeEquivalentTo(received))
		received++
	}
	wg.Wait()
	Expect(received).To(Equal(count()))
}

// multiHomed waits for longer than the kernel takes to probe further addresses of a peer: half a second to one and a
// half times the initial RTO of 3 s.
func multiHomed(n *node, start func(...string)) {
	_, s := n.oneEndpoint(start, false)
	var open []*peer
	for _, client := range []*lab.Namespace{n.Pods, n.Node} {
		p := associate(client, anyAddr, s.vip)
		defer p.close()
		open = append(open, p)
	}
	for range 7 {
		time.Sleep(time.Second)
		for _, p := range open {
			echoes(p)
		}
	}
}

func draining(n *node, start func(...string)) {
	_, s := n.oneEndpoint(start, false, "--drain-timeout=5m")
	ends := associate(n.Pods, n.ip.podClient, s.vip)
	stays := associate(n.Pods, n.ip.podClient, s.vip)
	n.usher.Terminate()
	Eventually(n.usher.Err).WithTimeout(patience).Should(gbytes.Say("Stopping"))
	Eventually(func() error { _, err := dial(n.Pods, n.ip.podClient, s.vip, 1); return err }).WithTimeout(eventually).Should(MatchError(syscall.ECONNREFUSED))
	echoes(ends)
	Expect(ends.shutdown()).To(Succeed())
	Expect(ends.receive()).Error().To(ended)
	n.usher.Terminate()
	Expect(stays.receive()).Error().To(MatchError(syscall.ECONNRESET))
	Eventually(n.usher.Err).WithTimeout(patience).Should(gbytes.Say("reset the connections that were still open"))
}

// listensAt returns the address on which usher listens for the only Service, given the IP address as a pattern.
func (n *node) listensAt(addr string) netip.AddrPort {
	GinkgoHelper()
	at := regexp.MustCompile(addr + `:\d+`)
	Eventually(n.usher.Out.Contents).WithTimeout(patience).Should(MatchRegexp(at.String()))
	return netip.MustParseAddrPort(string(at.Find(n.usher.Out.Contents())))
}

func directConnection(n *node, start func(...string)) {
	e, s := n.oneEndpoint(start, false)
	direct := n.listensAt(regexp.QuoteMeta(strings.TrimSuffix(netip.AddrPortFrom(n.ip.landing, 0).String(), ":0")))
	for _, client := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		p, err := dial(client, anyAddr, direct, 1)
		if err == nil {
			_, err = p.receive()
		}
		// The error is "refused" if the abort arrives before connect(2) has checked.
		Expect(err).To(Or(MatchError(syscall.ECONNRESET), MatchError(syscall.ECONNREFUSED)))
		n.said("bypassed-portal")
		_, err = dial(client, anyAddr, netip.AddrPortFrom(n.ip.toPods, direct.Port()), 1)
		Expect(err).To(MatchError(syscall.ECONNREFUSED), "usher listens on no other node address")
	}
	Expect(e.associations()).To(BeEmpty())
	associate(n.Pods, n.ip.podClient, s.vip).close()
}

func laterAddress() {
	n := newNode(ipv4)
	e := startEndpoint(n.Pods, n.ip.pod(1), false)
	s := n.diameter(e.addr)
	s.spec, s.nodePort = "  type: NodePort\n", 30868
	n.put(s)
	n.Node.Output("ip", "addr", "del", lab.NodeOut4+"/24", "dev", "to-outside")
	n.start("--portal=address", "--portal-check-interval=200ms")
	n.Node.Output("ip", "addr", "add", lab.NodeOut4+"/24", "dev", "to-outside")
	Eventually(func() error {
		p, _, err := ask(n.Outside, anyAddr, netip.AddrPortFrom(n.ip.toOutside, s.nodePort))
		if err == nil {
			p.close()
		}
		return err
	}).WithTimeout(eventually).Should(Succeed())
}

func withoutPortal() {
	n := newNode(ipv4)
	e := startEndpoint(n.Pods, n.ip.pod(1), false)
	n.put(n.diameter(e.addr))
	n.start("--portal=none")
	p := associate(n.Node, anyAddr, n.listensAt(`127\.\d+\.\d+\.\d+`))
	echoes(p)
	p.close()
}

func manyAssociations(n *node, start func(...string)) {
	s := n.diameter()
	for i := range 3 {
		s.endpoints = append(s.endpoints, startEndpoint(n.Pods, n.ip.pod(i+1), false).addr)
	}
	n.put(s)
	start("--trace=false")
	const count = 500
	var open []*peer
	for range count {
		p, _, err := ask(n.Pods, n.ip.podClient, s.vip)
		Expect(err).NotTo(HaveOccurred(), "association %d", len(open))
		open = append(open, p)
	}
	idle := n.threads()
	for _, p := range open {
		echoes(p)
	}
	// All at once.
	m := message{stream: 1, data: strings.Repeat("m", 5000)}
	for _, p := range open {
		Expect(p.send(m)).To(Succeed())
	}
	busy := n.threads()
	for _, p := range open {
		Expect(p.receive()).To(Equal(m))
	}
	AddReportEntry("threads", fmt.Sprintf("%d associations: %d threads idle, %d busy", count, idle, busy))
	Expect(max(idle, busy)).To(BeNumerically("<", 100))
	for _, p := range open {
		p.close()
	}
}

// portRange occupies all ports of the range but one, in whatever order usher tries them.
func portRange(n *node, start func(...string)) {
	for _, port := range []uint16{20000, 20001, 20003} {
		n.Node.Do(func() error {
			l, err := sctp.ListenSCTP("sctp", address(netip.AddrPortFrom(n.ip.any, port)))
			if err == nil {
				DeferCleanup(l.Close)
			}
			return err
		})
	}
	e, d := n.oneEndpoint(start, false, "--proxy-port-range=20000-20003")
	n.said("default/diameter .* " + regexp.QuoteMeta(netip.AddrPortFrom(n.ip.landing, 20002).String()) + " ")
	p, name, err := ask(n.Pods, anyAddr, d.vip)
	Expect(err).NotTo(HaveOccurred())
	Expect(name).To(Equal(e.addr))
	p.close()
}
