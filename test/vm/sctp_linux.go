//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ishidawataru/sctp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// withNetfilter is what is checked where both portals work.
func withNetfilter() []Check {
	checks := append(sctpChecks("iptables"), sctpChecks("address")...)
	return append(checks,
		Check{"SCTP through the iptables portal: who connects to the listener past the portal is aborted", directConnection},
		Check{"SCTP through the address portal: serves node ports on an address that the node got later", laterAddress},
		Check{"SCTP through the iptables portal: serves IPv6", func() { ipv6("iptables") }},
		Check{"SCTP through the address portal: serves IPv6", func() { ipv6("address") }},
		Check{"SCTP through the iptables portal: listens on another port of --proxy-port-range where its own is taken", portRange},
		Check{"SCTP through no portal: listens on loopback", withoutPortal},
		Check{"SCTP: 500 associations at once need fewer than 100 threads", manyAssociations},
	)
}

// sctpChecks hold whichever portal leads to usher.
func sctpChecks(portal string) []Check {
	var checks []Check
	for _, c := range []struct {
		name string
		body func(n *node, start func(...string))
	}{
		{"clients on the node, in Pods and outside are served, whichever of their addresses they use", everywhere},
		{"1,000 messages on 8 streams keep boundary, stream, identifier and order flag", echo},
		{"messages larger than a read are carried whole, and one beyond the bound ends the association", largeMessages},
		{"an endpoint that refuses and one that is silent cost no association", retry},
		{"the client is aborted when every attempt failed, and refused where there is no endpoint", noEndpoint},
		{"a client with ClientIP affinity keeps its endpoint", stickiness},
		{"associations in flight outlive their endpoint's entry", removal},
		{"associations in flight outlive their Service", serviceRemoval},
		{"a shutdown is carried across in both ways, after what came before it", shutdowns},
		{"an abort is carried across in both ways", aborts},
		{"a side that does not read stops the other, and loses nothing", backPressure},
		{"clients with several addresses keep their association", multiHomed},
		{"associations may end when usher is stopped, and those that do not are aborted", draining},
	} {
		checks = append(checks, Check{fmt.Sprintf("SCTP through the %s portal: %s", portal, c.name), func() {
			n := newNode()
			c.body(n, func(flags ...string) { n.start(append(flags, "--portal="+portal)...) })
		}})
	}
	return checks
}

// anyAddr makes a client use every address that it has.
var anyAddr netip.Addr

// podClient is the address of a Pod that is a client.
var podClient = netip.MustParseAddr(lab.PodClient4)

// everywhere includes the addresses that the kernel's SCTP keeps apart by their
// scope: loopback, link-local, private and global ones.
func everywhere(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	s.spec = "  type: NodePort\n"
	s.nodePort = 30868
	n.put(s)
	n.Node.Output("ip", "addr", "add", "169.254.20.10/32", "dev", "lo")
	start()
	private, global := netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr(lab.NodeOut4)
	linkLocal, loopback := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("127.0.0.1")
	nodePort := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, s.nodePort) }
	for _, client := range []struct {
		in   *lab.Namespace
		from netip.Addr
		to   netip.AddrPort
	}{
		{n.Pods, anyAddr, s.vip}, {n.Pods, podClient, s.vip}, {n.Pods, podClient, nodePort(private)}, {n.Pods, podClient, nodePort(global)},
		{n.Outside, anyAddr, s.vip}, {n.Outside, anyAddr, nodePort(private)}, {n.Outside, anyAddr, nodePort(global)},
		{n.Node, anyAddr, s.vip}, {n.Node, private, s.vip}, {n.Node, global, s.vip},
		{n.Node, anyAddr, nodePort(loopback)}, {n.Node, loopback, nodePort(loopback)},
		{n.Node, anyAddr, nodePort(private)}, {n.Node, anyAddr, nodePort(global)}, {n.Node, anyAddr, nodePort(linkLocal)},
	} {
		p, name, err := ask(client.in, client.from, client.to)
		Expect(err).NotTo(HaveOccurred(), "in %s, from %s to %s", client.in.Name, client.from, client.to)
		Expect(name).To(Equal(e.addr))
		echoes(p)
		p.close()
	}
}

