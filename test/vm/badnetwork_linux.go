//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/usherproxy/usher/test/lab"
)

// trouble is the impairment of packets, in each direction of each link.
type trouble struct {
	name string
	how  netlink.NetemQdiscAttrs
	// connections is the number of connections, unless the environment sets it.
	connections int
	// schedule is --dial-timeouts; it begins like the default. An endpoint counts as unreachable if each SYN of
	// the schedule, or its answer, is lost. With the default that affects one client in 100,000 at 5 %, and one in
	// 160 at 20 %; with the longer one none in 10,000,000, even if an emulated CPU misses the first two timeouts.
	schedule string
	// clientTimeout is the time after which a client retries because it cannot reach usher's node, which is the
	// network's fault.
	clientTimeout time.Duration
}

const (
	dialTimeouts       = "--dial-timeouts=250ms,500ms,1s,2s,4s"
	longerDialTimeouts = "--dial-timeouts=250ms,500ms,1s,2s,4s,8s,16s"
	// kernelTimeout is for a client that leaves retries to the kernel: net.ipv4.tcp_syn_retries.
	kernelTimeout = 140 * time.Second
)

var troubles = []trouble{
	{name: "loss of 5 %", how: netlink.NetemQdiscAttrs{Loss: 5}, schedule: longerDialTimeouts},
	{name: "loss of 20 %", how: netlink.NetemQdiscAttrs{Loss: 20}, connections: 100, schedule: longerDialTimeouts, clientTimeout: time.Second},
	{name: "a delay of 10 to 30 ms", how: netlink.NetemQdiscAttrs{Latency: 20_000, Jitter: 10_000}},
	{name: "duplication of 20 %", how: netlink.NetemQdiscAttrs{Duplicate: 20}},
	{name: "reordering of 25 %", how: netlink.NetemQdiscAttrs{Latency: 5_000, ReorderProb: 25}},
	{name: "corruption of 2 %", how: netlink.NetemQdiscAttrs{CorruptProb: 2}},
}

// badNetworks are the checks of the portals iptables and address. With each of them the kernel translates addresses and
// reports errors in a different way; lost and changed packets are a matter of the connections behind it.
var badNetworks = slices.Concat(troubled("iptables"), badLinks("iptables"), badLinks("address"))

func troubled(portal string) (all []Check) {
	for _, t := range troubles {
		all = append(all, Check{t.name + ", the " + portal + " portal: all TCP bytes arrive, no client fails, and only the network loses datagrams", func() { t.carried(portal) }})
	}
	return all
}

// pathMTU is the check in which a portal takes part: ICMP errors must reach usher.
func pathMTU(portal string) Check {
	return Check{"a path MTU of 1280, the " + portal + " portal: usher and its peers learn it from the router", func() { narrowLink(portal) }}
}

func badLinks(portal string) []Check {
	return []Check{
		pathMTU(portal),
		{"a link that is down for 3 s, the " + portal + " portal: open connections continue, and clients that connect meanwhile succeed", func() { linkDown(portal) }},
		{"a node that vanishes, the " + portal + " portal: its clients are reset, and the other node serves new ones", func() { vanishingNode(portal) }},
	}
}

// families are both address families: a node in a bad network serves Services of both.
var families = []family{ipv4, ipv6}

func newBadNode(portal string) *node {
	GinkgoHelper()
	n := newNode(ipv4)
	forwards(n.Node)
	for _, cable := range n.cables() {
		for _, at := range cable {
			withoutOffloads(at.ns, at.link)
		}
	}
	return n
}

// cables returns the lab's links by their two ends.
func (n *node) cables() [][2]end {
	return [][2]end{
		{{n.Outside, "eth0"}, {n.Node, "to-outside"}},
		{{n.Pods, "eth0"}, {n.Node, "to-pods"}},
	}
}

// of returns the node for Services of a family.
func (n *node) of(ip family) *node {
	other := *n
	other.ip = ip
	return &other
}

// mirror puts a TCP Service whose endpoints echo the data, and returns it.
func (n *node) mirror(at ...netip.AddrPort) service {
	GinkgoHelper()
	s := service{name: "mirror-" + n.ip.option[1:], vip: netip.AddrPortFrom(n.ip.vip, 80), protocol: "TCP", endpoints: at}
	n.put(s)
	return s
}

