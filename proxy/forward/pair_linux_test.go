package forward

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/outcome"
)

// results is an owner that sends results to a channel.
type results chan outcome.Result

func (to results) Ended(r outcome.Result)   { to <- r }
func (results) ClientFirstByte(time.Time)   {}
func (results) EndpointFirstByte(time.Time) {}

// loopedPair forwards a pair on a dedicated loop, and returns its far ends.
func loopedPair(t *testing.T) (p *pair, client, endpoint *net.TCPConn) {
	t.Helper()
	g := NewWithT(t)
	poller, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	l := NewLoop(poller, Options{Keepalive: Keepalive{Idle: time.Minute, Interval: time.Minute, Probes: 3}})
	clients, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer clients.Close()
	endpoints, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer endpoints.Close()
	ended := make(chan outcome.Result, 1)
	begun := make(chan *pair, 1)
	to := clients.Addr().(*net.TCPAddr).AddrPort()
	near, err := new(Loop).connectTCP(netip.AddrPort{}, to, 0, 0, false)
	g.Expect(err).NotTo(HaveOccurred())
	far, err := clients.Accept()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.Do(func() {
		l.Connect(netip.AddrPort{}, endpoints.Addr().(*net.TCPAddr).AddrPort(), 0, nil, 0, func(d *Dialed, err error) {
			if err != nil {
				close(begun)
				return
			}
			in := new(Pair)
			l.Forward(in, &Client{Socket: near}, d, &Limits{}, results(ended))
			begun <- &in.pair
		})
	})).To(Succeed())
	g.Eventually(begun).Should(Receive(&p))
	other, err := endpoints.Accept()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		far.Close()
		other.Close()
		g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive())
		l.Close()
		poller.Close()
	})
	return p, far.(*net.TCPConn), other.(*net.TCPConn)
}

// onLoop calls f on p's loop, and returns after f.
func (p *pair) onLoop(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	if err := p.loop.Do(func() { defer close(done); f() }); err != nil {
		t.Fatal(err)
	}
	<-done
}

func TestNoDelayIsSetForTheEndpointAtTheSecondMessage(t *testing.T) {
	g := NewWithT(t)
	p, client, endpoint := loopedPair(t)
	undelayed := func() (on int) {
		p.onLoop(t, func() { on, _ = unix.GetsockoptInt(int(p.endpoint.fd), unix.IPPROTO_TCP, unix.TCP_NODELAY) })
		return on
	}
	for _, want := range []int{0, 1} {
		g.Expect(client.Write([]byte("question"))).To(Equal(8))
		g.Expect(io.ReadFull(endpoint, make([]byte, 8))).To(Equal(8))
		g.Expect(endpoint.Write([]byte("answer"))).To(Equal(6))
		g.Expect(io.ReadFull(client, make([]byte, 6))).To(Equal(6))
		g.Expect(undelayed()).To(Equal(want))
	}
}

func TestPairHasOneTurnPerRound(t *testing.T) {
	g := NewWithT(t)
	p, _, endpoint := loopedPair(t)
	const size = 16 << 20
	read := int64(0)
	take := func(n int64) {
		n, _ = io.CopyN(io.Discard, endpoint, n-read)
		read += n
	}
	sent := func() int64 { n, _ := p.Bytes(); return n }
	ready := func() { (*endpointEdge)(p).Ready(Writable) }
	var before, after int64
	var waiting int
	p.onLoop(t, func() {
		p.toEndpoint.rest, p.endpoint.writable = &rest{bytes: make([]byte, size)}, false
		for sent()-before < shortTurn && read < size { // the kernel's buffers grow as the endpoint reads
			take(sent())
			before = sent()
			ready()
		}
		take(sent()) // to empty the buffers
		before = sent()
		for range 3 {
			ready()
		}
		after, waiting = sent(), len(p.loop.later)
	})
	take(size)
	g.Expect(read).To(BeEquivalentTo(size))
	g.Expect(before).To(BeNumerically("<", size))
	g.Expect(after).To(Equal(before), "it waits for its next turn")
	g.Expect(waiting).To(Equal(1))
}

// urgentTest is a pair with a direction in which an urgent byte is sent.
type urgentTest struct {
	*WithT
	pair      *pair
	way       *way
	from, to  *edge
	near, far Socket // far ends
	read      io.Reader
}

// eachWay calls f for each direction of a pair. The byte must then arrive as urgent, after the bytes sent before it.
func eachWay(t *testing.T, f func(*urgentTest) (before int)) {
	for _, toClient := range []bool{false, true} {
		p, client, endpoint := loopedPair(t)
		socket := func(c *net.TCPConn) (s Socket) {
			_ = rawOf(c).Control(func(fd uintptr) { s = Socket(fd) })
			return s
		}
		u := &urgentTest{NewWithT(t), p, &p.toEndpoint, &p.client, &p.endpoint, socket(client), socket(endpoint), endpoint}
		if toClient {
			u.way, u.from, u.to, u.near, u.far, u.read = &p.toClient, u.to, u.from, u.far, u.near, client
		}
		before := f(u)
		u.Expect(io.CopyN(io.Discard, u.read, int64(before))).To(BeEquivalentTo(before))
		u.Eventually(u.far.atMark).WithTimeout(30*time.Second).Should(BeTrue(), "to the client: %v", toClient)
	}
}