func echo(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	n.put(s)
	start()
	p, _, err := ask(n.Pods, podClient, s.vip)
	Expect(err).NotTo(HaveOccurred())
	defer p.close()
	Expect(p.status.Ostreams).To(BeEquivalentTo(8))
	Expect(e.associations()[0].status.Instreams).To(BeEquivalentTo(8), "the endpoint was asked for as many streams as usher was")
	Expect(e.associations()[0].status.Ostreams).To(BeEquivalentTo(8), "and may use as many as the client takes")

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
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	n.put(s)
	start()
	p, _, err := ask(n.Pods, podClient, s.vip)
	Expect(err).NotTo(HaveOccurred())
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
	n.said("closed after .*: client-reset.*larger than usher carries")
}

func retry(n *node, start func(...string)) {
	good := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(netip.AddrPortFrom(lab.Pod(2), 3868), netip.MustParseAddrPort(lab.BlackHole+":3868"), good.addr)
	n.put(s)
	start("--quarantine=1h") // longer than this takes
	for range 20 {
		p, name, err := ask(n.Pods, podClient, s.vip)
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
	s := diameter(netip.AddrPortFrom(lab.Pod(2), 3868))
	n.put(s)
	start("--dial-timeouts=50ms,50ms")
	p, err := dial(n.Pods, podClient, s.vip, 1)
	if err == nil { // the association is there before usher knows of it
		_, err = p.receive()
		p.close()
	}
	Expect(err).To(MatchError(syscall.ECONNRESET))
	n.said("closed after .*: attempts-failed")

	s.endpoints = nil
	n.put(s)
	Eventually(func() error {
		p, err := dial(n.Pods, podClient, s.vip, 1)
		if err == nil {
			p.abort()
		}
		return err
	}).WithTimeout(eventually).Should(MatchError(syscall.ECONNREFUSED))
}

func stickiness(n *node, start func(...string)) {
	s := diameter()
	for i := range 3 {
		s.endpoints = append(s.endpoints, startEndpoint(n.Pods, lab.Pod(i+1), false).addr)
	}
	s.spec = "  sessionAffinity: ClientIP\n"
	n.put(s)
	start()
	first := map[netip.Addr]netip.AddrPort{}
	for range 5 {
		for _, client := range []netip.Addr{lab.Pod(20), lab.Pod(21), lab.Pod(22)} {
			p, name, err := ask(n.Pods, client, s.vip)
			Expect(err).NotTo(HaveOccurred())
			p.close()
			if !first[client].IsValid() {
				first[client] = name
			}
			Expect(name).To(Equal(first[client]))
		}
	}
	Expect(first).To(ContainElements(s.endpoints), "each client has another one")
}

func removal(n *node, start func(...string)) {
	one, two := startEndpoint(n.Pods, lab.Pod(1), false), startEndpoint(n.Pods, lab.Pod(2), false)
	s := diameter(one.addr)
	n.put(s)
	start()
	p, _, err := ask(n.Pods, podClient, s.vip)
	Expect(err).NotTo(HaveOccurred())
	defer p.close()

	By("replacing the endpoint")
	s.endpoints = []netip.AddrPort{two.addr}
	n.put(s)
	Eventually(func() netip.AddrPort {
		q, name, err := ask(n.Pods, podClient, s.vip)
		if err == nil {
			q.close()
		}
		return name
	}).WithTimeout(eventually).Should(Equal(two.addr))
	echoes(p)
}

func serviceRemoval(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	n.put(s)
	// Without any rule that translates, the kernel ceases to track connections.
	n.put(service{name: "other", vip: netip.MustParseAddrPort("10.96.0.33:80"), protocol: "TCP"})
	start("--portal-check-interval=200ms")
	var open []*peer
	for _, client := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		p, _, err := ask(client, anyAddr, s.vip)
		Expect(err).NotTo(HaveOccurred())
		defer p.close()
		open = append(open, p)
	}
	n.remove(s)
	Eventually(func() error {
		q, _, err := ask(n.Pods, podClient, s.vip)
		if err == nil {
			q.close()
		}
		return err
	}).WithTimeout(eventually).Should(HaveOccurred())
	for _, p := range open {
		echoes(p)
	}
	By("ending them")
	for _, p := range open {
		Expect(p.shutdown()).To(Succeed())
		Expect(p.receive()).Error().To(ended)
	}
	Eventually(func() string {
		return n.Node.Output("ip", "route", "show", "table", "local", "proto", "117")
	}).WithTimeout(eventually).ShouldNot(ContainSubstring(s.vip.Addr().String()))
}