// startMirror starts an endpoint for mirror.
func startMirror(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	at := netip.AddrPortFrom(addr, 8080)
	lab.Serve(ns.Listen(at.String()), func(c net.Conn) { _, _ = io.Copy(c, c) })
	return at
}

// quietly returns flags that log less: the thousands of lines about connections are not needed.
func quietly(portal, schedule string) []string {
	return []string{"--portal=" + portal, "--log-level=info", "--trace=false", schedule}
}

// noise is the payload of connections.
var noise = func() []byte {
	b := make([]byte, 256<<10)
	_, _ = rand.NewChaCha8([32]byte{17}).Read(b) // it never fails
	return b
}()

// trip connects, sends data that no other trip sends, and expects the same data back, followed by EOF.
func trip(from *lab.Dialer, to netip.AddrPort, number uint64, size int, timeout time.Duration) error {
	var c *net.TCPConn
	for end := time.Now().Add(5 * time.Minute); ; {
		var err error
		if c, err = from.Dial("", to.String(), timeout); err == nil {
			break
		}
		if n, ok := errors.AsType[net.Error](err); !ok || !n.Timeout() || time.Now().After(end) {
			return err
		}
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		return err
	}
	sent := binary.BigEndian.AppendUint64(make([]byte, 0, 8+size), number)
	begin := int(number*1021) % (len(noise) - size)
	sent = append(sent, noise[begin:begin+size]...)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		written <- errors.Join(err, c.CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-written); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", len(got), len(sent), err)
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("%d bytes were sent, and %d others came back", len(sent), len(got))
	}
	return nil
}