// send sends b, and returns when it has arrived.
func (u *urgentTest) send(b []byte, flags int) {
	u.Expect(u.near.write(b, flags)).To(Equal(len(b)))
	u.Eventually(u.from.fd.unread).WithTimeout(30 * time.Second).Should(Equal(len(b)))
}

func TestUrgentByteAfterTheLastEventStaysUrgent(t *testing.T) {
	eachWay(t, func(u *urgentTest) int {
		u.pair.onLoop(t, func() {
			u.send(make([]byte, bufferSize), 0)
			u.from.readable = true
			u.Expect(u.pair.copy(u.way, u.from, u.to)).To(Equal(bufferSize))
			u.send([]byte("X"), unix.MSG_OOB)
			u.Expect(u.pair.copy(u.way, u.from, u.to)).To(Equal(1))
		})
		return bufferSize
	})
}

func TestUrgentByteStaysUrgentIfBuffersAreFull(t *testing.T) {
	defer KeepNothing()()
	eachWay(t, func(u *urgentTest) (before int) {
		for block := make([]byte, 1<<20); ; {
			n, err := u.to.fd.write(block, 0)
			if before += n; err == unix.EAGAIN {
				break
			}
		}
		// Bytes on the way to the peer, which leave the buffer soon, must not make it writable again.
		u.Expect(unix.SetsockoptInt(int(u.to.fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 1)).To(Succeed())
		u.send([]byte("X"), unix.MSG_OOB)
		u.Eventually(func() (writable bool) {
			u.pair.onLoop(t, func() { writable = u.to.writable })
			return writable
		}).WithTimeout(30 * time.Second).Should(BeFalse())
		return before
	})
}

// holdInPipe makes the client send bytes, and p hold them in a pipe for the endpoint. It must be called on the loop.
func (p *pair) holdInPipe(g *WithT, client net.Conn) {
	g.Expect(client.Write([]byte("more of the request"))).Error().NotTo(HaveOccurred())
	g.Eventually(p.client.fd.unread).WithTimeout(30 * time.Second).Should(BeNumerically(">", 0))
	p.loop.pipes.max = 1
	p.toEndpoint.pipe = p.loop.pipes.get()
	p.fill(&p.toEndpoint, &p.client, &p.endpoint)
	g.Expect(p.toEndpoint.pipe.held).To(BeNumerically(">", 0))
}

func TestEndpointThatClosesWithUnreadBytesHasEnded(t *testing.T) {
	g := NewWithT(t)
	p, client, endpoint := loopedPair(t)
	p.onLoop(t, func() {
		g.Expect(p.endpoint.fd.write([]byte("request"), 0)).To(Equal(7))
		p.holdInPipe(g, client)
		g.Expect(endpoint.Write([]byte("response"))).To(Equal(8))
		g.Expect(endpoint.CloseWrite()).To(Succeed())
		g.Eventually(p.endpoint.fd.unread).WithTimeout(30 * time.Second).Should(Equal(8))
		g.Expect(endpoint.Close()).To(Succeed()) // sends RST, since it has not read the request
		g.Eventually(p.endpoint.fd.gone).WithTimeout(30 * time.Second).Should(BeTrue())
		p.endpoint.note(HungUp | Failed)
		p.move(shortTurn)
	})
	g.Expect(client.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
	g.Expect(io.ReadAll(client)).To(BeEquivalentTo("response"), "and then the end, not a reset")
}

// A splice(2) that moves some bytes can clear the error of a connection without returning it. Then a read returns the end.
func TestResetIsNoEndIfSpliceClearedItsError(t *testing.T) {
	for name, clientReads := range map[string]bool{"the client reads": true, "the client does not read": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p, client, endpoint := loopedPair(t)
			p.onLoop(t, func() {
				p.holdInPipe(g, client)
				p.toEndpoint.pipe.moved = 1
				g.Expect(endpoint.SetLinger(0)).To(Succeed())
				g.Expect(endpoint.Close()).To(Succeed())
				g.Eventually(p.endpoint.fd.pending).WithTimeout(30 * time.Second).Should(Equal(unix.ECONNRESET)) // clears it, as such a splice(2) does
				p.endpoint.note(HungUp | Failed)
				p.client.writable = clientReads
				p.carry(&p.toClient, &p.endpoint, &p.client, shortTurn)
			})
			g.Expect(client.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
			g.Expect(client.Read(make([]byte, 1))).Error().To(MatchError(unix.ECONNRESET))
		})
	}
}