// pair makes an association through usher to an endpoint that leaves its side to
// the check.
func pair(n *node, s service, e *endpoint) (client, server *peer) {
	GinkgoHelper()
	client, err := dial(n.Pods, podClient, s.vip, 8)
	Expect(err).NotTo(HaveOccurred())
	Eventually(e.arrived).WithTimeout(patience).Should(Receive(&server))
	return client, server
}

func shutdowns(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, lab.Pod(1), true)
	s := diameter(e.addr)
	n.put(s)
	start()
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
	e := startEndpoint(n.Pods, lab.Pod(1), true)
	s := diameter(e.addr)
	n.put(s)
	start()
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
	e := startEndpoint(n.Pods, lab.Pod(1), true)
	s := diameter(e.addr)
	n.put(s)
	start()
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
	// Until the sender has stood still for a while.
	for before := -1; before != count(); {
		before = count()
		time.Sleep(time.Second)
	}
	Expect(count()*size).To(BeNumerically("<", 4<<20), "bytes that are under way, in three kernels' buffers and usher")
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

// multiHomed outlasts the time after which the kernel probes further addresses
// of a peer: half a second to one and a half times the initial RTO of 3 s.
func multiHomed(n *node, start func(...string)) {
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	n.put(s)
	start()
	var open []*peer
	for _, client := range []*lab.Namespace{n.Pods, n.Node} {
		p, _, err := ask(client, anyAddr, s.vip)
		Expect(err).NotTo(HaveOccurred())
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
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	n.put(s)
	start("--drain-timeout=3s")
	ends, _, err := ask(n.Pods, podClient, s.vip)
	Expect(err).NotTo(HaveOccurred())
	stays, _, err := ask(n.Pods, podClient, s.vip)
	Expect(err).NotTo(HaveOccurred())
	n.usher.Terminate()
	Eventually(n.usher.Err).WithTimeout(patience).Should(gbytes.Say("Stopping"))
	Eventually(func() error { _, err := dial(n.Pods, podClient, s.vip, 1); return err }).WithTimeout(eventually).Should(MatchError(syscall.ECONNREFUSED))
	echoes(ends)
	Expect(ends.shutdown()).To(Succeed())
	Expect(ends.receive()).Error().To(ended)
	Expect(stays.receive()).Error().To(MatchError(syscall.ECONNRESET))
	Eventually(n.usher.Err).WithTimeout(patience).Should(gbytes.Say("had not ended were reset"))
}

// listensAt returns where usher listens for the only Service, at which the
// address matches addr.
func (n *node) listensAt(addr string) netip.AddrPort {
	GinkgoHelper()
	at := regexp.MustCompile(addr + `:\d+`)
	Eventually(n.usher.Out.Contents).WithTimeout(patience).Should(MatchRegexp(at.String()))
	return netip.MustParseAddrPort(string(at.Find(n.usher.Out.Contents())))
}

// landing is where package portal leads packets.
const landing = "192.0.0.117"

func directConnection() {
	n := newNode()
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	n.put(s)
	n.start("--portal=iptables")
	direct := n.listensAt(regexp.QuoteMeta(landing))
	for _, client := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		p, err := dial(client, anyAddr, direct, 1)
		if err == nil {
			_, err = p.receive()
		}
		// It is "refused" if the abort comes before connect(2) has looked.
		Expect(err).To(Or(MatchError(syscall.ECONNRESET), MatchError(syscall.ECONNREFUSED)))
		n.said("not-through-portal")
		_, err = dial(client, anyAddr, netip.AddrPortFrom(netip.MustParseAddr("10.244.0.1"), direct.Port()), 1)
		Expect(err).To(MatchError(syscall.ECONNREFUSED), "no other address of the node is listened on")
	}
	Expect(e.associations()).To(BeEmpty())
	p, _, err := ask(n.Pods, podClient, s.vip)
	Expect(err).NotTo(HaveOccurred())
	p.close()
}