// trips makes count connections, to each address in turn, atOnce of them concurrently. It returns the errors.
func trips(from *lab.Namespace, to []netip.AddrPort, atOnce, count int, timeout time.Duration) (failed []error) {
	GinkgoHelper()
	d := from.NewDialer(atOnce)
	var mu sync.Mutex
	var next atomic.Uint64
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for n := next.Add(1); n <= uint64(count); n = next.Add(1) {
				at := to[n%uint64(len(to))]
				began := time.Now()
				if err := trip(d, at, n, mixed(n), timeout); err != nil {
					mu.Lock()
					failed = append(failed, fmt.Errorf("connection %d to %s, %s after it began: %w", n, at, time.Since(began), err))
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return failed
}

// mixed returns the number of bytes of trip n. Most fit into one packet; some are large.
func mixed(n uint64) int {
	most := 1200
	if n%16 == 0 {
		most = 32 << 10
	}
	return rand.New(rand.NewPCG(17, n)).IntN(most)
}

func (t trouble) count() int {
	if n, err := strconv.Atoi(os.Getenv(connectionsVariable)); err == nil {
		return n
	}
	if t.connections > 0 {
		return t.connections
	}
	return 150
}

// carried expects that one usher process carries TCP and UDP.
func (t trouble) carried(portal string) {
	n := newBadNode(portal)
	for _, cable := range n.cables() {
		acquaint(cable[0], cable[1])
	}
	tcp := t.withTCP(n)
	udp := t.withUDP(n)
	n.start(quietly(portal, cmp.Or(t.schedule, dialTimeouts))...)
	tcp(portal)
	udp()
}

// withTCP creates Services and returns a check with trouble on both links: between usher and its clients, and between
// usher and its endpoints.
func (t trouble) withTCP(n *node) func(portal string) {
	GinkgoHelper()
	var vips []netip.AddrPort
	for _, ip := range families {
		s := n.of(ip).mirror(startMirror(n.Pods, ip.pod(1)), startMirror(n.Pods, ip.pod(2)), startMirror(n.Pods, ip.pod(3)))
		vips = append(vips, s.vip)
	}
	return func(portal string) {
		GinkgoHelper()
		impair(n.Node, "to-pods", t.how)
		impair(n.Pods, "eth0", t.how)
		impair(n.Outside, "eth0", t.how)
		impair(n.Node, "to-outside", t.how)
		failed := trips(n.Outside, vips, 48, t.count(), cmp.Or(t.clientTimeout, kernelTimeout))
		Expect(errors.Join(failed...)).NotTo(HaveOccurred(), "%d connections failed", len(failed))
	}
}

// withUDP creates Services and returns a check with trouble only on the links towards the node. So the check knows the
// datagrams that arrive there: usher must carry each of them exactly as often as it arrives.
func (t trouble) withUDP(n *node) func() {
	GinkgoHelper()
	const port, clients, each = 5300, 8, 30
	var atEndpoint, atClient tally
	var services []service
	for _, ip := range families {
		at := netip.AddrPortFrom(ip.pod(1), port)
		lab.ServeUDP(n.Pods.ListenUDP(at.String()), func(datagram []byte, _ netip.AddrPort) []byte {
			atEndpoint.add(datagram)
			return datagram
		})
		s := dns(at)
		s.name, s.vip = "dns-"+ip.option[1:], netip.AddrPortFrom(ip.vip.Next(), 53)
		n.of(ip).put(s)
		services = append(services, s)
	}
	return func() {
		GinkgoHelper()
		fromClients, fromEndpoint := tap(n.Node, "to-outside", 53), tap(n.Node, "to-pods", port)
		// Remove the impairment left by TCP from the links out of the node.
		mend(n.Node, "to-outside")
		mend(n.Node, "to-pods")
		var conns []net.Conn
		for i := range clients * len(services) {
			c := dialUDP(n.Outside, services[i%len(services)])
			go receiveUDP(c, &atClient)
			conns = append(conns, c)
		}
		sendAll(conns, each)
		Eventually(func(g Gomega) {
			g.Expect(len(fromClients.counts())).To(BeNumerically(">", len(conns)*each/2))
			g.Expect(differences(fromClients, &atEndpoint)).To(BeEmpty(), "from the clients to the endpoints")
			g.Expect(differences(fromEndpoint, &atClient)).To(BeEmpty(), "from the endpoints to the clients")
		}).WithTimeout(20 * time.Second).WithPolling(500 * time.Millisecond).Should(Succeed())
		lost := len(conns)*each - fromClients.total() + atEndpoint.total() - fromEndpoint.total()
		switch {
		case t.how.Loss > 0 || t.how.CorruptProb > 0:
			Expect(lost).To(BeNumerically(">", 0), "the network lost or duplicated datagrams")
		case t.how.Duplicate > 0:
			Expect(lost).To(BeNumerically("<", 0), "the network lost or duplicated datagrams")
		}
		AddReportEntry(t.name, fmt.Sprintf("%s: of %d datagrams to and fro the network lost %d", t.name, len(conns)*each+atEndpoint.total(), lost))
	}
}

// sendAll makes each client send the given number of datagrams, each different from all others.
func sendAll(conns []net.Conn, each int) {
	GinkgoHelper()
	pace := time.NewTicker(5 * time.Millisecond) // the capacity of socket buffers is not under test
	defer pace.Stop()
	for i := range each {
		for j, c := range conns {
			<-pace.C
			datagram := fmt.Appendf(nil, "%d/%d ", j, i)
			_, err := c.Write(append(datagram, noise[:(i*j*37)%1100]...))
			Expect(err).NotTo(HaveOccurred())
		}
	}
}

func receiveUDP(c net.Conn, t *tally) {
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			t.add(buf[:n])
		}
	}
}

// differences lists the datagrams that came at a tap and were carried a different number of times.
func differences(at, beyond *tally) (all []string) {
	came, carried := at.counts(), beyond.counts()
	for datagram, n := range came {
		if carried[datagram] != n && !at.isUnclear(datagram) {
			all = append(all, fmt.Sprintf("%.8q came %d times, and was carried %d times", datagram, n, carried[datagram]))
		}
	}
	for datagram, n := range carried {
		if came[datagram] == 0 && !at.isUnclear(datagram) {
			all = append(all, fmt.Sprintf("%.8q came never, and was carried %d times", datagram, n))
		}
	}
	return all
}

// flow is a connection that sends bytes back and forth until it is paused and then stopped.
type flow struct {
	pause, stop chan struct{}
	over        chan error
	written     atomic.Int64 // bytes
	back        atomic.Int64 // bytes that came back unchanged
}

func startFlow(from *lab.Dialer, to netip.AddrPort) *flow {
	GinkgoHelper()
	c, err := from.Dial("", to.String(), patience)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	f := &flow{pause: make(chan struct{}), stop: make(chan struct{}), over: make(chan error, 1)}
	sent := make(chan int64, 1)
	go func() {
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		var n int64
		for {
			select {
			case <-f.pause:
				<-f.stop
				sent <- n
				_ = c.CloseWrite() // the reader sees the result
				return
			case <-pace.C:
				begin := n % int64(len(noise)-1000)
				if _, err := c.Write(noise[begin : begin+1000]); err != nil {
					return // the reader returns an error, too
				}
				n += 1000
				f.written.Store(n)
			}
		}
	}()
	go func() {
		buf := make([]byte, 1000)
		for {
			if _, err := io.ReadFull(c, buf); err == io.EOF {
				if n := <-sent; n != f.back.Load() {
					err = fmt.Errorf("it ended after %d of %d bytes", f.back.Load(), n)
				} else {
					err = nil
				}
				f.over <- err
				return
			} else if err != nil {
				f.over <- err
				return
			}
			if begin := f.back.Load() % int64(len(noise)-1000); !bytes.Equal(buf, noise[begin:begin+1000]) {
				f.over <- fmt.Errorf("other bytes came back than were sent, after %d", f.back.Load())
				return
			}
			f.back.Add(1000)
		}
	}()
	return f
}

// moves expects that bytes are moving.
func (f *flow) moves() {
	GinkgoHelper()
	Eventually(f.back.Load).WithTimeout(patience).Should(BeNumerically(">", f.back.Load()))
}

// end ends the flow and expects that all sent bytes have come back.
func (f *flow) end() {
	GinkgoHelper()
	close(f.pause)
	f.stopped()
}

// stopped ends a paused flow.
func (f *flow) stopped() {
	GinkgoHelper()
	close(f.stop)
	Eventually(f.over).WithTimeout(patience).Should(Receive(BeNil()))
}

// linkDown takes down the carrier of the link to all endpoints.
func linkDown(portal string) {
	n := newBadNode(portal)
	setSysctl(n.Pods, "ipv6/conf/eth0/keep_addr_on_down", "1")
	var vips []netip.AddrPort
	for _, ip := range families {
		vips = append(vips, n.of(ip).mirror(startMirror(n.Pods, ip.pod(1)), startMirror(n.Pods, ip.pod(2))).vip)
	}
	// The last two timeouts are for this kernel, which may take seconds to create a link and routes.
	n.start("--portal="+portal, "--dial-timeouts=250ms,500ms,1s,2s,4s,8s")
	d := n.Outside.NewDialer(64)
	var flows []*flow
	for i := range 8 {
		flows = append(flows, startFlow(d, vips[i%2]))
	}
	for _, f := range flows {
		f.moves()
	}
	n.Pods.Output("ip", "link", "set", "eth0", "down")
	down := time.Now()
	time.Sleep(2 * time.Second)
	var new sync.WaitGroup
	failed := make(chan error, 64)
	for i := range 32 {
		new.Go(func() {
			if err := trip(d, vips[i%2], uint64(i), 500, kernelTimeout); err != nil {
				failed <- err
			}
		})
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(time.Until(down.Add(3 * time.Second)))
	n.Pods.Output("ip", "link", "set", "eth0", "up")
	route(n.Pods, "default", n.ip.toPods.String(), "default", ipv6.toPods.String())
	new.Wait()
	close(failed)
	for err := range failed {
		Expect(err).NotTo(HaveOccurred(), "a client that connected while the link was down")
	}
	for _, f := range flows {
		f.moves()
		f.end()
	}
}

// narrowLink places clients and endpoints behind a link with an MTU of 1280 bytes.
func narrowLink(portal string) {
	n := newNode(ipv4)
	far := newFar(n)
	var near, beyond, questions []service
	for i, ip := range families {
		beyond = append(beyond, n.of(ip).mirror(startMirror(far, ip.far())))
		s := beyond[i]
		s.name, s.vip, s.endpoints = "near-"+s.name, netip.AddrPortFrom(ip.vip.Prev(), 80), []netip.AddrPort{startMirror(n.Pods, ip.pod(1))}
		n.of(ip).put(s)
		near = append(near, s)
		q := dns(startEcho(far, ip.far()))
		q.name, q.vip = "dns-"+ip.option[1:], netip.AddrPortFrom(ip.vip.Next(), 53)
		n.of(ip).put(q)
		questions = append(questions, q)
	}
	n.start(quietly(portal, "--dial-timeouts=3s,3s,3s,3s")...)
	for i, ip := range families {
		for _, c := range []struct {
			from *lab.Namespace
			to   service
		}{{n.Outside, beyond[i]}, {n.Node, beyond[i]}, {far, near[i]}, {far, beyond[i]}} {
			d := c.from.NewDialer(1)
			for number := range uint64(3) {
				Expect(trip(d, c.to.vip, number, 128<<10, patience)).To(Succeed(), "%s, from %s to %s", ip.name, c.from.Name, c.to.name)
			}
		}
		// The first datagrams are lost, until both ends have learned the path MTU.
		c := dialUDP(n.Outside, questions[i])
		sent := noise[:1400]
		Eventually(func() ([]byte, error) {
			if _, err := c.Write(sent); err != nil {
				return nil, err
			}
			if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				return nil, err
			}
			buf := make([]byte, 2000)
			n, err := c.Read(buf)
			return buf[:n], err
		}).WithTimeout(30*time.Second).Should(Equal(sent), ip.name)
	}
}