func laterAddress() {
	n := newNode()
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	s := diameter(e.addr)
	s.spec, s.nodePort = "  type: NodePort\n", 30868
	n.put(s)
	n.Node.Output("ip", "addr", "del", lab.NodeOut4+"/24", "dev", "to-outside")
	n.start("--portal=address", "--portal-check-interval=200ms")
	n.Node.Output("ip", "addr", "add", lab.NodeOut4+"/24", "dev", "to-outside")
	Eventually(func() error {
		p, _, err := ask(n.Outside, anyAddr, netip.AddrPortFrom(netip.MustParseAddr(lab.NodeOut4), s.nodePort))
		if err == nil {
			p.close()
		}
		return err
	}).WithTimeout(eventually).Should(Succeed())
}

func ipv6(portal string) {
	n := newNode()
	e := startEndpoint(n.Pods, lab.Pod6(1), false)
	s := diameter(e.addr)
	s.vip = netip.MustParseAddrPort("[fd00:10:96::10]:3868")
	n.put(s)
	n.start("--portal=" + portal)
	for _, from := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		p, name, err := ask(from, anyAddr, s.vip)
		Expect(err).NotTo(HaveOccurred())
		Expect(name).To(Equal(e.addr))
		echoes(p)
		p.close()
	}
}

func withoutPortal() {
	n := newNode()
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	n.put(diameter(e.addr))
	n.start("--portal=none")
	p, _, err := ask(n.Node, anyAddr, n.listensAt(`127\.\d+\.\d+\.\d+`))
	Expect(err).NotTo(HaveOccurred())
	echoes(p)
	p.close()
}

func manyAssociations() {
	n := newNode()
	s := diameter()
	for i := range 3 {
		s.endpoints = append(s.endpoints, startEndpoint(n.Pods, lab.Pod(i+1), false).addr)
	}
	n.put(s)
	n.start("--portal=iptables", "--trace=false")
	const count = 500
	var open []*peer
	for range count {
		p, _, err := ask(n.Pods, podClient, s.vip)
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

// portRange has all ports of the range but one taken, whichever usher prefers.
func portRange() {
	n := newNode()
	for _, port := range []uint16{20000, 20001, 20003} {
		n.Node.Do(func() error {
			l, err := sctp.ListenSCTP("sctp", address(netip.AddrPortFrom(netip.IPv4Unspecified(), port)))
			if err == nil {
				DeferCleanup(l.Close)
			}
			return err
		})
	}
	e := startEndpoint(n.Pods, lab.Pod(1), false)
	d := diameter(e.addr)
	n.put(d)
	n.start("--portal=iptables", "--proxy-port-range=20000-20003")
	n.said(`default/diameter .* 192\.0\.0\.117:20002 `)
	p, name, err := ask(n.Pods, anyAddr, d.vip)
	Expect(err).NotTo(HaveOccurred())
	Expect(name).To(Equal(e.addr))
	p.close()
}