// vanishingNode makes one of two nodes with endpoints vanish: it sends nothing, no FIN, no RST, no ICMP.
func vanishingNode(portal string) {
	n := newBadNode(portal)
	other := n.AddHost("to-other")
	addresses(n.Node, "to-other", "10.245.0.1/24", "fd00:245::1/64")
	addresses(other, "eth0", "10.245.0.2/24", "fd00:245::2/64")
	route(other, "default", "10.245.0.1", "default", "fd00:245::1")
	// A sender gives up after some seconds, not after a quarter of an hour.
	setSysctl(n.Node, "ipv4/tcp_retries2", "4")
	d := n.Outside.NewDialer(1)
	var vips []netip.AddrPort
	var there atomic.Int64 // connections that the other node has accepted
	for _, ip := range families {
		gone := netip.AddrPortFrom(map[bool]netip.Addr{true: netip.MustParseAddr("10.245.0.2"), false: netip.MustParseAddr("fd00:245::2")}[ip.vip.Is4()], 8080)
		lab.Serve(other.Listen(gone.String()), func(c net.Conn) {
			there.Add(1)
			defer there.Add(-1) // probes, and attempts that timed out, close at once
			_, _ = io.Copy(c, c)
		})
		vips = append(vips, n.of(ip).mirror(startMirror(n.Pods, ip.pod(1)), gone).vip)
	}
	n.start(quietly(portal, "--dial-timeouts=1s,1s,2s,2s")...)
	var flows []*flow
	for i := range 8 {
		flows = append(flows, startFlow(d, vips[i%2]))
	}
	for _, f := range flows {
		f.moves()
	}
	everything := netlink.NetemQdiscAttrs{Loss: 100}
	impair(n.Node, "to-other", everything)
	impair(other, "eth0", everything)
	lost := there.Load()
	Expect(lost).To(BeNumerically(">", 0))
	for _, f := range flows { // until each has written data that no endpoint receives
		Eventually(f.written.Load).WithTimeout(patience).Should(BeNumerically(">", f.written.Load()+1000))
		close(f.pause)
	}

	failed := trips(n.Outside, vips, 48, 100, kernelTimeout)
	Expect(errors.Join(failed...)).NotTo(HaveOccurred())
	var each []time.Duration
	for i := range 16 {
		began := time.Now()
		Expect(trip(d, vips[i%2], uint64(i), 100, kernelTimeout)).To(Succeed())
		each = append(each, time.Since(began))
	}
	slices.Sort(each)
	Expect(each[len(each)/2]).To(BeNumerically("<", time.Second), "the unresponsive endpoint is skipped")
	over := func() (n int64) {
		for _, f := range flows {
			n += int64(len(f.over))
		}
		return n
	}
	Eventually(over).WithTimeout(patience).Should(Equal(lost))
	for _, f := range flows {
		if len(f.over) > 0 {
			Expect(<-f.over).To(MatchError(syscall.ECONNRESET), "a failed connection must not look closed")
		} else {
			f.stopped()
		}
	}
}
